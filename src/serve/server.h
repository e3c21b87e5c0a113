// The server as a whole: an engine, its tokenizer and chat format behind HTTP routes.
//
//   LEVIN_ASSIGN(auto listener, Listener::open(options.http));   // then load the model
//   auto server = Server::start(options, std::move(listener), *engine, tokenizer, format);
//   ... until somebody asks it to end ...
//   server->stop(std::chrono::seconds(30));
//
// Routes are one table (serve/routes.h). Requests are parsed and tokenized on a few threads of the server's own, so that a
// long prompt holds nobody up; answers are written on another; the engine has its thread to itself.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "serve/listener.h"
#include "serve/log.h"
#include "serve/routes.h"
#include "serve/served_model.h"
#include "serve/watch.h"

namespace levin::serve {

struct ServerOptions {
  HttpServerOptions http;
  std::string version;                     // of the program
  std::vector<std::string> model_names;    // at least one
  bool any_model_name = false;             // answer whatever model is asked for
  std::vector<std::string> api_keys;       // none: open to all who reach it
  std::vector<std::string> cors_origins;   // "*": any; none: no header is sent
  std::vector<std::string> allowed_hosts;  // in addition to addresses and localhost (serve/access.h); "*": any
  SamplingParams sampling;                 // where requests do not say
  bool thinking = false;                   // the same
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int64_t max_queued = 1024;  // requests that are open at once; more get 429
  WatchOptions watch;
  std::vector<Route> more_routes;  // in addition to the built-in ones
  // For tests: gets the path of a request that was read, and the fields of its body that were looked at.
  std::function<void(const std::string& path, const std::set<std::string, std::less<>>& fields)> on_fields;
  Log* log = nullptr;  // outlives the server; null: standard error, as text
};

class Server {
 public:
  // Answers what reaches the listener, which has options.http of its own. Engine, tokenizer and format must outlive the server, which alone uses the engine from here on.
  static std::unique_ptr<Server> start(const ServerOptions& options, std::unique_ptr<Listener> listener, Engine& engine,
                                       const text::Tokenizer& tokenizer, const text::ChatFormat& format);
  // With a listener of its own; errors as Listener::open() has them.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options, Engine& engine,
                                               const text::Tokenizer& tokenizer, const text::ChatFormat& format);
  ~Server();  // stop(0)

  uint16_t port() const;
  std::string metrics() const;
  // Refuses new requests with 503, lets those that run finish for `grace`, then ends them with the same error.
  void stop(std::chrono::milliseconds grace);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace levin::serve
