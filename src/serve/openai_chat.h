// POST /v1/chat/completions
#pragma once

#include <memory>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

FieldList chat_completion_fields();  // in addition to those of generation, form and chat

void handle_chat_completions(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
