#include "serve/api_error.h"

#include <fmt/core.h>

#include <utility>

#include "text/unicode.h"

namespace levin::serve {
namespace {

// The other dialect names its errors by status alone.
std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

io::JsonValue text_value(std::string_view text) {
  std::string storage;
  return io::JsonValue(std::string(text::valid_utf8(text, storage)));
}

io::JsonValue text_or_null(const std::string& text) { return text.empty() ? io::JsonValue() : text_value(text); }

}  // namespace

ApiError bad_request(std::string message, std::string param) {
  return {.param = std::move(param), .message = std::move(message)};
}

ApiError wrong_key() {
  return {.status = 401,
          .type = "authentication_error",
          .code = "invalid_api_key",
          .message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"};
}

ApiError foreign(std::string message) {
  return {.status = 403, .type = "permission_error", .message = std::move(message)};
}

ApiError unknown_model(const std::string& asked, const std::string& served) {
  return {.status = 404,
          .code = "model_not_found",
          .param = "model",
          .message = fmt::format("The model `{}` does not exist here; this server has `{}`", asked, served)};
}

ApiError unknown_route(const std::string& method, const std::string& path) {
  return {.status = 404, .message = fmt::format("there is no {} {} here", method, path)};
}

ApiError prompt_too_long(const RequestTokens& tokens) {
  const auto& [n_prompt, n_answer, n_context] = tokens;
  // neither is negative, so that their sum fits without a sign
  const uint64_t n_total = static_cast<uint64_t>(n_prompt) + static_cast<uint64_t>(n_answer);
  // Clients tell this case by these very words, and shorten what they send.
  return {.status = 400,
          .code = "context_length_exceeded",
          .message = fmt::format("This model's maximum context length is {} tokens. However, you requested {} output "
                                 "tokens and your prompt contains at least {} input tokens, for a total of at least {} "
                                 "tokens. Please reduce the length of the input prompt or the number of requested "
                                 "output tokens.",
                                 n_context, n_answer, n_prompt, n_total),
          .anthropic_message = fmt::format("prompt is too long: {} tokens > {} maximum", n_total, n_context),
          .extras = {{"n_prompt_tokens", n_prompt}, {"n_ctx", n_context}}};
}

ApiError too_many_answers(const RequestAnswers& answers) {
  const auto& [n_prompts, n_choices, n_most] = answers;
  const bool prompts_alone = n_prompts > n_most;
  const std::string asked = prompts_alone ? fmt::format("prompt has {} entries", n_prompts)
                                          : fmt::format("n is {} (number of prompts: {})", n_choices, n_prompts);
  return bad_request(fmt::format("{}: {} answers, and this server takes at most {} at a time (--max-queued-requests); "
                                 "ask for fewer per request",
                                 asked, n_prompts * n_choices, n_most),
                     prompts_alone ? "prompt" : "n");
}

ApiError queue_full() {
  return {
      .status = 429, .type = "rate_limit_error", .code = "queue_full", .message = "the queue is full; try again later"};
}

ApiError shutting_down() {
  return {
      .status = 503, .type = "unavailable_error", .code = "shutting_down", .message = "the server is shutting down"};
}

ApiError engine_failed(const Error& error) { return {.status = 500, .type = "server_error", .message = error.message}; }

ApiError engine_stuck() {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "engine_stuck",
          .message = "a step of the engine takes longer than --watchdog-timeout; the server's log has a report"};
}

ApiError device_lost() {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "device_lost",
          .message = "the device that the model runs on has failed; the server is ending"};
}

ApiError with_status(int status, std::string message) {
  return {.status = status,
          .type = status == 503   ? "unavailable_error"
                  : status >= 500 ? "server_error"
                                  : "invalid_request_error",
          .message = std::move(message)};
}

ApiDialect dialect_of(const HttpRequest& request) {
  const bool anthropic = request.path.starts_with("/v1/messages") ||
                         (request.path.starts_with("/v1/models") && request.header("anthropic-version") != nullptr);
  return anthropic ? ApiDialect::kAnthropic : ApiDialect::kOpenAi;
}

io::JsonValue error_body(const ApiError& error, ApiDialect dialect) {
  if (dialect == ApiDialect::kAnthropic) {
    const std::string& message = error.anthropic_message.empty() ? error.message : error.anthropic_message;
    return io::JsonObject{
        {"type", "error"},
        {"error", io::JsonObject{{"type", anthropic_type(error.status)}, {"message", text_value(message)}}}};
  }
  io::JsonObject inner = {{"message", text_value(error.message)},
                          {"type", error.type},
                          {"param", text_or_null(error.param)},
                          {"code", text_or_null(error.code)}};
  for (const io::JsonMember& extra : error.extras.members()) inner.set(extra.key, extra.value);
  return io::JsonObject{{"error", std::move(inner)}};
}

HttpResponse error_response(const ApiError& error, ApiDialect dialect) {
  HttpResponse response{.status = error.status, .body = io::dump_json(error_body(error, dialect))};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace levin::serve
