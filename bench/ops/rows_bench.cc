// Row work at the widths of DeepSeek-V3.2: norms, rotation, activation, expert choice, argmax.
//
//   bench_rows --benchmark_filter=rms_norm      op/[shape]/kernel set     one thread
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/logits.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "support/op_bench.h"

namespace levin::bench {
namespace {

// Bytes read and written; rows stay in the nearer caches, so a share of the memory's limit may be above 1.
Work bytes(int64_t n) { return {.gbytes = 1e-9 * static_cast<double>(n)}; }

void run_rms_norm(benchmark::State& state, Isa isa) {
  constexpr int64_t kRows = 32, kWidth = 7168;
  OpBench bench(isa, 1);
  std::vector<float> x = random_values(kRows * kWidth), weight = random_values(kWidth), out(x.size());
  measure(state, bench, bytes(8 * kRows * kWidth), [&] {
    ops::rms_norm(bench.ctx(), {.x = View::of(x.data(), {kRows, kWidth}),
                                .weight = View::of(weight.data(), {kWidth}),
                                .eps = 1e-6f,
                                .out = View::of(out.data(), {kRows, kWidth})});
  });
}

void run_rope(benchmark::State& state, Isa isa, ops::RopePairing pairing) {
  constexpr int64_t kRows = 32, kHeads = 128, kWidth = 64;
  OpBench bench(isa, 1);
  // sin = 0 and cos = 1 keep the values what they are however often they turn.
  std::vector<float> x = random_values(kRows * kHeads * kWidth), cos(kRows * kWidth / 2, 1.0f), sin(kRows * kWidth / 2);
  measure(state, bench, bytes(8 * kRows * kHeads * kWidth), [&] {
    ops::rope(bench.ctx(), {.x = View::of(x.data(), {kRows, kHeads, kWidth}),
                            .cos = View::of(cos.data(), {kRows, kWidth / 2}),
                            .sin = View::of(sin.data(), {kRows, kWidth / 2}),
                            .pairing = pairing});
  });
}

void run_silu(benchmark::State& state, Isa isa) {
  constexpr int64_t kRows = 32, kWidth = 2048;
  OpBench bench(isa, 1);
  std::vector<float> gate = random_values(kRows * kWidth), up = random_values(kRows * kWidth), out(gate.size());
  measure(state, bench, bytes(12 * kRows * kWidth), [&] {
    ops::silu_mul(bench.ctx(), {.gate = View::of(gate.data(), {kRows, kWidth}),
                                .up = View::of(up.data(), {kRows, kWidth}),
                                .out = View::of(out.data(), {kRows, kWidth})});
  });
}

void run_route(benchmark::State& state, Isa isa) {
  constexpr int64_t kRows = 32, kExperts = 256, kActive = 8;
  OpBench bench(isa, 1);
  std::vector<float> logits = random_values(kRows * kExperts), bias(kExperts), weights(kRows * kActive);
  std::vector<int32_t> topk(kRows * kActive);
  measure(state, bench, bytes(4 * kRows * kExperts), [&] {
    ops::route_experts(bench.ctx(), {.logits = View::of(logits.data(), {kRows, kExperts}),
                                     .bias = View::of(bias.data(), {kExperts}),
                                     .n_groups = 8,
                                     .n_groups_kept = 4,
                                     .factor = 2.5f,
                                     .topk = View::of(topk.data(), {kRows, kActive}),
                                     .weights = View::of(weights.data(), {kRows, kActive})});
  });
}

void run_argmax(benchmark::State& state, Isa isa) {
  constexpr int64_t kVocab = 129280;
  OpBench bench(isa, 1);
  std::vector<float> x = random_values(kVocab);
  std::vector<int32_t> out(1);
  measure(state, bench, bytes(4 * kVocab),
          [&] { ops::argmax(bench.ctx(), {.x = View::of(x.data(), {1, kVocab}), .out = View::of(out.data(), {1})}); });
}

template <class Body>
void add(const std::string& name, const Body& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMicrosecond)->UseManualTime();
}

void register_cases() {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (!is_usable(isa)) continue;
    const std::string_view set = isa_name(isa);
    add(fmt::format("rms_norm/[32,7168]/{}", set), [isa](benchmark::State& s) { run_rms_norm(s, isa); });
    add(fmt::format("rope_interleaved/[32,128,64]/{}", set),
        [isa](benchmark::State& s) { run_rope(s, isa, ops::RopePairing::kInterleaved); });
    add(fmt::format("rope_half_split/[32,128,64]/{}", set),
        [isa](benchmark::State& s) { run_rope(s, isa, ops::RopePairing::kHalfSplit); });
    add(fmt::format("silu_mul/[32,2048]/{}", set), [isa](benchmark::State& s) { run_silu(s, isa); });
    add(fmt::format("route_experts/[32,256]/{}", set), [isa](benchmark::State& s) { run_route(s, isa); });
    add(fmt::format("argmax/[1,129280]/{}", set), [isa](benchmark::State& s) { run_argmax(s, isa); });
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::run_benchmarks(argc, argv, levin::bench::register_cases); }
