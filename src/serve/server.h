// The HTTP server: serves an engine with its tokenizer and chat format.
//
//   LEVIN_ASSIGN(auto listener, Listener::open(options.http));   // then load the model
//   auto server = Server::start(options, std::move(listener), *engine, tokenizer, format);
//   ... until the program should end ...
//   server->stop(std::chrono::seconds(30));
//
// All routes are rows of one table (serve/routes.h). The server has its own threads: a few parse and tokenize requests,
// so that a long prompt does not delay others; one writes answers; one runs the engine.
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
  std::vector<std::string> model_names;    // for clients; at least one
  bool any_model_name = false;             // accept any model name in requests
  std::vector<std::string> api_keys;       // empty: requests need no key
  std::vector<std::string> cors_origins;   // "*": any; empty: no CORS header is sent
  std::vector<std::string> allowed_hosts;  // in addition to addresses and localhost (serve/access.h); "*": any
  GenerationDefaults defaults;             // for fields that a request omits
  bool thinking = false;                   // default for requests that do not say
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int64_t max_queued = 1024;  // maximum number of open requests; more get 429
  WatchOptions watch;
  std::vector<Route> more_routes;  // in addition to the built-in routes
  // Called once, on the engine's thread, where the device of the model fails: requests get 503 from then on, and the program
  // should end. May be empty.
  std::function<void(const Error&)> on_lost_device;
  std::function<void()> before_step;  // for tests: called on the engine's thread
  // For tests: receives the path of each request and the fields of its body that the handler read.
  std::function<void(const std::string& path, const std::set<std::string, std::less<>>& fields)> on_fields;
  Log* log = nullptr;  // must outlive the server; null: standard error, as text
};

class Server {
 public:
  // Serves requests that reach the listener, which was opened with its own HttpServerOptions. Engine, tokenizer and
  // format must outlive the server; from now on only the server may use the engine.
  static std::unique_ptr<Server> start(const ServerOptions& options, std::unique_ptr<Listener> listener, Engine& engine,
                                       const text::Tokenizer& tokenizer, const text::ChatFormat& format);
  // The same with a listener opened with options.http; returns the errors of Listener::open().
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options, Engine& engine,
                                               const text::Tokenizer& tokenizer, const text::ChatFormat& format);
  ~Server();  // stop(0)

  uint16_t port() const;        // that the server listens on
  std::string metrics() const;  // in the Prometheus text format
  // Refuses new requests with 503, gives running ones `grace` to finish, then ends them with the same error.
  void stop(std::chrono::milliseconds grace);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace levin::serve
