#include "ops/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/numbers.h"
#include "kernels/cpu/simd_math.h"
#include "ops/cache_rows.h"
#include "ops/kernel_registry.h"
#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

struct Case {
  CacheDType cache;
  DType q;
  int64_t n_rows, n_heads, d_latent, d_rope, n_cached, n_topk;
  int64_t n_run =
      -1;  // DeepSeek-V4's form: a run of that many slots of one cache before the indices of another, sinks,
           // and whole rows for values; -1: selects alone
  bool is_v4() const { return n_run >= 0; }
};
void PrintTo(const Case& c, std::ostream* out) {
  if (c.is_v4()) *out << "run of " << c.n_run << " before selects and a sink, ";
  *out << cache_dtype_name(c.cache) << " rows, " << dtype_name(c.q) << " q, T" << c.n_rows << " H" << c.n_heads << " Rk"
       << c.d_latent << " Dr" << c.d_rope << " S" << c.n_cached << " K" << c.n_topk;
}

// Two sequences; row t selects a random subset, row 1 nothing at all, row 2 as many as there are. Runs end anywhere;
// those of rows 0 and 1 are empty.
struct Problem {
  Case c;
  LatentFormat format;
  PagedCache cache, run_cache;
  Tensor q_latent, q_rope, sink;
  std::vector<int32_t> seq, topk, run_begin, run_end;
  float scale;

  explicit Problem(const Case& k, uint64_t page_order = 1)
      : c(k),
        format(k.is_v4() ? key_value_format(k.cache, k.d_latent + k.d_rope, k.d_rope)
                         : latent_format(k.cache, k.d_latent, k.d_rope)),
        cache(format.page_bytes(), 2, k.n_cached, page_order),
        run_cache(format.page_bytes(), 2, k.n_cached, page_order == 1 ? 0 : page_order + 1),
        q_latent(k.q, {k.n_rows, k.n_heads, k.d_latent}),
        q_rope(k.q, {k.n_rows, k.n_heads, k.d_rope}),
        sink(DType::kF32, {k.n_heads}),
        scale(1.0f / std::sqrt(static_cast<float>(k.d_latent))) {
    Random random(31);
    for (int32_t s = 0; s < 2; ++s) append(random, s, cache.rows());
    // Some rows score far apart, so that maxima move and small weights vanish.
    Tensor latent = random_tensor(random, {c.n_rows, c.n_heads * c.d_latent});
    for (int64_t i = 0; i < latent.view().n_elements(); ++i) latent.at(i) *= i / c.d_latent % 3 == 0 ? 20.0f : 1.0f;
    q_latent = converted(latent, c.q, {c.n_rows, c.n_heads, c.d_latent});
    q_rope = converted(random_tensor(random, {c.n_rows, c.n_heads * c.d_rope}), c.q, {c.n_rows, c.n_heads, c.d_rope});
    for (int64_t t = 0; t < c.n_rows; ++t) {
      seq.push_back(static_cast<int32_t>(t % 2));
      std::vector<int32_t> row;
      for (int32_t s = 0; s < c.n_cached && static_cast<int64_t>(row.size()) < c.n_topk; ++s) {
        if (t != 1 && (t == 2 || random.below(c.n_cached - s) < c.n_topk - static_cast<int64_t>(row.size()) - t % 5)) {
          row.push_back(s);
        }
      }
      row.resize(static_cast<size_t>(c.n_topk), -1);
      topk.insert(topk.end(), row.begin(), row.end());
    }
    if (!c.is_v4()) return;
    for (int32_t s = 0; s < 2; ++s) append(random, s, run_cache.rows());
    for (int64_t h = 0; h < c.n_heads; ++h) sink.at(h) = 3 * random.normal();
    for (int64_t t = 0; t < c.n_rows; ++t) {
      run_end.push_back(static_cast<int32_t>(t < 2 ? 0 : 1 + random.below(c.n_cached)));
      run_begin.push_back(std::max(0, run_end.back() - static_cast<int32_t>(c.n_run)));
    }
  }

