#include "serve/request_body.h"

#include <utility>

namespace levin::serve {

std::optional<ApiError> RequestBody::parse(const std::string& text, RequestBody* out) {
  constexpr std::string_view kWhat = "the request body";
  Result<io::JsonValue> document =
      io::parse_json(text, kWhat, {.kind = ErrorKind::kUsage, .duplicates = io::DuplicateKeys::kLastWins});
  if (!document.ok()) return bad_request(document.error().message);
  out->document_ = std::move(*document);
  Result<io::JsonFields> fields = io::JsonFields::of(out->document_, kWhat, ErrorKind::kUsage);
  if (!fields.ok()) return bad_request(fields.error().message);
  out->body_.emplace(std::move(*fields), &out->trace_);
  return std::nullopt;
}

void with_body(const ServedModel& model, Exchange& exchange, ApiDialect dialect,
               const std::function<std::optional<ApiError>(const RequestBody&)>& answer) {
  RequestBody body;
  std::optional<ApiError> error = RequestBody::parse(exchange.request().body, &body);
  if (!error) {
    const Result<std::string> name = body.fields().get_or("model", "");
    if (!name.ok()) {
      error = bad_request(name.error().message, "model");
    } else if (!model.has(*name)) {
      error = unknown_model(*name, model.name());
    } else {
      error = answer(body);
      if (model.on_fields) model.on_fields(exchange.request().path, body.trace().fields);
    }
  }
  if (!error) return;
  model.metrics->add_refusal();
  exchange.respond(error_response(*error, dialect));
}

}  // namespace levin::serve
