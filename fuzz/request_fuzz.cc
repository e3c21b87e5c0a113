// Any body for any route, to its last token: one answer, never a 500 or a hang, whole ones and errors in JSON, streams in events.
//
// The low three bits of the first byte say which route, the next two which model: one with pages alone, with windows and entries, or
// with recurrent state. Its high bit says whether the engine has a place free: without one everything is done with a request
// but computing it, a thousand times as fast; with one the request runs, through sampling, structures and drafts, on dummy
// weights with a demonstration model's vocabulary. Requests of one run find prefixes of those before, in chunks that are
// shorter than the longest prompts.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
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

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;
constexpr std::chrono::seconds kPatience{600};  // a request takes a second, and much longer beside other work

constexpr const char* kSmallConfig = R"({
  "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "vocab_size": 4096, "hidden_size": 32,
  "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_nextn_predict_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "n_shared_experts": 1, "n_routed_experts": 4,
  "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 1, "q_lora_rank": 16,
  "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "index_n_heads": 2,
  "index_head_dim": 16, "index_topk": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "max_position_embeddings": 4096, "tie_word_embeddings": false, "attention_bias": false, "bos_token_id": 0,
  "eos_token_id": 1, "rope_theta": 10000.0})";

// A demonstration model's tokenizer, and a fixture's config with as many tokens; no fixture: the small config.
struct Family {
  const char* demo;
  const char* fixture = nullptr;
};
constexpr Family kFamilies[] = {{"demo-v32"}, {"demo-v32", "v4-flash"}, {"demo-v32"}, {"demo-glm", "glm-next"}};

std::string config_of(const Family& family) {
  if (family.fixture == nullptr) return kSmallConfig;
  std::ifstream file(kSource / "tests/fixtures" / family.fixture / "config.json");
  std::string config((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr std::string_view kVocab = "\"vocab_size\": 320";
  const size_t place = config.find(kVocab);
  LEVIN_CHECK(place != std::string::npos, "{} is not of 320 tokens", family.fixture);
  return config.replace(place, kVocab.size(), "\"vocab_size\": 4096");
}

// In a folder of this process.
std::string model_folder(const Family& family) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      fmt::format("fuzz_request.{}.{}", ::getpid(), family.fixture == nullptr ? "small" : family.fixture);
  std::filesystem::create_directories(folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    std::filesystem::copy_file(kSource / "models" / family.demo / name, folder / name,
                               std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder / "config.json") << config_of(family);
  return folder.string();
}

template <class T>
T must(Result<T> result) {
  LEVIN_CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

// All that handlers see of a server.
struct Served {
  std::string folder;
  std::unique_ptr<Engine> engine = must(Engine::load({.model_folder = folder,
                                                      .load_format = LoadFormat::kDummy,
                                                      .chunk_tokens = 96,
                                                      .n_spec_steps = 2,
                                                      .prefix_memory_bytes = 16 << 20,
                                                      .max_model_len_tokens = 512},
                                                     {}));
  text::Tokenizer tokenizer = must(text::Tokenizer::load(folder));
  text::ChatFormat format = must(load_chat_format(*must(load_model_config(folder)).config.family, folder, tokenizer));
  Metrics metrics{"demo"};
  EngineService service{*engine, metrics};
  AnswerForms forms{tokenizer, format, engine->config().n_vocab};
  ServedModel model;
  ~Served() { std::filesystem::remove_all(folder); }
  explicit Served(const Family& family) : folder(model_folder(family)) {
    model.service = &service;
    model.tokenizer = &tokenizer;
    model.format = &format;
    model.forms = &forms;
    model.metrics = &metrics;
    model.version = "fuzz";
    model.names = {"demo"};
    model.any_name = true;
  }
};

// What a client sees of one answer.
class Recorder final : public Exchange {
 public:
  explicit Recorder(HttpRequest request) : request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    ++n_answers_;
    answer_ = std::move(response);
    over_ = true;
    changed_.notify_all();
  }
  void begin_stream(HttpResponse head) override {
    const std::lock_guard lock(mutex_);
    ++n_answers_;
    answer_ = std::move(head);
    streams_ = true;
  }
  void send(std::string bytes) override {
    const std::lock_guard lock(mutex_);
    stream_ += bytes;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  void on_disconnect(std::function<void()>) override {}

  void check() {
    std::unique_lock lock(mutex_);
    LEVIN_CHECK(changed_.wait_for(lock, kPatience, [&] { return over_; }), "no answer in {} s", kPatience.count());
    LEVIN_CHECK(n_answers_ == 1, "{} answers to one request", n_answers_);
    LEVIN_CHECK(answer_.status == 200 || (answer_.status >= 400 && answer_.status < 500), "status {}: {}",
                answer_.status, answer_.body);
    streams_ ? check_events() : check_json(answer_.body);
  }

 private:
  static void check_json(const std::string& text) {
    const Result<io::JsonValue> body = io::parse_json(text, "the answer");
    LEVIN_CHECK(body.ok(), "{}: {}", body.ok() ? "" : body.error().message, text);
  }
  // Lines of "event:", "data:" and comments; data is JSON, or the last one [DONE].
  void check_events() const {
    for (size_t begin = 0; begin < stream_.size();) {
      const size_t end = std::min(stream_.find('\n', begin), stream_.size());
      const std::string line = stream_.substr(begin, end - begin);
      if (line.starts_with("data: ") && line != "data: [DONE]") check_json(line.substr(6));
      LEVIN_CHECK(line.empty() || line.starts_with("data: ") || line.starts_with("event: ") || line.starts_with(":"),
                  "a stream with the line \"{}\"", line);
      begin = end + 1;
    }
  }

  HttpRequest request_;
  std::mutex mutex_;
  std::condition_variable changed_;
  HttpResponse answer_;
  std::string stream_;
  int n_answers_ = 0;
  bool streams_ = false, over_ = false;
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
  static std::array<std::unique_ptr<Served>, std::size(kFamilies)> all_served;
  if (size == 0) return 0;
  constexpr uint8_t kRuns = 0x80;
  const auto& [path, handle] = kRoutes[data[0] % std::size(kRoutes)];
  const size_t family = data[0] / std::size(kRoutes) % std::size(kFamilies);
  if (!all_served[family]) all_served[family] = std::make_unique<Served>(kFamilies[family]);
  Served& served = *all_served[family];
  served.model.max_queued = (data[0] & kRuns) != 0 ? 8 : 0;
  HttpRequest request{.method = "POST", .path = path};
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto exchange = std::make_shared<Recorder>(std::move(request));
  handle(served.model, exchange);
  exchange->check();
  return 0;
}
