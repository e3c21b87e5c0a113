// The one public door: a loaded model that answers requests.
//
//   EngineOptions options{.model_folder = "models/demo-v32", .n_threads = 2};
//   LEVIN_ASSIGN(std::unique_ptr<Engine> engine, Engine::load(options, {}));
//   LEVIN_ASSIGN(Generation answer, engine->generate({.prompt = ids, .max_tokens = 100}, [](int32_t token) { ...; return true; }));
//
// Tokens in, tokens out; text is the caller's. One request at a time. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/options.h"
#include "engine/runner.h"
#include "engine/trace.h"
#include "model/weight_table.h"

namespace levin {

struct GenerateRequest {
  std::vector<int32_t> prompt;       // token ids, not empty
  int64_t max_tokens = 0;            // 0: as many as the context holds
  std::vector<int32_t> stop_tokens;  // generation ends after one of these; it is part of the result
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

struct Generation {
  std::vector<int32_t> tokens;
  FinishReason finish_reason = FinishReason::kLength;
  double prefill_s = 0;
  double decode_s = 0;  // of all tokens after the first
};

class Engine {
 public:
  // Reads config and weights and sets the caches up. Errors name what is wrong with the model folder, the options or the memory.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options, const LoadProgress& progress);
  ~Engine();

  const ModelConfig& config() const;
  const Numerics& numerics() const;
  const std::vector<std::string>& warnings() const;  // of config and checkpoint, a sentence each
  int64_t max_context_tokens() const;                // prompt and answer together
  std::string describe() const;                      // model, numerics, kernels, threads, memory: lines for the start-up print

  // Greedy decoding. on_token sees every token as it comes; returning false ends the generation.
  Result<Generation> generate(const GenerateRequest& request, const std::function<bool(int32_t token)>& on_token);

  // Runs ids and keeps the tensors (engine/trace.h).
  Result<TraceResult> trace(const TraceOptions& options);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace levin
