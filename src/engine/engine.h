// The one public door: a loaded model that answers requests.
//
//   EngineOptions options{.model_folder = "models/demo-v32", .n_threads = 2};
//   LEVIN_ASSIGN(std::unique_ptr<Engine> engine, Engine::load(options, {}));
//   LEVIN_ASSIGN(Generation answer, engine->generate({.prompt = ids, .max_tokens = 100, .on_token = [](const
//   TokenEvent& e) { ... }}));
//
// Tokens in, tokens out; text is the caller's. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/bench.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/trace.h"
#include "kv/page_store.h"
#include "model/weight_table.h"
#include "sched/scheduler.h"

namespace levin {

// Requests that run and wait, pages, what the prefix cache and the disk saved.
struct EngineLoad : SchedulerCounts {
  PageStoreCounts store;
  int64_t n_memory_pages = 0;  // of prefixes that are kept beside the caches (kv/page_memory.h)
  int64_t n_memory_bytes = 0;
  int64_t n_restored_tokens = 0;  // of those that were looked up: read from the disk
  int64_t n_late_graphs = 0;      // of a device, recorded after load()
};

class Engine {
 public:
  // Reads config and weights and sets the caches up. Errors name what is wrong with the model folder, the options or
  // the memory.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options, const LoadProgress& progress);
  ~Engine();

  const EngineOptions& options() const;  // as load() got them
  const ModelConfig& config() const;
  const Numerics& numerics() const;
  const std::vector<std::string>& warnings() const;  // of config and checkpoint, a sentence each
  int64_t max_context_tokens() const;                // prompt and answer together
  // Model, numerics, kernels, threads, memory: lines for the start-up print
  double load_seconds() const;
  std::string describe() const;

  // ---- many requests at once: submit, step until each is taken ----
  Status check(const GenerateRequest& request) const;  // what submit() would refuse; from any thread
  Result<RequestId> submit(GenerateRequest request);
  bool step();                                     // one step for all; false: nothing is left to do
  void cancel(RequestId id);                       // it has part in no later step, and ends with what it has
  std::unique_ptr<Generation> take(RequestId id);  // of a finished request, once; nullptr while it runs
  EngineLoad load() const;
  const StepTimes& last_step() const;
  StepPhase phase() const;  // from any thread

  // ---- one thing after the other; nothing else may be running ----

  // Runs one request to its end.
  Result<Generation> generate(GenerateRequest request);

  // Log probability of every id given the ones before it (raw, temperature 1); 0 for the first. Nothing is kept.
  Result<std::vector<double>> score(const std::vector<int32_t>& ids);

  // Speed of one case (engine/bench.h); bench_cache_tokens() of it must fit the cache.
  Result<BenchRow> bench(const BenchCase& what, const BenchOptions& options);

  // Runs ids and keeps the tensors (engine/trace.h).
  Result<TraceResult> trace(const TraceOptions& options);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace levin
