// POST /v1/responses: OpenAI's newer dialect, as Codex speaks it. Nothing is stored, so a request carries its whole
// conversation.
#pragma once

#include <memory>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

FieldList responses_fields();  // in addition to those of generation and form

void handle_responses(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
