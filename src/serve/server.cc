#include "serve/server.h"

#include <fmt/core.h>

#include <atomic>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

#include "base/recovery.h"
#include "engine/request.h"
#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/engine_service.h"

namespace levin::serve {
namespace {

constexpr int kHandlerThreads = 2;

// Adds headers to every answer: the request's own id, and what browsers need to be let in.
class DecoratedExchange final : public Exchange {
 public:
  DecoratedExchange(std::shared_ptr<Exchange> inner, Headers headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}
  const HttpRequest& request() const override { return inner_->request(); }
  void respond(HttpResponse response) override { inner_->respond(with_headers(std::move(response))); }
  void begin_stream(HttpResponse head) override { inner_->begin_stream(with_headers(std::move(head))); }
  void send(std::string bytes) override { inner_->send(std::move(bytes)); }
  void end() override { inner_->end(); }
  void on_disconnect(std::function<void()> call) override { inner_->on_disconnect(std::move(call)); }

 private:
  HttpResponse with_headers(HttpResponse response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }
  std::shared_ptr<Exchange> inner_;
  Headers headers_;
};

}  // namespace

struct Server::State {
  State(const ServerOptions& o, Engine& engine, const text::Tokenizer& tokenizer, const text::ChatFormat& format)
      : options(o),
        routes(built_in_routes().begin(), built_in_routes().end()),
        metrics(o.model_names.front()),
        forms(tokenizer, format, engine.config().n_vocab),
        service(engine, metrics, {.on_lost_device = o.on_lost_device, .before_step = o.before_step}) {
    routes.insert(routes.end(), options.more_routes.begin(), options.more_routes.end());
    model = {.service = &service,
             .tokenizer = &tokenizer,
             .format = &format,
             .forms = &forms,
             .metrics = &metrics,
             .version = o.version,
             .names = o.model_names,
             .any_name = o.any_model_name,
             .defaults = o.defaults,
             .thinking = o.thinking,
             .reasoning_field = o.reasoning_field,
             .max_queued = o.max_queued,
             .created_s = std::time(nullptr),
             .routes = routes,
             .on_fields = o.on_fields};
  }

  void take(std::shared_ptr<Exchange> exchange);
  void answer(const std::shared_ptr<Exchange>& exchange);
  void answer_guarded(const std::shared_ptr<Exchange>& exchange);
  Headers common_headers(const HttpRequest& request) const;
  void refuse(Exchange& exchange, const ApiError& error, Headers more = {});

  const ServerOptions options;
  std::vector<Route> routes;
  AccessRules access;
  std::atomic<bool> stopping{false};
  Metrics metrics;
  AnswerForms forms;
  ServedModel model;
  std::unique_ptr<Listener> http;  // outlives all exchanges, which the threads below hold
  EngineService service;
  Log plain_log{LogFormat::kText};
  Watch watch{options.watch, service, metrics, options.log != nullptr ? *options.log : plain_log};
  TaskQueue handlers{kHandlerThreads};  // for requests with a body, which may take seconds to read
  TaskQueue quick_handlers{1};          // for the others: a probe is not to wait for long prompts
};

// On the HTTP server's thread: what takes time is for the others.
void Server::State::take(std::shared_ptr<Exchange> exchange) {
  auto decorated = std::make_shared<DecoratedExchange>(exchange, common_headers(exchange->request()));
  TaskQueue& queue = exchange->request().body.empty() ? quick_handlers : handlers;
  queue.post([this, decorated] { answer_guarded(decorated); });
}

// What a handler throws before it has answered ends its request alone.
void Server::State::answer_guarded(const std::shared_ptr<Exchange>& exchange) {
  try {
    const Recovery recovery;
    answer(exchange);
  } catch (const std::exception& thrown) {
    refuse(*exchange, engine_failed(failure_of(thrown)));
  }
}

Headers Server::State::common_headers(const HttpRequest& request) const {
  Headers headers;
  if (const std::string* id = request.header("x-request-id")) headers.emplace_back("x-request-id", *id);
  const std::string* origin = request.header("origin");
  if (origin != nullptr && is_cors_origin(access, *origin)) {
    headers.emplace_back("Access-Control-Allow-Origin", *origin);
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
    headers.emplace_back("Vary", "Origin");
  }
  return headers;
}

void Server::State::refuse(Exchange& exchange, const ApiError& error, Headers more) {
  metrics.add_refusal();
  HttpResponse response = error_response(error, dialect_of(exchange.request()));
  response.headers.insert(response.headers.end(), more.begin(), more.end());
  exchange.respond(std::move(response));
}

void Server::State::answer(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (stopping) return refuse(*exchange, shutting_down());
  if (const std::optional<ApiError> error = check_origin(access, request)) return refuse(*exchange, *error);
  if (request.method == "OPTIONS") return exchange->respond({.status = 204, .content_type = ""});
  const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
  std::string other_methods;
  for (const Route& route : routes) {
    if (!matches(route, request.path)) continue;
    if (route.method != method) {
      other_methods.append(other_methods.empty() ? "" : ", ").append(route.method);
      continue;
    }
    const std::optional<ApiError> error = route.open ? std::nullopt : check_key(access, request);
    if (error) return refuse(*exchange, *error);
    return route.handle(model, exchange);
  }
  if (other_methods.empty()) return refuse(*exchange, unknown_route(request.method, request.path));
  refuse(*exchange,
         with_status(405, fmt::format("{} is not for {}; it takes {}", request.path, request.method, other_methods)),
         {{"Allow", other_methods}});
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() { stop(std::chrono::milliseconds(0)); }

std::unique_ptr<Server> Server::start(const ServerOptions& options, std::unique_ptr<Listener> listener, Engine& engine,
                                      const text::Tokenizer& tokenizer, const text::ChatFormat& format) {
  auto state = std::make_unique<State>(options, engine, tokenizer, format);
  State* s = state.get();
  s->access = {.api_keys = options.api_keys,
               .loopback_only = listener->loopback_only(),
               .allowed_hosts = options.allowed_hosts,
               .cors_origins = options.cors_origins};
  s->http = std::move(listener);
  s->http->hand_over([s](std::shared_ptr<Exchange> exchange) { s->take(std::move(exchange)); });
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options, Engine& engine,
                                              const text::Tokenizer& tokenizer, const text::ChatFormat& format) {
  LEVIN_ASSIGN(std::unique_ptr<Listener> listener, Listener::open(options.http));
  return start(options, std::move(listener), engine, tokenizer, format);
}

uint16_t Server::port() const { return state_->http->port(); }

std::string Server::metrics() const { return state_->metrics.text(); }

void Server::stop(std::chrono::milliseconds grace) {
  state_->stopping = true;
  state_->http->stop(grace, [this] { state_->service.shut_down(); });
}

}  // namespace levin::serve
