#include "serve/routes.h"

#include "serve/answer_form.h"
#include "serve/anthropic_chat.h"
#include "serve/anthropic_messages.h"
#include "serve/chat_messages.h"
#include "serve/generation_fields.h"
#include "serve/openai_chat.h"
#include "serve/openai_completions.h"
#include "serve/openai_responses.h"
#include "serve/page.h"
#include "serve/utility_routes.h"

namespace levin::serve {
namespace {

std::vector<Route> make_routes() {
  const FieldList generation = generation_fields(), form = form_fields(), chat = chat_fields();
  return {
      {"GET", "/", handle_page, "A page with a chat and a dashboard, for browsers", true},
      {"GET", "/health", handle_health, "Status 200 while the server can answer", true},
      {"GET", "/v1/health", handle_health, "The same", true},
      {"GET", "/ping", handle_health, "The same", true},
      {"GET", "/version", handle_version, "Version of the program, name of the model", true},
      {"GET", "/openapi.json", handle_openapi, "This document", true},
      {"GET", "/metrics", handle_metrics, "Figures for Prometheus"},
      {"GET", "/props", handle_props, "The served model and its settings"},
      {"GET", "/v1/models", handle_models, "The model, once for each of its names"},
      {"GET", "/v1/models/*", handle_one_model, "The model with this name"},
      {"GET", "/tokenizer_info", handle_tokenizer_info, "Special tokens"},
      {"POST",
       "/tokenize",
       handle_tokenize,
       "Convert a text or a conversation to token ids",
       false,
       {tokenize_fields(), chat, form}},
      {"POST", "/detokenize", handle_detokenize, "Convert token ids to text", false, {detokenize_fields()}},
      {"POST", "/render", handle_render, "Render a conversation to its prompt", false, {chat, form}},
      {"POST",
       "/v1/chat/completions",
       handle_chat_completions,
       "Answer a conversation",
       false,
       {chat_completion_fields(), chat, form, generation}},
      {"POST",
       "/v1/completions",
       handle_completions,
       "Continue a text",
       false,
       {completion_fields(), form, generation}},
      {"POST",
       "/v1/responses",
       handle_responses,
       "Answer a conversation, in items",
       false,
       {responses_fields(), form, generation}},
      {"POST",
       "/v1/messages",
       handle_messages,
       "Answer a conversation, for Anthropic's clients",
       false,
       {messages_fields(), anthropic_chat_fields(), form, generation}},
      {"POST",
       "/v1/messages/count_tokens",
       handle_count_tokens,
       "Count the tokens of such a conversation",
       false,
       {anthropic_chat_fields(), form}},
  };
}

}  // namespace

std::span<const Route> built_in_routes() {
  static const std::vector<Route> routes = make_routes();
  return routes;
}

bool matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with('*')) return route.path == path;
  const std::string_view begin = route.path.substr(0, route.path.size() - 1);
  return path.starts_with(begin) && path.size() > begin.size();
}

}  // namespace levin::serve
