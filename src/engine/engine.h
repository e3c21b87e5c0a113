// The public interface of the engine: a loaded model that generates tokens for requests.
//
//   EngineOptions options{.model_folder = "models/demo-v32", .n_threads = 2};
//   LEVIN_ASSIGN(std::unique_ptr<Engine> engine, Engine::load(options, {}));
//   LEVIN_ASSIGN(Generation answer, engine->generate({.prompt = ids, .max_tokens = 100, .on_token = [](const
//   TokenEvent& e) { ... }}));
//
// Prompts and answers are token ids; tokenizing is left to the caller (text/tokenizer.h). An Engine may be used by one
// thread at a time, except for the functions marked "from any thread".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/options.h"
#include "engine/request.h"

namespace levin {

struct ModelConfig;   // model/config.h
struct Numerics;      // model/numerics.h
struct LoadProgress;  // model/weight_table.h
struct EngineLoad;    // engine/engine_load.h
struct BenchCase;     // engine/bench.h
struct BenchOptions;
struct BenchRow;
struct TraceOptions;  // engine/trace.h
struct TraceResult;

// Of reading weights, or making dummies, until they lie where ops read them.
struct WeightsLoad {
  int64_t n_bytes = 0;  // there
  double seconds = 0;

  double gb_per_s() const { return seconds > 0 ? static_cast<double>(n_bytes) / seconds / 1e9 : 0; }
};

class Engine {
 public:
  // Reads config and weights and allocates the caches. `progress` is called while weights are read; {}: no calls.
  // Errors name what is wrong: kUsage for options, kModelInvalid for the model folder, kOutOfMemory, kNoDevice.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options, const LoadProgress& progress);
  ~Engine();

  const EngineOptions& options() const;  // as passed to load()
  const ModelConfig& config() const;
  const Numerics& numerics() const;
  const std::vector<std::string>& warnings() const;  // about config and checkpoint, one sentence each
  bool can_draft() const;                            // the checkpoint has layers that draft
  int64_t max_context_tokens() const;                // maximum length of prompt and answer together
  double load_seconds() const;                       // duration of load()
  const WeightsLoad& weights_load() const;           // the part of it that read the weights
  std::string_view kernel_set() const;               // "avx2", "cuda-sm90"
  std::string describe() const;  // model, numerics, kernels, threads, cache: lines to print at start

  // ---- many requests at once: submit, step until each is taken ----
  Status check(const GenerateRequest& request) const;  // the error that submit() would return; from any thread
  // Queues a request. Errors: kUsage names an invalid field, kRuntime means that the queue is full, kOutOfMemory that
  // the request could never fit the cache.
  Result<RequestId> submit(GenerateRequest request);
  bool step();                // runs one step for all requests; false: nothing is left to do
  void finish_records();      // waits for block records that a device still copies; step() does at the end
  void cancel(RequestId id);  // the request is in no later step; it ends with the tokens it has
  std::unique_ptr<Generation> take(RequestId id);  // result of a finished request, once; nullptr while it runs
  EngineLoad load() const;
  const StepTimes& last_step() const;
  StepPhase phase() const;  // from any thread

  // ---- single calls; no request may be open ----

  // Submits one request and steps until it has finished.
  Result<Generation> generate(GenerateRequest request);

  // Natural logarithm of the probability of every id given the preceding ones (raw, temperature 1), one for each; 0 for
  // the first. Leaves no rows cached. kUsage for more ids than the context or one outside the vocabulary.
  Result<std::vector<double>> score(const std::vector<int32_t>& ids);

  // Measures one case (engine/bench.h); the cache must have room for bench_cache_tokens().
  Result<BenchRow> bench(const BenchCase& what, const BenchOptions& options);

  // Runs token ids and returns logits, hidden rows and top-k indices (engine/trace.h).
  Result<TraceResult> trace(const TraceOptions& options);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace levin