  // The candidates of row t, in order.
  std::vector<std::vector<double>> candidates(int64_t t) const {
    std::vector<std::vector<double>> out;
    for (int64_t s = 0; c.is_v4() && s < run_end[t] - run_begin[t]; ++s) {
      out.push_back(decode_latent(format, run_cache.rows(), seq[t], run_begin[t] + s));
    }
    for (int64_t i = 0; i < c.n_topk && topk[t * c.n_topk + i] >= 0; ++i) {
      out.push_back(decode_latent(format, cache.rows(), seq[t], topk[t * c.n_topk + i]));
    }
    return out;
  }

  void append(Random& random, int32_t s, const PagedRows& rows) {
    std::vector<int32_t> seqs(static_cast<size_t>(c.n_cached), s), slots;
    for (int64_t i = 0; i < c.n_cached; ++i) slots.push_back(static_cast<int32_t>(i));
    ops::append_latent(plain_device().ctx(), {.c_kv = random_tensor(random, {c.n_cached, c.d_latent}),
                                              .k_rope = random_tensor(random, {c.n_cached, c.d_rope}),
                                              .seq = i32_tensor(seqs),
                                              .slot = i32_tensor(slots),
                                              .format = format,
                                              .cache = rows});
  }

  Tensor attend(TestDevice& device, int64_t begin, int64_t n) {
    Tensor out(DType::kF32, {n, c.n_heads, format.d_value()});
    std::fill_n(out.view().data<float>(), out.view().n_elements(), 1e30f);
    Args on(device);
    const ops::AttentionRows picked{.cache = on.in(cache.rows()),
                                    .topk = on.in(View::of(topk.data() + begin * c.n_topk, {n, c.n_topk}))};
    ops::SparseAttention args{.q_latent = on.in(q_latent.view().slice_first(begin, n)),
                              .q_rope = on.in(q_rope.view().slice_first(begin, n)),
                              .seq = on.in(View::of(seq.data() + begin, {n})),
                              .scale = scale,
                              .format = format,
                              .rows = picked,
                              .out = on.out(out)};
    if (c.is_v4()) {
      args.rows = {.cache = run_cache.rows(),
                   .begin = View::of(run_begin.data() + begin, {n}),
                   .end = View::of(run_end.data() + begin, {n})};
      args.more = picked;
      args.sink = sink;
    }
    ops::sparse_attention(device.ctx(), args);
    on.fetch();
    return out;
  }
};

// Whether the device rounds queries and weights to bf16 for this case (ops/sparse_attention.h, Numerics).
bool rounds(const TestDevice& device, const Case& c) {
  return device.isa() >= Isa::kAvx512Bf16 && c.cache == CacheDType::kBF16 && !c.is_v4() && c.d_latent % 2 == 0;
}

// Whether a tuned kernel runs the case on a CUDA device. It rounds f32 queries to bf16, which the bounds below do not allow for.
bool runs(const TestDevice& device, const Problem& p) {
  if (!device.on_cuda()) return true;
  return p.c.q == DType::kBF16 && why_not_sm90({.op = "sparse_attention",
                                                .rows = p.format,
                                                .n_heads = p.c.n_heads,
                                                .n_topk = p.c.n_topk,
                                                .other_rows = p.c.is_v4()})
                                      .empty();
}

class SparseAttentionTest : public ::testing::TestWithParam<Case> {};

