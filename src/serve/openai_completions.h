// POST /v1/completions
#pragma once

#include <memory>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

FieldList completion_fields();  // in addition to those of generation and form

void handle_completions(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
