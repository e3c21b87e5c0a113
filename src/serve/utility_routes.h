// The small routes: what is served, whether it is well, text to tokens and back.
#pragma once

#include <memory>
#include <string>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

void handle_health(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);   // GET /health
void handle_version(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);  // GET /version
void handle_metrics(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);  // GET /metrics
void handle_openapi(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);  // GET /openapi.json
// GET /props: what is served and how, under the names of llama-server where it has one for a fact.
void handle_props(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);
void handle_models(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);      // GET /v1/models
void handle_one_model(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);   // GET /v1/models/{id}
void handle_tokenize(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);    // POST /tokenize
void handle_detokenize(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);  // POST /detokenize
// POST /render: what a chat request becomes, as text and as token ids.
void handle_render(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);
void handle_tokenizer_info(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);  // GET /tokenizer_info

FieldList tokenize_fields();
FieldList detokenize_fields();

}  // namespace levin::serve
