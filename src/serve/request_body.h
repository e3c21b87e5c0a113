// The body of a POST: parsed, its model known; or the refusal sent.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "serve/api_error.h"
#include "serve/body.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

class RequestBody {
 public:
  const Body& fields() const { return *body_; }
  const std::string& param() const { return trace_.last; }  // the field last read, for an error about it

  const Body::Trace& trace() const { return trace_; }

  // Errors are complete.
  static std::optional<ApiError> parse(const std::string& text, RequestBody* out);

 private:
  io::JsonValue document_;
  Body::Trace trace_;
  std::optional<Body> body_;  // refers to both
};

// Calls `answer` with the body of the exchange's request; sends the error that comes of either.
void with_body(const ServedModel& model, Exchange& exchange, ApiDialect dialect,
               const std::function<std::optional<ApiError>(const RequestBody&)>& answer);

}  // namespace levin::serve
