// What the op benchmarks share: a machine to run on, the time of a call, and its share of the machine's limits.
//
// Time is the clock's, averaged over the calls. limit% is the time the machine would need at its limits (reading the
// bytes or doing the operations, whichever takes longer), at the rates that the same threads reach on bare loops
// between the calls, over the time taken; the label says which limit it is.
// Above 100: the bare loops were disturbed more than the calls.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "ops/cpu_backend.h"
#include "ops/machine_limits.h"

namespace levin::bench {

class OpBench {
 public:
  OpBench(Isa isa, int n_threads) : isa_(isa), pool_(n_threads), cpu_(pool_, arena_, isa), ctx_(op_context(cpu_)) {}
  OpContext& ctx() { return ctx_; }
  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }

 private:
  Isa isa_;
  ThreadPool pool_;
  Arena arena_;
  CpuBackend cpu_;
  OpContext ctx_;
};

// What one call reads and computes.
struct Work {
  double gbytes = 0;
  double gflop = 0;      // two for a multiply-add
  bool in_bf16 = false;  // of values that a set with instructions for bf16 multiplies by them
};

template <class Call>
void measure(benchmark::State& state, OpBench& bench, const Work& work, const Call& call) {
  LimitProbe probe(bench.pool());
  double total = 0, n_calls = 0;
  call();  // scratch memory is there after the first
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(took);
    total += took;
    n_calls += 1;
    probe.sample();
  }
  const MachineLimits limits = probe.limits();
  const double reading = work.gbytes / limits.read_gb_per_s;
  const double computing = work.gflop / gflop_per_s(limits, bench.isa(), work.in_bf16);
  const double seconds = total / n_calls;
  state.counters["us"] = 1e6 * seconds;
  state.counters["GB/s"] = work.gbytes / seconds;
  if (work.gflop > 0) state.counters["GFLOP/s"] = work.gflop / seconds;
  state.counters["limit%"] = 100 * std::max(reading, computing) / seconds;
  state.SetLabel(reading > computing ? "memory" : "arithmetic");
}

// n values from -1 to 1, the same in every run.
inline std::vector<float> random_values(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-23f;
  }
  return x;
}

// The main function of a program whose cases `register_cases` registers: its exit code.
inline int run_benchmarks(int argc, char** argv, void (*register_cases)()) {
  register_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace levin::bench