// Softmax and sums in double. A score of n products has at most n + 2 roundings of 2^-24 of the sum of their sizes;
// that moves a weight by the same relative amount (times ln 2 in the log2 domain, at most 1), as does exp2 (2^-23) and
// what is dropped below 2^-126; the sums add one rounding per candidate each. The sink is one more term of the sum.
// Where queries and weights are rounded to bf16, by 2^-9 at most, a score moves by as much of the sum of the sizes, and
// numerator and denominator of the result by as much of theirs. A CUDA device has queries and rows as they are, but rounds
// weights so, and its matrix unit cuts where f32 rounds, up to four times as coarsely. What the amx-bf16 set leaves of
// the rotated parts is far less than rounding them would have lost.
TEST_P(SparseAttentionTest, IsNearTheOracle) {
  Problem p(GetParam());
  const int64_t n_heads = p.c.n_heads, d = p.c.d_latent, d_rope = p.c.d_rope;
  std::vector<std::pair<Tensor, TestDevice*>> outs;
  for (TestDevice* device : backends_under_test()) {
    if (device->n_threads() == 1 && runs(*device, p)) outs.emplace_back(p.attend(*device, 0, p.c.n_rows), device);
  }
  for (int64_t t = 0; t < p.c.n_rows; ++t) {
    const std::vector<std::vector<double>> rows = p.candidates(t);
    for (int64_t h = 0; h < n_heads; ++h) {
      std::vector<double> score;
      double largest = -1e300, largest_error = 0, largest_of_rounding = 0;
      for (const std::vector<double>& row : rows) {
        double dot = 0, size = 0;
        for (int64_t i = 0; i < d + d_rope; ++i) {
          const double q = i < d ? value_of(p.q_latent, (t * n_heads + h) * d + i)
                                 : value_of(p.q_rope, (t * n_heads + h) * d_rope + i - d);
          dot += q * row[i], size += std::abs(q * row[i]);
        }
        score.push_back(p.scale * dot);
        largest_error = std::max(largest_error, p.scale * size * static_cast<double>(d + d_rope + 2) * 0x1p-24);
        largest_of_rounding = std::max(largest_of_rounding, p.scale * size * 0x1p-9);
        largest = std::max(largest, score.back());
      }
      double sum = p.c.is_v4() ? std::exp(p.sink.at(h) - largest) : 0;
      for (double& s : score) sum += s = std::exp(s - largest);
      const double relative = 2 * largest_error + (2.0 * static_cast<double>(rows.size()) + 10) * 0x1p-24;
      for (int64_t v = 0; v < p.format.d_value(); ++v) {
        double want = 0, size = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
          want += score[i] / sum * rows[i][v];
          size += score[i] / sum * std::abs(rows[i][v]);
        }
        for (const auto& [out, device] : outs) {
          const double tolerance = device->on_cuda()      ? 4 * relative + 2 * 0x1p-9
                                   : rounds(*device, p.c) ? relative + 2 * largest_of_rounding + 2 * 0x1p-9
                                                          : relative;
          ASSERT_NEAR(out.at((t * n_heads + h) * p.format.d_value() + v), want, tolerance * size)
              << device->name() << " " << t << ", " << h << ", " << v;
        }
      }
    }
  }
}

// A row's result is the same bits in any batch, on any number of threads, with its pages anywhere, on any kernel set
// that does not round more than others.
TEST_P(SparseAttentionTest, BitsDependOnTheRowAlone) {
  Problem p(GetParam()), shuffled(GetParam(), 999);
  const Tensor first = p.attend(plain_device(), 0, p.c.n_rows);
  for (TestDevice* device : backends_under_test()) {
    if (!runs(*device, p)) continue;
    const Tensor out = p.attend(*device, 0, p.c.n_rows);
    if (!rounds(*device, p.c) && !device->on_cuda()) {
      ASSERT_TRUE(same_bits(out, first)) << device->name();
    }
    ASSERT_TRUE(same_bits(shuffled.attend(*device, 0, p.c.n_rows), out)) << device->name();
    for (const int64_t t : rows_alone(p.c.n_rows)) {
      ASSERT_TRUE(same_bits(p.attend(*device, t, 1), out.view().slice_first(t, 1))) << device->name() << " row " << t;
    }
  }
}

