// Sparse latent attention at the shape of DeepSeek-V3.2: 128 heads, 512 + 64 columns, 2048 indices spread over 16384
// cached tokens.
//
//   bench_sparse_attention --benchmark_filter='bf16.*threads:1/T:1/'      attention/rows/kernel set/threads/T
#include <fmt/core.h>

#include <cstring>
#include <set>
#include <vector>

#include "ops/cache_rows.h"
#include "ops/sparse_attention.h"
#include "support/op_bench.h"

namespace levin::bench {
namespace {

constexpr int64_t kHeads = 128, kLatent = 512, kRope = 64, kTopk = 2048, kCached = 16384;

struct Case {
  CacheDType rows;
  Isa isa;
  int n_threads;
  int64_t n_tokens;

  std::string name() const {
    return fmt::format("attention/{}/{}/threads:{}/T:{}", cache_dtype_name(rows), isa_name(isa), n_threads, n_tokens);
  }
};

Buffer filled(int64_t n) {
  Buffer buffer = Buffer::for_tensor(DType::kF32, {n});
  std::memcpy(buffer.data(), random_values(n).data(), static_cast<size_t>(n) * sizeof(float));
  return buffer;
}

void run_case(benchmark::State& state, const Case& c) {
  OpBench bench(c.isa, c.n_threads);
  const LatentFormat format = latent_format(c.rows, kLatent, kRope);
  const int64_t n_pages = kCached / kPageTokens, t = c.n_tokens;
  const Buffer pages(n_pages * format.page_bytes());
  std::vector<int32_t> table, slots, seqs(kCached, 0), topk;
  for (int32_t i = 0; i < n_pages; ++i) table.push_back(static_cast<int32_t>(i * 37 % n_pages));
  for (int32_t i = 0; i < kCached; ++i) slots.push_back(i);
  // Every token selects one of each eight neighbours, another one than the token before it.
  for (int64_t row = 0; row < t; ++row) {
    for (int64_t i = 0; i < kTopk; ++i) topk.push_back(static_cast<int32_t>(i * 8 + (i * 5 + row) % 8));
  }
  const PagedRows cache{
      .pages = pages.data(), .page_bytes = format.page_bytes(), .tables = View::of(table.data(), {1, n_pages})};
  const Buffer latent = filled(kCached * kLatent), rope = filled(kCached * kRope);
  ops::append_latent(bench.ctx(), {.c_kv = View(latent.data(), DType::kF32, {kCached, kLatent}),
                                   .k_rope = View(rope.data(), DType::kF32, {kCached, kRope}),
                                   .seq = View::of(seqs.data(), {kCached}),
                                   .slot = View::of(slots.data(), {kCached}),
                                   .format = format,
                                   .cache = cache});
  const Buffer q_latent = filled(t * kHeads * kLatent), q_rope = filled(t * kHeads * kRope);
  const Buffer out = Buffer::for_tensor(DType::kF32, {t, kHeads, kLatent});

  const double pairs = 1e-9 * static_cast<double>(t * kHeads * kTopk);
  const Work work{.gbytes = 1e-9 * static_cast<double>(t * kTopk * format.row_bytes),
                  .gflop = pairs * 2 * (kLatent + kRope + kLatent),
                  .in_bf16 = c.rows == CacheDType::kBF16};
  measure(state, bench, work, [&] {
    ops::sparse_attention(bench.ctx(), {.q_latent = View(q_latent.data(), DType::kF32, {t, kHeads, kLatent}),
                                        .q_rope = View(q_rope.data(), DType::kF32, {t, kHeads, kRope}),
                                        .seq = View::of(seqs.data(), {t}),
                                        .scale = 0.1352337788f,
                                        .format = format,
                                        .rows = {.cache = cache, .topk = View::of(topk.data(), {t, kTopk})},
                                        .out = View(out.data(), DType::kF32, {t, kHeads, kLatent})});
  });
}

void register_cases() {
  const CpuInfo cpu = cpu_info();
  for (const CacheDType rows : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
      if (!is_usable(isa)) continue;
      for (const int n_threads : std::set<int>{1, cpu.n_cores}) {
        for (const int64_t n_tokens : {1, 2, 4, 32}) {
          const Case c{rows, isa, n_threads, n_tokens};
          benchmark::RegisterBenchmark(c.name().c_str(), [c](benchmark::State& state) { run_case(state, c); })
              ->Unit(benchmark::kMicrosecond)
              ->UseManualTime();
        }
      }
    }
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::run_benchmarks(argc, argv, levin::bench::register_cases); }
