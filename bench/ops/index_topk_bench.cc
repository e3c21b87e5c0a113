// The indexer at the shape of DeepSeek-V3.2: 64 heads of 128 columns, 16384 cached keys, 2048 indices; and the selection
// alone.
//
//   bench_index_topk --benchmark_filter='scores/bf16.*T:1$'      scores|topk/keys/kernel set/threads/T
//   select/shape/kernel set/S
#include <fmt/core.h>

#include <set>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "ops/cache_rows.h"
#include "ops/index_topk.h"
#include "support/op_bench.h"

namespace levin::bench {
namespace {

constexpr int64_t kHeads = 64, kWidth = 128, kTopk = 2048, kCached = 16384;

struct Case {
  CacheDType keys;
  Isa isa;
  int n_threads;
  int64_t n_tokens;
  bool fused;

  std::string name() const {
    return fmt::format("{}/{}/{}/threads:{}/T:{}", fused ? "topk" : "scores", cache_dtype_name(keys), isa_name(isa),
                       n_threads, n_tokens);
  }
};

struct Problem {
  explicit Problem(const Case& c)
      : format(index_key_format(c.keys, kWidth)),
        pages(kCached / kPageTokens * format.page_bytes()),
        dtype(c.keys == CacheDType::kF32    ? DType::kF32
              : c.keys == CacheDType::kBF16 ? DType::kBF16
                                            : DType::kF8E4M3),
        q(Buffer::for_tensor(dtype, {c.n_tokens, kHeads, kWidth})),
        w(random_values(c.n_tokens * kHeads)),
        seq(kCached, 0),
        visible(static_cast<size_t>(c.n_tokens), kCached),
        n_tokens(c.n_tokens) {
    for (int32_t i = 0; i < kCached / kPageTokens; ++i)
      table.push_back(static_cast<int32_t>(i * 37 % (kCached / kPageTokens)));
    const std::vector<float> x = random_values(n_tokens * kHeads * kWidth);
    for (size_t i = 0; i < x.size(); ++i) {
      if (dtype == DType::kF32) reinterpret_cast<float*>(q.data())[i] = x[i];
      if (dtype == DType::kBF16) reinterpret_cast<uint16_t*>(q.data())[i] = f32_to_bf16(x[i]);
      if (dtype == DType::kF8E4M3) reinterpret_cast<uint8_t*>(q.data())[i] = f32_to_e4m3(x[i]);
    }
  }

  PagedRows cache() {
    return {.pages = pages.data(),
            .page_bytes = format.page_bytes(),
            .tables = View::of(table.data(), {1, kCached / kPageTokens})};
  }
  void append(OpContext& ctx) {
    std::vector<float> keys = random_values(kCached * kWidth);
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < kCached; ++i) slots.push_back(i);
    ops::append_index_keys(ctx, {.keys = View::of(keys.data(), {kCached, kWidth}),
                                 .seq = View::of(seq.data(), {kCached}),
                                 .slot = View::of(slots.data(), {kCached}),
                                 .format = format,
                                 .cache = cache()});
  }
  ops::IndexQuery query() {
    return {.q = View(q.data(), dtype, {n_tokens, kHeads, kWidth}),
            .w = View::of(w.data(), {n_tokens, kHeads}),
            .seq = View::of(seq.data(), {n_tokens}),
            .visible = View::of(visible.data(), {n_tokens}),
            .format = format,
            .cache = cache()};
  }

  IndexKeyFormat format;
  Buffer pages;
  DType dtype;
  Buffer q;
  std::vector<float> w;
  std::vector<int32_t> table, seq, visible;
  int64_t n_tokens;
};

void run_case(benchmark::State& state, const Case& c) {
  OpBench bench(c.isa, c.n_threads);
  Problem p(c);
  p.append(bench.ctx());
  const Buffer score = Buffer::for_tensor(DType::kF32, {c.n_tokens, kCached});
  const Buffer topk = Buffer::for_tensor(DType::kI32, {c.n_tokens, kTopk});
  const double gflop = 2e-9 * static_cast<double>(c.n_tokens * kCached * kHeads * kWidth);
  const Work work{
      .gbytes = 1e-9 * static_cast<double>(p.pages.n_bytes()), .gflop = gflop, .in_bf16 = c.keys == CacheDType::kBF16};
  measure(state, bench, work, [&] {
    if (c.fused) {
      ops::index_topk(bench.ctx(), {.query = p.query(), .topk = View(topk.data(), DType::kI32, {c.n_tokens, kTopk})});
    } else {
      ops::index_scores(bench.ctx(),
                        {.query = p.query(), .score = View(score.data(), DType::kF32, {c.n_tokens, kCached})});
    }
  });
}

void run_select(benchmark::State& state, Isa isa, int64_t n, bool plateaus) {
  OpBench bench(isa, 1);
  std::vector<float> score = random_values(n);
  for (float& s : score) s = plateaus ? static_cast<float>(static_cast<int>(s * 4)) : s;
  std::vector<int32_t> topk(kTopk), begin = {0}, end = {static_cast<int32_t>(n)};
  measure(state, bench, {.gbytes = 4e-9 * static_cast<double>(n)}, [&] {
    ops::select_topk(bench.ctx(), {.score = View::of(score.data(), {1, n}),
                                   .begin = View::of(begin.data(), {1}),
                                   .end = View::of(end.data(), {1}),
                                   .topk = View::of(topk.data(), {1, kTopk})});
  });
}

template <class Body>
void add(const std::string& name, const Body& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMicrosecond)->UseManualTime();
}

void register_cases() {
  const CpuInfo cpu = cpu_info();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (!is_usable(isa)) continue;
    for (const CacheDType keys : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
      for (const int n_threads : std::set<int>{1, cpu.n_cores}) {
        for (const int64_t n_tokens : {1, 2, 4, 32}) {
          for (const bool fused : {false, true}) {
            const Case c{keys, isa, n_threads, n_tokens, fused};
            add(c.name(), [c](benchmark::State& state) { run_case(state, c); });
          }
        }
      }
    }
    for (const int64_t n : {16384, 131072, 1048576}) {
      for (const bool plateaus : {false, true}) {
        add(fmt::format("select/{}/{}/S:{}", plateaus ? "plateaus" : "random", isa_name(isa), n),
            [=](benchmark::State& state) { run_select(state, isa, n, plateaus); });
      }
    }
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::run_benchmarks(argc, argv, levin::bench::register_cases); }
