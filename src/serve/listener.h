// The server's address, taken before there is a model to answer with: a port that is in use shows at once and not after
// the minutes that loading takes.
//
// Until hand_over() every request is answered with 503 and Retry-After, /health included, as llama-server does while it
// loads: probes of orchestrators see a server that is not ready, clients that retry wait for it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "serve/http_server.h"

namespace levin::serve {

class Listener {
 public:
  // Errors as HttpServer::listen() has them.
  static Result<std::unique_ptr<Listener>> open(const HttpServerOptions& options);

  uint16_t port() const { return http_->port(); }
  bool loopback_only() const { return http_->loopback_only(); }
  // Requests from here on are the handler's, until stop().
  void hand_over(HttpServer::Handler handler);
  void stop(std::chrono::milliseconds grace, const std::function<void()>& give_up = {}) { http_->stop(grace, give_up); }

 private:
  Listener() = default;
  void take(std::shared_ptr<Exchange> exchange);

  std::mutex mutex_;
  HttpServer::Handler handler_;  // empty: the model is loading
  std::unique_ptr<HttpServer> http_;
};

}  // namespace levin::serve