// One tree for f32 and bf16 queries: values are what counts, not their type.
TEST_P(SparseAttentionTest, TypesHoldValuesOnly) {
  if (GetParam().q != DType::kBF16) GTEST_SKIP() << "f32 queries";
  Problem p(GetParam());
  std::vector<Tensor> want;
  for (const auto& device : devices_under_test()) want.push_back(p.attend(*device, 0, p.c.n_rows));
  for (auto [q, width] : {std::pair{&p.q_latent, p.c.d_latent}, {&p.q_rope, p.c.d_rope}}) {
    Tensor wide(DType::kF32, {p.c.n_rows, p.c.n_heads, width});
    for (int64_t i = 0; i < wide.view().n_elements(); ++i) wide.at(i) = static_cast<float>(value_of(*q, i));
    *q = std::move(wide);
  }
  size_t i = 0;
  for (const auto& device : devices_under_test()) {
    ASSERT_TRUE(same_bits(p.attend(*device, 0, p.c.n_rows), want[i++])) << device->name();
  }
}

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
INSTANTIATE_TEST_SUITE_P(
    Shapes, SparseAttentionTest,
    ::testing::Values(
        Case{CacheDType::kF32, kF32, 5, 3, 40, 16, 100, 12}, Case{CacheDType::kBF16, kF32, 5, 3, 40, 16, 100, 12},
        Case{CacheDType::kFp8, kF32, 5, 3, 40, 16, 100, 12}, Case{CacheDType::kBF16, kBF16, 5, 3, 40, 16, 100, 12},
        Case{CacheDType::kFp8, kBF16, 5, 3, 40, 16, 100, 12}, Case{CacheDType::kF32, kF32, 7, 13, 512, 64, 300, 200},
        Case{CacheDType::kBF16, kBF16, 7, 13, 512, 64, 300, 200},
        Case{CacheDType::kBF16, kF32, 9, 7, 512, 64, 300, 193}, Case{CacheDType::kBF16, kF32, 5, 2, 158, 6, 200, 101},
        Case{CacheDType::kFp8, kBF16, 7, 13, 512, 64, 300, 200}, Case{CacheDType::kF32, kF32, 4, 5, 129, 7, 200, 130},
        Case{CacheDType::kBF16, kBF16, 4, 5, 129, 8, 200, 130}, Case{CacheDType::kFp8, kBF16, 4, 5, 200, 6, 200, 64},
        Case{CacheDType::kF32, kF32, 3, 1, 16, 4, 64, 1}, Case{CacheDType::kF32, kF32, 16, 4, 64, 16, 90, 65},
        Case{CacheDType::kF32, kF32, 9, 4, 48, 16, 150, 20, 32},
        Case{CacheDType::kBF16, kF32, 9, 4, 48, 16, 150, 20, 32},
        Case{CacheDType::kFp8, kF32, 9, 4, 100, 16, 150, 20, 32},
        Case{CacheDType::kF32, kF32, 7, 7, 27, 6, 300, 70, 128},
        Case{CacheDType::kF32, kF32, 5, 9, 448, 64, 300, 140, 128},
        Case{CacheDType::kFp8, kF32, 5, 9, 448, 64, 300, 140, 128},
        Case{CacheDType::kFp8, kBF16, 4, 1, 512, 64, 300, 64}, Case{CacheDType::kFp8, kBF16, 3, 65, 512, 64, 200, 192},
        Case{CacheDType::kFp8, kBF16, 3, 128, 512, 64, 90, 64}, Case{CacheDType::kFp8, kBF16, 3, 7, 512, 64, 700, 576},
        Case{CacheDType::kFp8, kBF16, 3, 3, 512, 64, 2100, 2048},
        Case{CacheDType::kFp8, kBF16, 520, 1, 512, 64, 200, 128}));  // on CUDA rows are converted first

// Rows of one sequence that see all there is, each some slots more than the one before it, share what is gathered. They
// have the bits of rows alone, whatever their neighbours see: nothing, an odd number, whole tiles, the same, or a row
// that has chosen between them.
struct SharedRows {
  CacheDType cache;
  DType q;
  int64_t n_heads, d_latent, d_rope;
  std::vector<int64_t> n_seen;
  int64_t chooses = -1;  // a row that leaves out its first slot
};
void PrintTo(const SharedRows& c, std::ostream* out) {
  *out << cache_dtype_name(c.cache) << " rows, " << dtype_name(c.q) << " q, H" << c.n_heads << " Rk" << c.d_latent
       << " Dr" << c.d_rope << ", " << c.n_seen.size() << " rows of " << c.n_seen.front() << " to " << c.n_seen.back();
}

Problem problem_of(const SharedRows& shared) {
  const auto n_rows = std::ssize(shared.n_seen);
  const int64_t n_topk = *std::max_element(shared.n_seen.begin(), shared.n_seen.end()) + 3;
  Problem p({shared.cache, shared.q, n_rows, shared.n_heads, shared.d_latent, shared.d_rope, n_topk, n_topk});
  std::fill(p.seq.begin(), p.seq.end(), 1);
  std::fill(p.topk.begin(), p.topk.end(), -1);
  for (int64_t t = 0; t < n_rows; ++t) {
    const int32_t first = t == shared.chooses ? 1 : 0;
    std::iota(&p.topk[t * n_topk], &p.topk[t * n_topk] + shared.n_seen[t] - first, first);
  }
  return p;
}

class SharedRowsTest : public ::testing::TestWithParam<SharedRows> {};

