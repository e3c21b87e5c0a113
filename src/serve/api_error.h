// What a request is refused with, and its two shapes on the wire.
//
//   OpenAI      {"error": {"message", "type", "param", "code"}}, extras next to them
//   Anthropic   {"type": "error", "error": {"type", "message"}}
//
// Status and code decide what a client does next (retry, compact its context, give up), so they are made here alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/json.h"
#include "serve/http_message.h"

namespace levin::serve {

enum class ApiDialect : uint8_t { kOpenAi, kAnthropic };

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // empty: null
  std::string param;  // empty: null
  std::string message;
  std::string anthropic_message;  // where that dialect's clients look for other words; empty: message
  io::JsonObject extras;          // OpenAI: further members of "error"
};

ApiError bad_request(std::string message, std::string param = "");
ApiError wrong_key();
ApiError foreign(std::string message);  // 403: a page, or a host name, that a server without keys does not answer
ApiError unknown_model(const std::string& asked, const std::string& served);
ApiError unknown_route(const std::string& method, const std::string& path);
// Tokens of a request, and how many the model's context has room for.
struct RequestTokens {
  int64_t n_prompt = 0;
  int64_t n_answer = 0;  // as asked, 0: not said
  int64_t n_context = 0;
};
ApiError prompt_too_long(const RequestTokens& tokens);
// Answers that one request asks for, and how many the server has places for.
struct RequestAnswers {
  int64_t n_prompts = 0;
  int64_t n_choices = 0;  // of each prompt
  int64_t n_most = 0;
};
ApiError too_many_answers(const RequestAnswers& answers);
ApiError queue_full();
ApiError shutting_down();  // 503
ApiError engine_failed(const Error& error);
ApiError engine_stuck();                                // 503: a step takes longer than the watchdog allows
ApiError device_lost();                                 // 503: the model's device has failed
ApiError with_status(int status, std::string message);  // for what fails below the routes

// The dialect that a request is written in: that of its route; on routes of both, that of its headers.
ApiDialect dialect_of(const HttpRequest& request);

// JSON whatever bytes of the request the message quotes: what is no UTF-8 becomes U+FFFD.
io::JsonValue error_body(const ApiError& error, ApiDialect dialect);
HttpResponse error_response(const ApiError& error, ApiDialect dialect);

}  // namespace levin::serve
