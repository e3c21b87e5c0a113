// The experts of one layer of DeepSeek-V3.2's shape with a quarter of its experts, and the rounding of activations.
//
//   bench_expert_ffn      expert_ffn/input_weights/kernel set/threads/T, ...
//
// A token selects 8 of 64 experts (of 256 in the model) and the shared one. At T = 1 the weights of 9 blocks are read;
// with more tokens each expert's weights are read once for all the rows that selected it.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <set>
#include <string>
#include <vector>

#include "ops/moe.h"
#include "ops/quantize.h"
#include "support/op_bench.h"

namespace levin::bench {
namespace {

constexpr int64_t kD = 7168, kF = 2048, kExperts = 64, kActive = 8;

Matrix make_weights(DType dtype, int64_t n, int64_t k) {
  std::vector<uint8_t> codes(static_cast<size_t>(dtype == DType::kMxfp4 ? n * k / 2 : n * k));
  uint32_t state = 1;
  for (uint8_t& c : codes) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<uint8_t>((state >> 24) & 0xBF);  // magnitudes below 2
  }
  if (dtype == DType::kMxfp4) {
    const std::vector<uint8_t> scales(static_cast<size_t>(n * k / kMxGroup), 120);
    return pack_matrix({.data = codes.data(), .dtype = dtype, .n = n, .k = k, .group_scales = scales.data()});
  }
  const std::vector<float> scales(static_cast<size_t>((n + 127) / 128 * ((k + 127) / 128)), 0.01f);
  return pack_matrix({.data = codes.data(), .dtype = DType::kF8E4M3, .n = n, .k = k, .scales = scales.data()});
}

ops::FfnWeights make_ffn(DType dtype) {
  ops::FfnWeights w;
  w.gate = make_weights(dtype, kF, kD);
  w.up = make_weights(dtype, kF, kD);
  w.down = make_weights(dtype, kD, kF);
  return w;
}

// The experts and the shared one last, kept from one case to the next where the type is the same.
std::vector<ops::FfnWeights>& experts(DType dtype) {
  static std::vector<ops::FfnWeights> all;
  if (!all.empty() && all[0].gate.dtype() == dtype) return all;
  all.clear();
  for (int64_t e = 0; e <= kExperts; ++e) all.push_back(make_ffn(dtype));
  return all;
}

struct Case {
  ops::Operand operand;
  DType weights;
  Isa isa;
  int n_threads;
  int64_t n_tokens;
};

void run_experts(benchmark::State& state, const Case& c) {
  OpBench bench(c.isa, c.n_threads);
  std::vector<ops::FfnWeights>& all = experts(c.weights);
  for (ops::FfnWeights& w : all) w.input = w.hidden = c.operand;
  std::vector<float> x(static_cast<size_t>(c.n_tokens * kD)), out(x.size()),
      weights(static_cast<size_t>(c.n_tokens * kActive), 0.1f);
  std::vector<int32_t> topk;
  std::set<int32_t> picked;
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(static_cast<int64_t>(i * 37 % 201) - 100);
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    for (int64_t a = 0; a < kActive; ++a) {
      topk.push_back(static_cast<int32_t>(a * (kExperts / kActive) + t * 5 % (kExperts / kActive)));
      picked.insert(topk.back());
    }
  }
  const double blocks = static_cast<double>(picked.size()) + 1;
  const Work work = {.gbytes = 3e-9 * blocks * static_cast<double>(all[0].gate.n_bytes()),
                     .gflop = 2e-9 * static_cast<double>(c.n_tokens * (kActive + 1) * 3 * kD * kF),
                     .in_bf16 = c.operand != ops::Operand::kF32};
  measure(state, bench, work, [&] {
    ops::expert_ffn(bench.ctx(), {.x = View::of(x.data(), {c.n_tokens, kD}),
                                  .topk = View::of(topk.data(), {c.n_tokens, kActive}),
                                  .weights = View::of(weights.data(), {c.n_tokens, kActive}),
                                  .experts = std::span(all).first(kExperts),
                                  .shared = &all.back(),
                                  .out = View::of(out.data(), {c.n_tokens, kD})});
  });
}

void run_rounding(benchmark::State& state, Isa isa, const std::string& op) {
  constexpr int64_t kRows = 512, kHeads = 64, kIndex = 128;
  OpBench bench(isa, 1);
  std::vector<float> x(static_cast<size_t>(kRows * kHeads * kIndex));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(static_cast<int64_t>(i * 37 % 201) - 100);
  constexpr int64_t kK = kHeads * kIndex;
  std::vector<uint16_t> bf16(x.size());
  std::vector<uint8_t> codes(x.size());
  std::vector<float> scales(static_cast<size_t>(kRows * kK / 128));
  const View view = View::of(x.data(), {kRows, kK});
  measure(state, bench, {.gbytes = 4e-9 * static_cast<double>(x.size())}, [&] {
    if (op == "round_to_bf16") ops::round_to_bf16(bench.ctx(), {.x = view, .out = View::of(bf16.data(), {kRows, kK})});
    if (op == "hadamard") ops::hadamard(bench.ctx(), {.x = View::of(x.data(), {kRows, kHeads, kIndex})});
    if (op == "quantize_fp8") {
      ops::quantize_fp8(
          bench.ctx(),
          {.x = view, .out = View::of(codes.data(), {kRows, kK}), .scale = View::of(scales.data(), {kRows, kK / 128})});
    }
  });
}

void register_experts(DType weights, Isa isa, int n_threads) {
  for (const auto& [operand, input] : {std::pair{ops::Operand::kBF16, "bf16"}, {ops::Operand::kFp8, "fp8"}}) {
    for (const int64_t n_tokens : {1, 4, 32, 256}) {
      const Case c = {operand, weights, isa, n_threads, n_tokens};
      const std::string name = fmt::format("expert_ffn/{}_{}/{}/threads:{}/T:{}", input, dtype_name(weights),
                                           isa_name(isa), n_threads, n_tokens);
      benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_experts(state, c); })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime();
    }
  }
}

void register_cases() {
  const CpuInfo cpu = cpu_info();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (!is_usable(isa)) continue;
    for (const char* op : {"round_to_bf16", "quantize_fp8", "hadamard"}) {
      benchmark::RegisterBenchmark(fmt::format("{}/[512,8192]/{}", op, isa_name(isa)).c_str(),
                                   [isa, op](benchmark::State& state) { run_rounding(state, isa, op); })
          ->Unit(benchmark::kMicrosecond)
          ->UseManualTime();
    }
  }
  for (const DType weights : {DType::kF8E4M3, DType::kMxfp4}) {
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
      if (!is_usable(isa)) continue;
      for (const int n_threads : std::set<int>{1, cpu.n_cores}) register_experts(weights, isa, n_threads);
    }
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::run_benchmarks(argc, argv, levin::bench::register_cases); }