TEST_P(SharedRowsTest, HaveTheBitsOfRowsAlone) {
  Problem p = problem_of(GetParam());
  const int64_t n_rows = p.c.n_rows;
  const Tensor plain = p.attend(plain_device(), 0, n_rows);
  for (TestDevice* device : backends_under_test()) {
    if (device->on_cuda()) continue;
    const Tensor out = p.attend(*device, 0, n_rows);
    if (!rounds(*device, p.c)) {
      ASSERT_TRUE(same_bits(out, plain)) << device->name();
    }
    for (const int64_t t : rows_alone(n_rows)) {
      ASSERT_TRUE(same_bits(p.attend(*device, t, 1), out.view().slice_first(t, 1))) << device->name() << " row " << t;
    }
  }
}

std::vector<int64_t> counts(int64_t first, int64_t n, int64_t step = 1) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(first + i * step);
  return out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedRowsTest,
                         ::testing::Values(SharedRows{CacheDType::kBF16, kBF16, 6, 512, 64, counts(150, 4)},
                                           SharedRows{CacheDType::kBF16, kF32, 6, 512, 64, counts(62, 5)},
                                           SharedRows{CacheDType::kF32, kF32, 6, 512, 64, counts(126, 4), 2},
                                           SharedRows{CacheDType::kFp8, kBF16, 6, 512, 64, counts(1, 7)},
                                           SharedRows{CacheDType::kBF16, kBF16, 3, 40, 16, counts(0, 70, 3)},
                                           SharedRows{CacheDType::kF32, kF32, 1, 40, 16, counts(0, 150)},
                                           SharedRows{CacheDType::kBF16, kBF16, 1, 40, 6, counts(100, 40), 17},
                                           SharedRows{
                                               CacheDType::kBF16, kBF16, 5, 64, 16, {7, 7, 64, 64, 65, 128, 129, 129}},
                                           SharedRows{CacheDType::kBF16, kBF16, 5, 64, 16, {90, 80, 81, 81, 20, 21}},
                                           SharedRows{CacheDType::kBF16, kBF16, 6, 64, 16, {0, 0, 0, 3, 70}},
                                           SharedRows{CacheDType::kBF16, kBF16, 70, 64, 16, counts(30, 9)}));

// sum += even + odd over steps of 32 products, as the matrix unit has it.
void add_steps(const std::vector<float>& a, const std::vector<float>& b, float& sum) {
  for (size_t step = 0; step < a.size(); step += 32) {
    float part[2] = {};
    for (size_t i = step; i < std::min(step + 32, a.size()); ++i) part[i % 2] += a[i] * b[i];  // a product is exact
    sum += part[0] + part[1];
  }
}

// A query or row: its latent part as bf16, its rotated part as the sum of two.
struct TileOperand {
  std::vector<float> latent, high, low;
};
TileOperand tile_operand(const std::vector<double>& values, int64_t d_latent) {
  TileOperand out;
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const auto value = static_cast<float>(values[i]);
    const float high = round_to_bf16(value);
    (i < d_latent ? out.latent : out.high).push_back(high);
    if (i >= d_latent) out.low.push_back(round_to_bf16(value - high));
  }
  return out;
}

