// A model, served on a free port: the demonstration model unless the engine's options name another folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "arch/load_config.h"
#include "engine/engine.h"
#include "engine/tested_device.h"
#include "serve/http_client.h"
#include "serve/server.h"
#include "support/must.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace levin::test {

class ServedDemo {
 public:
  explicit ServedDemo(const serve::ServerOptions& wanted = {}, EngineOptions engine_options = {.max_running = 64}) {
    std::string& folder = engine_options.model_folder;
    if (folder.empty()) folder = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";
    engine_options.n_threads = 1;
    engine_options.n_spec_steps = 3;
    engine_options.max_model_len_tokens = 2048;
    engine_ = must(Engine::load(on_tested_device(engine_options), {}));
    tokenizer_ = std::make_unique<text::Tokenizer>(must(text::Tokenizer::load(folder)));
    format_ = std::make_unique<text::ChatFormat>(
        must(load_chat_format(*must(load_model_config(folder)).config.family, folder, *tokenizer_)));
    serve::ServerOptions options = wanted;
    options.http.port = 0;
    options.version = "test";
    if (options.model_names.empty()) options.model_names = {"demo", "other-name"};
    options.defaults.sampling.temperature = 0;
    if (options.defaults.sampling.stop_tokens.empty()) options.defaults.sampling.stop_tokens = {*tokenizer_->eos()};
    server_ = must(serve::Server::start(options, *engine_, *tokenizer_, *format_));
  }

  uint16_t port() const { return server_->port(); }
  serve::Server& server() { return *server_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatFormat> format_;
  std::unique_ptr<serve::Server> server_;
};

// The member of a document by its path, "choices.0.message.content"; null where there is none.
inline io::JsonValue at(const io::JsonValue& document, std::string_view path) {
  const io::JsonValue* value = &document;
  while (value != nullptr && !path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(key.size() + 1, path.size()));
    if (const io::JsonObject* object = value->as_object()) {
      value = object->find(key);
    } else {
      const io::JsonArray* array = value->as_array();
      const size_t place = static_cast<size_t>(std::atoi(std::string(key).c_str()));
      value = array != nullptr && place < array->size() ? &(*array)[place] : nullptr;
    }
  }
  return value != nullptr ? *value : io::JsonValue();
}

inline io::JsonValue json(const std::string& text) { return must(io::parse_json(text, "an answer")); }

}  // namespace levin::test
