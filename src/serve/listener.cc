#include "serve/listener.h"

#include <utility>

#include "serve/api_error.h"

namespace levin::serve {
namespace {

constexpr char kRetryAfterS[] = "5";

HttpResponse refusal(int status, const std::string& message) {
  return error_response(with_status(status, message), ApiDialect::kOpenAi);
}

HttpResponse still_loading() {
  HttpResponse response = refusal(503, "the model is loading; try again later");
  response.headers.emplace_back("Retry-After", kRetryAfterS);
  return response;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(const HttpServerOptions& options) {
  std::unique_ptr<Listener> listener(new Listener);
  Listener* l = listener.get();
  LEVIN_ASSIGN(
      l->http_,
      HttpServer::listen(options, [l](std::shared_ptr<Exchange> exchange) { l->take(std::move(exchange)); }, refusal));
  return listener;
}

void Listener::hand_over(HttpServer::Handler handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void Listener::take(std::shared_ptr<Exchange> exchange) {
  const std::lock_guard lock(mutex_);
  if (!handler_) return exchange->respond(still_loading());
  handler_(std::move(exchange));
}

}  // namespace levin::serve