// The tree of ops/sparse_attention.h for the amx-bf16 set: head h of row t.
std::vector<float> tile_tree(const Problem& p, int64_t t, int64_t h) {
  using kernels::OneLane;
  const int64_t d = p.c.d_latent, d_rope = p.c.d_rope, line = t * p.c.n_heads + h;
  std::vector<double> query;
  for (int64_t i = 0; i < d; ++i) query.push_back(value_of(p.q_latent, line * d + i));
  for (int64_t i = 0; i < d_rope; ++i) query.push_back(value_of(p.q_rope, line * d_rope + i));
  const TileOperand q = tile_operand(query, d);
  std::vector<TileOperand> rows;
  for (const std::vector<double>& row : p.candidates(t)) rows.push_back(tile_operand(row, d));
  const auto scale = static_cast<float>(static_cast<double>(p.scale) * 1.4426950408889634);
  std::vector<float> out(static_cast<size_t>(d), 0.0f);
  float sum = 0, maximum = -INFINITY;
  for (size_t begin = 0; begin < rows.size(); begin += 64) {
    const std::span<const TileOperand> tile(&rows[begin], std::min<size_t>(64, rows.size() - begin));
    std::vector<float> u, p_tile;
    float largest = maximum, partial[16] = {};
    for (const TileOperand& k : tile) {
      float dot = 0;
      add_steps(q.latent, k.latent, dot);
      add_steps(q.high, k.high, dot);
      add_steps(q.high, k.low, dot);
      add_steps(q.low, k.high, dot);
      u.push_back(dot * scale);
      largest = std::max(largest, std::ceil(u.back()));
    }
    for (size_t j = 0; j < tile.size(); ++j) {
      const float whole = std::ceil(u[j]), power = kernels::exp2_or_zero<OneLane>(whole - largest);
      const float weight = kernels::exp2_fraction<OneLane>(u[j] - whole) * power;
      p_tile.push_back(weight < 0x1p-126f ? 0.0f : round_to_bf16(weight));
      partial[j % 16] += p_tile[j];
    }
    for (int half = 8; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) partial[j] += partial[j + half];
    }
    const float factor = kernels::exp2_or_zero<OneLane>(maximum - largest);
    sum = sum * factor + partial[0];
    maximum = largest;
    for (size_t v = 0; v < out.size(); ++v) {
      std::vector<float> column;
      for (const TileOperand& k : tile) column.push_back(k.latent[v]);
      out[v] *= factor;
      add_steps(p_tile, column, out[v]);
    }
  }
  for (float& x : out) x = rows.empty() ? 0 : x / sum;
  return out;
}

// Adds 512 to every dot. Weights are rounded to bf16 and would rarely show the last bits of smaller ones.
void enlarge_dots(Problem& p) {
  for (int64_t line = 0; line < p.c.n_rows * p.c.n_heads; ++line) {
    const int64_t i = line * p.c.d_latent;
    p.c.q == kF32 ? p.q_latent.view().data<float>()[i] = 512 : p.q_latent.view().data<uint16_t>()[i] = f32_to_bf16(512);
  }
  for (int64_t i = 0; i < 2 * p.c.n_cached; ++i) {
    const int64_t slot = i / 2;
    std::byte* row = p.cache.rows().page(i % 2, slot / kPageTokens) + slot % kPageTokens * p.format.row_bytes;
    reinterpret_cast<uint16_t*>(row)[0] = f32_to_bf16(1);
  }
}

TEST(SparseAttentionTileTest, SumsAsItsHeaderSays) {
  if (!is_usable(Isa::kAmxBf16)) GTEST_SKIP() << "no matrix unit";
  constexpr CacheDType kRows = CacheDType::kBF16;
  std::vector<Problem> problems;
  for (const Case& c : {Case{kRows, kBF16, 5, 3, 40, 16, 100, 12}, Case{kRows, kF32, 5, 2, 158, 6, 200, 101},
                        Case{kRows, kF32, 4, 17, 96, 40, 400, 321}, Case{kRows, kF32, 3, 6, 512, 64, 300, 257},
                        Case{kRows, kF32, 50, 7, 72, 100, 250, 150}}) {
    problems.emplace_back(c);
  }
  for (const SharedRows& rows :
       {SharedRows{kRows, kF32, 6, 512, 64, counts(127, 3)}, SharedRows{kRows, kBF16, 6, 64, 16, counts(254, 7)},
        SharedRows{kRows, kF32, 5, 72, 64, {0, 1, 31, 33, 64, 65, 257}}}) {
    problems.push_back(problem_of(rows));
  }
  for (Problem& p : problems) {
    enlarge_dots(p);
    for (const auto& device : devices_under_test()) {
      if (device->isa() != Isa::kAmxBf16) continue;
      const Tensor out = p.attend(*device, 0, p.c.n_rows);
      for (int64_t i = 0; i < p.c.n_rows * p.c.n_heads; ++i) {
        const std::vector<float> want = tile_tree(p, i / p.c.n_heads, i % p.c.n_heads);
        for (int64_t v = 0; v < p.c.d_latent; ++v) {
          ASSERT_EQ(out.at(i * p.c.d_latent + v), want[v])
              << ::testing::PrintToString(p.c) << " on " << device->name() << ", line " << i << ", column " << v;
        }
      }
    }
  }
}

TEST(SparseAttentionRows, WithoutPicksGiveZeros) {
  Problem p({CacheDType::kF32, kF32, 2, 3, 40, 16, 100, 12});
  for (const auto& device : devices_under_test()) {
    const Tensor out = p.attend(*device, 1, 1);
    for (int64_t i = 0; i < 3 * 40; ++i) ASSERT_EQ(out.at(i), 0.0f) << device->name();
  }
}

