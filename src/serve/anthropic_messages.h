// POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect.
#pragma once

#include <memory>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

FieldList messages_fields();  // in addition to those of generation, form and conversation

void handle_messages(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);
void handle_count_tokens(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
