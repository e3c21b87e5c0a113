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
      {"GET", "/health", handle_health, "200 while the server can answer", true},
      {"GET", "/v1/health", handle_health, "The same", true},
      {"GET", "/ping", handle_health, "The same", true},
      {"GET", "/version", handle_version, "Of the program, and the model's name", true},
      {"GET", "/openapi.json", handle_openapi, "This document", true},
      {"GET", "/metrics", handle_metrics, "Figures for Prometheus"},
      {"GET", "/props", handle_props, "What is served, and how"},
      {"GET", "/v1/models", handle_models, "The model under each of its names"},
      {"GET", "/v1/models/*", handle_one_model, "The same of one name"},
      {"GET", "/tokenizer_info", handle_tokenizer_info, "Special tokens"},
      {"POST",
       "/tokenize",
       handle_tokenize,
       "A text or a conversation as token ids",
       false,
       {tokenize_fields(), chat, form}},
      {"POST", "/detokenize", handle_detokenize, "Token ids as text", false, {detokenize_fields()}},
      {"POST", "/render", handle_render, "A conversation as the prompt that it becomes", false, {chat, form}},
      {"POST",
       "/v1/chat/completions",
       handle_chat_completions,
       "An answer to a conversation",
       false,
       {chat_completion_fields(), chat, form, generation}},
      {"POST",
       "/v1/completions",
       handle_completions,
       "What follows a text",
       false,
       {completion_fields(), form, generation}},
      {"POST",
       "/v1/responses",
       handle_responses,
       "An answer to a conversation, in items",
       false,
       {responses_fields(), form, generation}},
      {"POST",
       "/v1/messages",
       handle_messages,
       "An answer to a conversation, for Anthropic's clients",
       false,
       {messages_fields(), anthropic_chat_fields(), form, generation}},
      {"POST",
       "/v1/messages/count_tokens",
       handle_count_tokens,
       "Tokens of such a conversation",
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