// A draft that is not to be made leaves a row of padding, which has the picks of the draft before.
void expect_padding_has_no_picks(const Case& c, const std::vector<TestDevice*>& devices) {
  Problem p(c);
  std::vector<Tensor> want;
  for (TestDevice* device : devices) want.push_back(p.attend(*device, 0, c.n_rows));
  const auto is_padding = [](int64_t t) { return t == 0 || t % 3 == 2; };
  for (int64_t t = 0; t < c.n_rows; ++t) {
    if (is_padding(t)) p.seq[static_cast<size_t>(t)] = -1;
  }
  const Tensor zeros(DType::kF32, {1, c.n_heads, p.format.d_value()});
  for (size_t i = 0; i < want.size(); ++i) {
    const Tensor out = p.attend(*devices[i], 0, c.n_rows);
    for (int64_t t = 0; t < c.n_rows; ++t) {
      const View row = out.view().slice_first(t, 1);
      ASSERT_TRUE(same_bits(row, is_padding(t) ? zeros.view() : want[i].view().slice_first(t, 1)))
          << ::testing::PrintToString(c) << " on " << devices[i]->name() << ", row " << t;
    }
  }
}

TEST(SparseAttentionRows, OfPaddingHaveNoPicksAndDisturbNobody) {
  std::vector<TestDevice*> cpus, gpus;
  for (TestDevice* device : backends_under_test()) (device->on_cuda() ? gpus : cpus).push_back(device);
  for (const Case& c :
       {Case{CacheDType::kF32, kF32, 5, 3, 40, 16, 100, 12}, Case{CacheDType::kBF16, kBF16, 5, 6, 64, 16, 100, 12},
        Case{CacheDType::kFp8, kBF16, 3, 7, 512, 64, 700, 576}}) {
    expect_padding_has_no_picks(c, cpus);
    expect_padding_has_no_picks(c, gpus);
  }
  expect_padding_has_no_picks({CacheDType::kF32, kF32, 9, 4, 48, 16, 150, 20, 32}, cpus);
  for (const int64_t n_rows : {1, 3, 4, 8, 16, 32, 40})  // blocks share rows in many ways
    expect_padding_has_no_picks({CacheDType::kFp8, kBF16, n_rows, 128, 512, 64, 2100, 2048}, gpus);
  expect_padding_has_no_picks({CacheDType::kFp8, kBF16, 8, 64, 512, 64, 2100, 2048}, gpus);
  expect_padding_has_no_picks({CacheDType::kFp8, kBF16, 520, 1, 512, 64, 200, 128}, gpus);  // converted first
}

// One index has weight 1, so the result is its latent, exactly.
TEST(SparseAttentionRows, WithOnePickGiveItsLatent) {
  for (const CacheDType cache : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    Problem p({cache, kF32, 1, 3, 40, 16, 100, 4});
    p.topk = {77, -1, -1, -1};
    const std::vector<double> want = decode_latent(p.format, p.cache.rows(), 0, 77);
    for (const auto& device : devices_under_test()) {
      const Tensor out = p.attend(*device, 0, 1);
      for (int64_t i = 0; i < 3 * 40; ++i) ASSERT_NEAR(out.at(i), want[i % 40], 0x1p-23 * std::abs(want[i % 40]));
    }
  }
}

TEST(SparseAttentionDeathTest, NamesTheArgument) {
  Problem p({CacheDType::kF32, kF32, 2, 3, 40, 16, 100, 4});
  p.topk = {5, 3, -1, -1, 1, -1, -1, -1};
  EXPECT_DEATH(p.attend(plain_device(), 0, 2), "top-k indices of row 0 do not ascend");
  p.topk = {3, 128, -1, -1, 1, -1, -1, -1};
  EXPECT_DEATH(p.attend(plain_device(), 0, 2), "row 0 selects slot 128");
  Problem mixed({CacheDType::kF32, kBF16, 1, 3, 40, 16, 100, 4});
  EXPECT_DEATH(mixed.attend(plain_device(), 0, 1), "q_latent is bf16 over f32 cache rows");
}

}  // namespace
}  // namespace levin::testing
