// What the op benchmarks share: a machine to run on, the fastest of many calls, and its share of the machine's limits.
//
// Counters come from the fastest call, which is the one nobody disturbed. `limit` is the time the machine would need at
// its measured limits (reading the bytes or doing the operations, whichever takes longer) over the time taken.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "ops/context.h"
#include "support/machine_limits.h"

namespace levin::bench {

class OpBench {
 public:
  OpBench(Isa isa, int n_threads) : pool_(n_threads), ctx_(cpu_context(pool_, arena_, isa)) {}
  OpContext& ctx() { return ctx_; }

 private:
  ThreadPool pool_;
  Arena arena_;
  OpContext ctx_;
};

inline const MachineLimits& limits_of(int n_threads) {
  static std::map<int, MachineLimits> known;
  const auto found = known.find(n_threads);
  return found != known.end() ? found->second : known.emplace(n_threads, measure_machine(n_threads)).first->second;
}

// What one call reads and computes.
struct Work {
  double gbytes = 0;
  double gflop = 0;  // by f32 fused multiply-adds, two each
};

template <class Call>
void measure(benchmark::State& state, int n_threads, const Work& work, const Call& call) {
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const MachineLimits& limits = limits_of(n_threads);
  state.counters["us"] = 1e6 * best;
  state.counters["GB/s"] = work.gbytes / best;
  if (work.gflop > 0) state.counters["GFLOP/s"] = work.gflop / best;
  state.counters["limit"] = std::max(work.gbytes / limits.read_gb_per_s, work.gflop / limits.fma_gflop_per_s) / best;
}

}  // namespace levin::bench
