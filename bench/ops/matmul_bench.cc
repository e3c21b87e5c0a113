// Products at the shapes of the demonstration model, of DeepSeek-V3.2 and of V4-Flash's experts, as a share of what the
// machine can do.
//
//   bench_matmul --benchmark_filter='bf16.*T:1$'      name/[N,K]/types/kernel set/threads/T
//
// Weights rotate through copies of 256 MiB together, as they do in a step, so that a small one is not served from a
// near cache.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "support/op_bench.h"

namespace levin::bench {
namespace {

constexpr int64_t kWorkingSet = int64_t{256} << 20;

struct Case {
  int64_t n, k, n_rows;
  DType x, w;
  Isa isa;
  int n_threads;

  std::string name() const {
    return fmt::format("matmul/[{},{}]/{}_{}/{}/threads:{}/T:{}", n, k, dtype_name(x), dtype_name(w), isa_name(isa),
                       n_threads, n_rows);
  }
};

Matrix make_weights(DType dtype, int64_t n, int64_t k) {
  const std::vector<float> values = random_values(n * k);
  if (dtype == DType::kF32) return pack_matrix({.data = values.data(), .dtype = dtype, .n = n, .k = k});
  if (dtype == DType::kBF16) {
    std::vector<uint16_t> bf16(values.size());
    std::transform(values.begin(), values.end(), bf16.begin(), f32_to_bf16);
    return pack_matrix({.data = bf16.data(), .dtype = dtype, .n = n, .k = k});
  }
  if (is_fp4(dtype)) {
    std::vector<uint8_t> pairs(values.size() / 2);
    std::transform(values.begin(), values.begin() + static_cast<int64_t>(pairs.size()), pairs.begin(),
                   [](float v) { return static_cast<uint8_t>(128.0f + 127.0f * v); });
    const uint8_t scale = dtype == DType::kNvfp4 ? 0x2C : 120;
    const std::vector<uint8_t> scales(static_cast<size_t>(n * k / fp4_group(dtype)), scale);
    return pack_matrix({.data = pairs.data(), .dtype = dtype, .n = n, .k = k, .group_scales = scales.data()});
  }
  std::vector<uint8_t> codes(values.size());
  std::transform(values.begin(), values.end(), codes.begin(), [](float v) { return f32_to_e4m3(448.0f * v); });
  const std::vector<float> scales(static_cast<size_t>((n + 127) / 128 * ((k + 127) / 128)), 1.0f / 448.0f);
  return pack_matrix({.data = codes.data(), .dtype = dtype, .n = n, .k = k, .scales = scales.data()});
}

// Copies of one matrix, kept from one case to the next where it is the same.
const std::vector<Matrix>& weights_for(const Case& c) {
  static std::vector<Matrix> copies;
  static std::string made;
  const std::string wanted = fmt::format("{} {} {}", c.n, c.k, dtype_name(c.w));
  if (made == wanted) return copies;
  copies.clear();
  const int64_t n_copies = 1 + kWorkingSet / packed_matrix_bytes(c.w, c.n, c.k, true);
  for (int64_t i = 0; i < n_copies; ++i) copies.push_back(make_weights(c.w, c.n, c.k));
  made = wanted;
  return copies;
}

struct Rows {
  Buffer x, scale;
  View x_view, scale_view;
};

Rows make_rows(OpContext& ctx, const Case& c) {
  std::vector<float> values = random_values(c.n_rows * c.k);
  const View f32 = View::of(values.data(), {c.n_rows, c.k});
  Rows rows{.x = Buffer::for_tensor(c.x, {c.n_rows, c.k}),
            .scale = Buffer::for_tensor(DType::kF32, {c.n_rows, (c.k + 127) / 128}),
            .x_view = {},
            .scale_view = {}};
  rows.x_view = View(rows.x.data(), c.x, {c.n_rows, c.k});
  if (c.x == DType::kF32) std::copy(values.begin(), values.end(), rows.x_view.data<float>());
  if (c.x == DType::kBF16) ops::round_to_bf16(ctx, {.x = f32, .out = rows.x_view});
  if (c.x == DType::kF8E4M3) {
    rows.scale_view = View(rows.scale.data(), DType::kF32, {c.n_rows, (c.k + 127) / 128});
    ops::quantize_fp8(ctx, {.x = f32, .out = rows.x_view, .scale = rows.scale_view});
  }
  return rows;
}

void run_case(benchmark::State& state, const Case& c) {
  OpBench bench(c.isa, c.n_threads);
  const std::vector<Matrix>& weights = weights_for(c);
  const Rows rows = make_rows(bench.ctx(), c);
  const Buffer out = Buffer::for_tensor(DType::kF32, {c.n_rows, c.n});
  const Work work = {.gbytes = 1e-9 * static_cast<double>(weights[0].n_bytes()),
                     .gflop = 2e-9 * static_cast<double>(c.n_rows * c.n * c.k),
                     .in_bf16 = c.x != DType::kF32 && c.w != DType::kF32};
  size_t next = 0;
  measure(state, bench, work, [&] {
    ops::matmul(bench.ctx(), {.x = rows.x_view,
                              .x_scale = rows.scale_view,
                              .w = &weights[next],
                              .out = View(out.data(), DType::kF32, {c.n_rows, c.n})});
    next = (next + 1) % weights.size();
  });
}

void register_cases() {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1536, 7168}, {24576, 1536}, {7168, 2048}, {2048, 4096},
                                                     {4096, 2048}, {256, 384},    {384, 384}};
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},       {DType::kF32, DType::kF8E4M3},
                                                {DType::kBF16, DType::kBF16},     {DType::kBF16, DType::kF8E4M3},
                                                {DType::kF8E4M3, DType::kF8E4M3}, {DType::kF32, DType::kMxfp4},
                                                {DType::kBF16, DType::kMxfp4},    {DType::kF8E4M3, DType::kMxfp4},
                                                {DType::kF32, DType::kNvfp4},     {DType::kBF16, DType::kNvfp4}};
  const CpuInfo cpu = cpu_info();
  for (const auto& [n, k] : kShapes) {
    for (const auto& [x, w] : kTypes) {
      for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
        if (!is_usable(isa)) continue;
        for (const int n_threads : std::set<int>{1, cpu.n_cores}) {
          for (const int64_t n_rows : {1, 2, 4, 8, 64, 512}) {
            const Case c = {n, k, n_rows, x, w, isa, n_threads};
            benchmark::RegisterBenchmark(c.name().c_str(), [c](benchmark::State& state) { run_case(state, c); })
                ->Unit(benchmark::kMicrosecond)
                ->UseManualTime();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::run_benchmarks(argc, argv, levin::bench::register_cases); }
