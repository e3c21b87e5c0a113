#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "io/safetensors.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double mebibytes(int64_t n_bytes) { return static_cast<double>(n_bytes) / (1024.0 * 1024.0); }

// The tokens whose caches are set up: as asked, else as many as the model allows.
Result<int64_t> context_tokens(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_model_len_tokens > config.max_position) {
    return Error{ErrorKind::kUsage, fmt::format("--max-model-len {} is more than the model's {} positions; give at most that",
                                                options.max_model_len_tokens, config.max_position)};
  }
  return options.max_model_len_tokens > 0 ? options.max_model_len_tokens : config.max_position;
}

Result<ModelWeights> read_weights(const EngineOptions& options, const ModelConfig& config, const Numerics& numerics,
                                  const LoadProgress& progress, std::vector<std::string>* warnings) {
  if (options.load_format == LoadFormat::kDummy) return dummy_weights(config, numerics);
  LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(options.model_folder));
  ThreadPool pool(options.n_threads);
  return load_weights(config, numerics, checkpoint, pool, progress, warnings);
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

struct Engine::State {
  EngineOptions options;
  std::vector<std::string> warnings;
  int64_t n_context_tokens;
  Isa isa;
  double load_s = 0;
  Model model;
  Runner runner;

  State(EngineOptions o, std::vector<std::string> w, int64_t n_tokens, Isa chosen_isa, Model m)
      : options(std::move(o)), warnings(std::move(w)), n_context_tokens(n_tokens), isa(chosen_isa), model(std::move(m)),
        runner(model, {.n_threads = options.n_threads, .isa = isa, .n_cache_tokens = n_tokens + 1}) {}
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options, const LoadProgress& progress) {
  const Clock::time_point start = Clock::now();
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(options.model_folder));
  LEVIN_ASSIGN(const Numerics numerics, make_numerics(options.numerics, options.kv_cache_dtype));
  LEVIN_ASSIGN(const int64_t n_tokens, context_tokens(options, parsed.config));
  std::vector<std::string> warnings = std::move(parsed.warnings);
  LEVIN_ASSIGN(ModelWeights weights, read_weights(options, parsed.config, numerics, progress, &warnings));
  const Isa isa = options.isa.value_or(cpu_info().best_isa());
  Model model(std::move(parsed.config), numerics, std::move(weights));
  auto state = std::make_unique<State>(options, std::move(warnings), n_tokens, isa, std::move(model));
  state->load_s = seconds_since(start);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

const ModelConfig& Engine::config() const { return state_->model.config(); }
const Numerics& Engine::numerics() const { return state_->model.numerics(); }
const std::vector<std::string>& Engine::warnings() const { return state_->warnings; }
int64_t Engine::max_context_tokens() const { return state_->n_context_tokens; }

std::string Engine::describe() const {
  const ModelConfig& c = config();
  return fmt::format("model     {}, {} layers{}, {} experts ({} active), vocabulary {}\n"
                     "numerics  {}\n"
                     "kernels   {}, {} thread{}\n"
                     "cache     {} tokens, {:.1f} MiB\n"
                     "loaded    in {:.2f} s",
                     family_name(c.family), c.n_layers, state_->model.has_mtp() ? " and MTP" : "", c.n_experts, c.n_active, c.n_vocab,
                     numerics().describe(), isa_name(state_->isa), state_->options.n_threads,
                     state_->options.n_threads == 1 ? "" : "s", state_->n_context_tokens, mebibytes(state_->runner.cache_bytes()),
                     state_->load_s);
}

Result<Generation> Engine::generate(const GenerateRequest& request, const std::function<bool(int32_t token)>& on_token) {
  const int64_t n_prompt = static_cast<int64_t>(request.prompt.size());
  if (n_prompt == 0) return Error{ErrorKind::kUsage, "the prompt is empty"};
  if (n_prompt >= state_->n_context_tokens) {
    return Error{ErrorKind::kUsage, fmt::format("the prompt has {} tokens and the context {}; shorten the prompt or raise --max-model-len",
                                                n_prompt, state_->n_context_tokens)};
  }
  const int64_t room = state_->n_context_tokens - n_prompt;
  const int64_t max_tokens = request.max_tokens > 0 ? std::min(request.max_tokens, room) : room;

  Runner& runner = state_->runner;
  BlockTable table(runner.pages());
  LEVIN_TRY(table.grow(n_prompt + max_tokens));
  const auto run = [&](std::span<const int32_t> tokens, int64_t first_position) {
    runner.begin_step();
    const SequenceChunk chunk{.tokens = tokens, .first_position = static_cast<int32_t>(first_position), .pages = table.pages()};
    const View hidden = runner.trunk({&chunk, 1});
    return hidden.slice_first(hidden.dim(0) - 1, 1);
  };
  const auto choose = [&](View hidden) { return runner.argmax(runner.logits(hidden)).front(); };

  Generation out;
  const Clock::time_point start = Clock::now();
  int32_t token = -1;
  for (int64_t begin = 0; begin < n_prompt; begin += state_->options.chunk_tokens) {
    const int64_t count = std::min(state_->options.chunk_tokens, n_prompt - begin);
    const View last = run(std::span(request.prompt).subspan(begin, count), begin);
    if (begin + count == n_prompt) token = choose(last);
  }
  out.prefill_s = seconds_since(start);

  const Clock::time_point decode_start = Clock::now();
  while (true) {
    out.tokens.push_back(token);
    const bool wanted = on_token(token);
    if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end()) {
      out.finish_reason = FinishReason::kStop;
      break;
    }
    const int64_t n_generated = static_cast<int64_t>(out.tokens.size());
    if (!wanted) out.finish_reason = FinishReason::kCancelled;
    if (!wanted || n_generated == max_tokens) break;
    token = choose(run({&token, 1}, n_prompt + n_generated - 1));
  }
  out.decode_s = seconds_since(decode_start);
  return out;
}

Result<TraceResult> Engine::trace(const TraceOptions& options) { return levin::trace(state_->runner, options); }

}  // namespace levin
