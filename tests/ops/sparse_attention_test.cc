#include "ops/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cache_rows.h"
#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

struct Case {
  CacheDType cache;
  DType q;
  int64_t n_rows, n_heads, d_latent, d_rope, n_cached, n_picks;
  int64_t n_run = -1;  // DeepSeek-V4's form: a run of that many slots of one cache before the picks of another, sinks,
                       // and whole rows for values; -1: picks alone
  bool is_v4() const { return n_run >= 0; }
};
void PrintTo(const Case& c, std::ostream* out) {
  if (c.is_v4()) *out << "run of " << c.n_run << " before picks and a sink, ";
  *out << cache_dtype_name(c.cache) << " rows, " << dtype_name(c.q) << " q, T" << c.n_rows << " H" << c.n_heads << " Rk"
       << c.d_latent << " Dr" << c.d_rope << " S" << c.n_cached << " K" << c.n_picks;
}

// Two sequences; row t picks a random subset, row 1 nothing at all, row 2 as many as there are. Runs end anywhere;
// those of rows 0 and 1 are empty.
struct Problem {
  Case c;
  LatentFormat format;
  PagedCache cache, run_cache;
  Tensor q_latent, q_rope, sink;
  std::vector<int32_t> seq, picks, run_begin, run_end;
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
      for (int32_t s = 0; s < c.n_cached && static_cast<int64_t>(row.size()) < c.n_picks; ++s) {
        if (t != 1 && (t == 2 || random.below(c.n_cached - s) < c.n_picks - static_cast<int64_t>(row.size()) - t % 5)) {
          row.push_back(s);
        }
      }
      row.resize(static_cast<size_t>(c.n_picks), -1);
      picks.insert(picks.end(), row.begin(), row.end());
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
    for (int64_t i = 0; i < c.n_picks && picks[t * c.n_picks + i] >= 0; ++i) {
      out.push_back(decode_latent(format, cache.rows(), seq[t], picks[t * c.n_picks + i]));
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
                                    .picks = on.in(View::of(picks.data() + begin * c.n_picks, {n, c.n_picks}))};
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

// Whether there is a kernel for the case.
bool runs(const TestDevice& device, const Case& c) {
  return !device.on_cuda() || (c.cache == CacheDType::kFp8 && c.q == DType::kBF16 && !c.is_v4() && c.d_latent == 512 &&
                               c.d_rope == 64 && c.n_heads <= 128 && c.n_picks % 64 == 0 && c.n_picks <= 2048);
}

class SparseAttentionTest : public ::testing::TestWithParam<Case> {};

// Softmax and sums in double. A score of n products has at most n + 2 roundings of 2^-24 of the sum of their sizes;
// that moves a weight by the same relative amount (times ln 2 in the log2 domain, at most 1), as does exp2 (2^-23) and
// what is dropped below 2^-126; the sums add one rounding per candidate each. The sink is one more term of the sum.
// Where queries and weights are rounded to bf16, by 2^-9 at most, a score moves by as much of the sum of the sizes, and
// numerator and denominator of the result by as much of theirs. A CUDA device has queries and rows as they are, but rounds
// weights so, and its matrix unit cuts where f32 rounds, up to four times as coarsely.
TEST_P(SparseAttentionTest, IsNearTheOracle) {
  Problem p(GetParam());
  const int64_t n_heads = p.c.n_heads, d = p.c.d_latent, d_rope = p.c.d_rope;
  std::vector<std::pair<Tensor, TestDevice*>> outs;
  for (TestDevice* device : backends_under_test()) {
    if (device->n_threads() == 1 && runs(*device, p.c)) outs.emplace_back(p.attend(*device, 0, p.c.n_rows), device);
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
    if (!runs(*device, p.c)) continue;
    const Tensor out = p.attend(*device, 0, p.c.n_rows);
    if (!rounds(*device, p.c) && !device->on_cuda()) {
      ASSERT_TRUE(same_bits(out, first)) << device->name();
    }
    ASSERT_TRUE(same_bits(shuffled.attend(*device, 0, p.c.n_rows), out)) << device->name();
    for (int64_t t = 0; t < p.c.n_rows; ++t) {
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
        Case{CacheDType::kFp8, kBF16, 3, 3, 512, 64, 2100, 2048}));

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

class SharedRowsTest : public ::testing::TestWithParam<SharedRows> {};

TEST_P(SharedRowsTest, HaveTheBitsOfRowsAlone) {
  const SharedRows& shared = GetParam();
  const auto n_rows = std::ssize(shared.n_seen);
  const int64_t n_picks = *std::max_element(shared.n_seen.begin(), shared.n_seen.end()) + 3;
  Problem p({shared.cache, shared.q, n_rows, shared.n_heads, shared.d_latent, shared.d_rope, n_picks, n_picks});
  std::fill(p.seq.begin(), p.seq.end(), 1);
  std::fill(p.picks.begin(), p.picks.end(), -1);
  for (int64_t t = 0; t < n_rows; ++t) {
    const int32_t first = t == shared.chooses ? 1 : 0;
    std::iota(&p.picks[t * n_picks], &p.picks[t * n_picks] + shared.n_seen[t] - first, first);
  }
  const Tensor plain = p.attend(plain_device(), 0, n_rows);
  for (TestDevice* device : backends_under_test()) {
    if (device->on_cuda()) continue;
    const Tensor out = p.attend(*device, 0, n_rows);
    if (!rounds(*device, p.c)) {
      ASSERT_TRUE(same_bits(out, plain)) << device->name();
    }
    for (int64_t t = 0; t < n_rows; ++t) {
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
                                           SharedRows{CacheDType::kBF16, kBF16, 70, 64, 16, counts(30, 9)}));

TEST(SparseAttentionRows, WithoutPicksGiveZeros) {
  Problem p({CacheDType::kF32, kF32, 2, 3, 40, 16, 100, 12});
  for (const auto& device : devices_under_test()) {
    const Tensor out = p.attend(*device, 1, 1);
    for (int64_t i = 0; i < 3 * 40; ++i) ASSERT_EQ(out.at(i), 0.0f) << device->name();
  }
}

// One pick has weight 1, so the result is its latent, exactly.
TEST(SparseAttentionRows, WithOnePickGiveItsLatent) {
  for (const CacheDType cache : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    Problem p({cache, kF32, 1, 3, 40, 16, 100, 4});
    p.picks = {77, -1, -1, -1};
    const std::vector<double> want = decode_latent(p.format, p.cache.rows(), 0, 77);
    for (const auto& device : devices_under_test()) {
      const Tensor out = p.attend(*device, 0, 1);
      for (int64_t i = 0; i < 3 * 40; ++i) ASSERT_NEAR(out.at(i), want[i % 40], 0x1p-23 * std::abs(want[i % 40]));
    }
  }
}

TEST(SparseAttentionDeathTest, NamesTheArgument) {
  Problem p({CacheDType::kF32, kF32, 2, 3, 40, 16, 100, 4});
  p.picks = {5, 3, -1, -1, 1, -1, -1, -1};
  EXPECT_DEATH(p.attend(plain_device(), 0, 2), "picks of row 0 do not ascend");
  p.picks = {3, 128, -1, -1, 1, -1, -1, -1};
  EXPECT_DEATH(p.attend(plain_device(), 0, 2), "row 0 picks slot 128");
  Problem mixed({CacheDType::kF32, kBF16, 1, 3, 40, 16, 100, 4});
  EXPECT_DEATH(mixed.attend(plain_device(), 0, 1), "q_latent is bf16 over f32 cache rows");
}

}  // namespace
}  // namespace levin::testing
