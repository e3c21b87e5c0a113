// Any body for any route: one whole answer, never a 500, and the errors are JSON. The first byte says which route.
//
// The engine is the demonstration model with dummy weights, and no place in it is free: so everything is done with a
// request but computing it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "arch/load_config.h"
#include "base/check.h"
#include "engine/engine.h"
#include "io/json.h"
#include "serve/answer_form.h"
#include "serve/anthropic_messages.h"
#include "serve/openai_chat.h"
#include "serve/openai_completions.h"
#include "serve/openai_responses.h"
#include "serve/utility_routes.h"
#include "text/chat.h"
#include "text/tokenizer.h"

using namespace levin;
using namespace levin::serve;

namespace {

const std::string kFolder = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";

template <class T>
T must(Result<T> result) {
  LEVIN_CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

// All that handlers see of a server.
struct Served {
  std::unique_ptr<Engine> engine = must(
      Engine::load({.model_folder = kFolder, .load_format = LoadFormat::kDummy, .max_model_len_tokens = 1024}, {}));
  text::Tokenizer tokenizer = must(text::Tokenizer::load(kFolder));
  text::ChatFormat format = must(load_chat_format(*must(load_model_config(kFolder)).config.family, kFolder, tokenizer));
  Metrics metrics{"demo"};
  EngineService service{*engine, metrics};
  AnswerForms forms{tokenizer, format, engine->config().n_vocab};
  ServedModel model;
  Served() {
    model.service = &service;
    model.tokenizer = &tokenizer;
    model.format = &format;
    model.forms = &forms;
    model.metrics = &metrics;
    model.version = "fuzz";
    model.names = {"demo"};
    model.any_name = true;
    model.max_queued = 0;
  }
};

class Recorder final : public Exchange {
 public:
  explicit Recorder(HttpRequest request) : request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    ++n_answers_;
    answer_ = std::move(response);
  }
  void begin_stream(HttpResponse) override { LEVIN_CHECK(false, "a stream was begun without a place in the engine"); }
  void send(std::string) override {}
  void end() override {}
  void on_disconnect(std::function<void()>) override {}

  void check() const {
    LEVIN_CHECK(n_answers_ == 1, "{} answers to one request", n_answers_);
    LEVIN_CHECK(answer_.status == 200 || (answer_.status >= 400 && answer_.status < 500), "status {}: {}",
                answer_.status, answer_.body);
    const Result<io::JsonValue> body = io::parse_json(answer_.body, "the answer");
    LEVIN_CHECK(body.ok(), "{}: {}", body.ok() ? "" : body.error().message, answer_.body);
  }

 private:
  HttpRequest request_;
  HttpResponse answer_;
  int n_answers_ = 0;
};

using Handler = void (*)(const ServedModel&, const std::shared_ptr<Exchange>&);
constexpr std::pair<const char*, Handler> kRoutes[] = {
    {"/v1/chat/completions", handle_chat_completions},
    {"/v1/completions", handle_completions},
    {"/v1/responses", handle_responses},
    {"/v1/messages", handle_messages},
    {"/v1/messages/count_tokens", handle_count_tokens},
    {"/tokenize", handle_tokenize},
    {"/detokenize", handle_detokenize},
    {"/render", handle_render},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Served served;
  if (size == 0) return 0;
  const auto& [path, handle] = kRoutes[data[0] % std::size(kRoutes)];
  HttpRequest request{.method = "POST", .path = path};
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto exchange = std::make_shared<Recorder>(std::move(request));
  handle(served.model, exchange);
  exchange->check();
  return 0;
}
