#include "ops/index_topk.h"

#include <cmath>
#include <limits>
#include <set>

#include "ops/cache_rows.h"
#include "ops/kernel_registry.h"
#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  CacheDType dtype;
  int64_t n_rows, n_heads, d, n_cached, n_topk;
  int32_t first;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << cache_dtype_name(c.dtype) << " T" << c.n_rows << " Hi" << c.n_heads << " Di" << c.d << " S" << c.n_cached
       << " K" << c.n_topk << " first " << c.first;
}

DType query_dtype(CacheDType keys) {
  return keys == CacheDType::kF32 ? DType::kF32 : keys == CacheDType::kBF16 ? DType::kBF16 : DType::kF8E4M3;
}

constexpr int kRunOfRows = 3;  // neighbours of one sequence

// Two sequences of n_cached keys; rows alternate between runs of both and see growing prefixes, the last row
// everything.
struct Problem {
  Case c;
  IndexKeyFormat format;
  PagedCache cache;
  Tensor q, w;
  std::vector<int32_t> seq, visible;

  explicit Problem(const Case& k, uint64_t page_order = 1)
      : c(k),
        format(index_key_format(k.dtype, k.d)),
        cache(format.page_bytes(), 2, k.n_cached, page_order),
        q(query_dtype(k.dtype), {k.n_rows, k.n_heads, k.d}),
        w(DType::kF32, {k.n_rows, k.n_heads}) {
    Random random(77);
    for (int32_t s = 0; s < 2; ++s) append(random_tensor(random, {c.n_cached, c.d}), s, 0);
    const Tensor values = random_tensor(random, {c.n_rows, c.n_heads * c.d});
    q = converted(values, query_dtype(c.dtype), {c.n_rows, c.n_heads, c.d});
    w = random_tensor(random, {c.n_rows, c.n_heads});
    for (int64_t t = 0; t < c.n_rows; ++t) {
      seq.push_back(static_cast<int32_t>(t / kRunOfRows % 2));
      visible.push_back(static_cast<int32_t>(c.n_cached * (t + 1) / c.n_rows));
    }
  }

  void append(const Tensor& keys, int32_t s, int64_t slot) {
    const int64_t n = keys.view().dim(0);
    std::vector<int32_t> seqs(static_cast<size_t>(n), s), slots;
    for (int64_t i = 0; i < n; ++i) slots.push_back(static_cast<int32_t>(slot + i));
    ops::append_index_keys(
        plain_device().ctx(),
        {.keys = keys, .seq = i32_tensor(seqs), .slot = i32_tensor(slots), .format = format, .cache = cache.rows()});
  }

  // Rows [begin, begin + n) as a query, on the host or where `args` puts them.
  ops::IndexQuery query(int64_t begin, int64_t n) {
    return {.q = q.view().slice_first(begin, n),
            .w = w.view().slice_first(begin, n),
            .seq = View::of(seq.data() + begin, {n}),
            .visible = View::of(visible.data() + begin, {n}),
            .first = c.first,
            .format = format,
            .cache = cache.rows()};
  }
  ops::IndexQuery query(Args& args, int64_t begin, int64_t n) {
    ops::IndexQuery a = query(begin, n);
    a.q = args.in(a.q);
    a.w = args.in(a.w);
    a.seq = args.in(a.seq);
    a.visible = args.in(a.visible);
    a.cache = args.in(a.cache);
    return a;
  }

  Tensor scores(TestDevice& device, int64_t begin, int64_t n, int64_t n_slots, int tokens_together = 1) {
    Tensor score(DType::kF32, {n, n_slots});
    std::fill_n(score.view().data<float>(), score.view().n_elements(), -777.0f);
    Args args(device);
    ops::IndexScores a{.query = query(args, begin, n), .score = args.out(score)};
    a.query.tokens_together = tokens_together;
    ops::index_scores(device.ctx(), a);
    args.fetch();
    return score;
  }
  // `planned`: by a plan that two calls share.
  Tensor topk(TestDevice& device, int64_t begin, int64_t n, int tokens_together = 1, bool planned = false) {
    Tensor topk(DType::kI32, {n, c.n_topk});
    Args args(device);
    ops::IndexTopk a{.query = query(args, begin, n), .topk = args.out(topk)};
    a.query.tokens_together = tokens_together;
    const ArenaScope scratch(*device.ctx().arena);
    if (planned) {
      a.query.plan = plan_of(device.ctx(), a);
      ops::index_topk(device.ctx(), a);
    }
    ops::index_topk(device.ctx(), a);
    args.fetch();
    return topk;
  }
  static View plan_of(OpContext& ctx, const ops::IndexTopk& a) {
    ops::PlanIndex plan{.seq = a.query.seq,
                        .visible = a.query.visible,
                        .first = a.query.first,
                        .n_pages = a.query.cache.tables.dim(1),
                        .n_topk = a.topk.dim(1),
                        .tokens_together = a.query.tokens_together};
    const int64_t n_words = ops::index_plan_words(ctx, plan);
    if (n_words == 0) return {};
    plan.plan = ctx.arena->allocate(DType::kI32, {n_words});
    ops::plan_index(ctx, plan);
    return plan.plan;
  }

  // The score in double and a bound on what f32 may add to it: every dot rounds Di times, the head sum
  // Hi times, the scale once. In addition, what the matrix unit of a CUDA device may: it sums 32 products with about 13 bits
  // below the largest of them, which over all heads is at most 2^-9 of the terms' sizes.
  struct Score {
    double value = 0, error_of_f32 = 0, error_of_matrix_unit = 0;
    double error(const TestDevice& device) const { return device.on_cuda() ? error_of_matrix_unit : error_of_f32; }
  };
  Score oracle(int64_t t, int64_t slot) const {
    const std::vector<double> key = decode_index_key(format, cache.rows(), seq[t], slot);
    double total = 0, size = 0;
    for (int64_t h = 0; h < c.n_heads; ++h) {
      double dot = 0, dot_size = 0;
      for (int64_t i = 0; i < c.d; ++i) {
        const double product = value_of(q, (t * c.n_heads + h) * c.d + i) * key[i];
        dot += product, dot_size += std::abs(product);
      }
      total += w.at(t * c.n_heads + h) * std::max(0.0, dot);
      size += std::abs(w.at(t * c.n_heads + h)) * dot_size;
    }
    return {total, size * static_cast<double>(c.d + c.n_heads + 2) * 0x1p-24, size * 0x1p-9};
  }
};

// Whether the device has a tree of its own for this case (ops/index_topk.h, Tree).
bool has_own_tree(const TestDevice& device, const Case& c) {
  if (device.on_cuda()) return true;
  if (device.isa() < Isa::kAvx512Bf16 || c.dtype != CacheDType::kBF16) return false;
  return c.d % (device.isa() == Isa::kAmxBf16 ? 32 : 2) == 0;
}

// Whether a tuned kernel runs the case on a CUDA device.
bool runs(const TestDevice& device, const Case& c) {
  return !device.on_cuda() ||
         why_not_sm90(
             {.op = "index_topk", .keys = index_key_format(c.dtype, c.d), .n_heads = c.n_heads, .n_topk = c.n_topk})
             .empty();
}

class IndexTopkTest : public ::testing::TestWithParam<Case> {};

TEST_P(IndexTopkTest, ScoresAreNearTheOracleAndOnlyWhereAsked) {
  Problem p(GetParam());
  const int64_t n_slots = p.c.n_cached + 7;
  for (TestDevice* device : backends_under_test()) {
    if (device->n_threads() == 2 || !runs(*device, p.c)) continue;
    const Tensor score = p.scores(*device, 0, p.c.n_rows, n_slots);
    for (int64_t t = 0; t < p.c.n_rows; ++t) {
      for (int64_t s = 0; s < n_slots; s += s + 70 < p.visible[t] && s > 130 ? 7 : 1) {
        const float got = score.at(t * n_slots + s);
        if (s < p.c.first || s >= p.visible[t]) {
          ASSERT_EQ(got, -777.0f) << device->name() << " wrote " << t << ", " << s;
          continue;
        }
        const Problem::Score want = p.oracle(t, s);
        ASSERT_NEAR(got, want.value, want.error(*device)) << device->name() << " " << t << ", " << s;
      }
    }
  }
}

// A index may differ from the oracle's only where two scores are closer than rounding, so scores are compared, not
// slots.
TEST_P(IndexTopkTest, PicksTheBestScoresOnEveryDevice) {
  Problem p(GetParam());
  std::vector<std::vector<Problem::Score>> oracle;
  for (int64_t t = 0; t < p.c.n_rows; ++t) {
    oracle.emplace_back();
    for (int64_t s = 0; s < p.visible[t]; ++s) oracle.back().push_back(p.oracle(t, s));
  }
  for (TestDevice* device : backends_under_test()) {
    if (!runs(*device, p.c)) continue;
    const Tensor topk = p.topk(*device, 0, p.c.n_rows);
    for (int64_t t = 0; t < p.c.n_rows; ++t) {
      const std::vector<Problem::Score>& score = oracle[t];
      std::set<int32_t> seen;
      double worst_taken = kInf, best_left = -kInf;
      int32_t previous = -1;
      for (int64_t i = 0; i < p.c.n_topk; ++i) {
        const int32_t s = topk.view().row<int32_t>(t)[i];
        if (s < 0) continue;
        ASSERT_EQ(seen.size(), static_cast<size_t>(i)) << "a hole before index " << i;
        ASSERT_GT(s, previous) << "not ascending";
        ASSERT_GE(s, p.c.first);
        ASSERT_LT(s, static_cast<int32_t>(score.size())) << "selected an invisible slot";
        previous = s;
        seen.insert(s);
        worst_taken = std::min(worst_taken, score[s].value + score[s].error(*device));
      }
      for (int32_t s = p.c.first; s < static_cast<int32_t>(score.size()); ++s) {
        if (!seen.contains(s)) best_left = std::max(best_left, score[s].value - score[s].error(*device));
      }
      const int64_t n_candidates = std::max<int64_t>(0, static_cast<int64_t>(score.size()) - p.c.first);
      EXPECT_EQ(static_cast<int64_t>(seen.size()), std::min(n_candidates, p.c.n_topk))
          << device->name() << " row " << t;
      EXPECT_GE(worst_taken, best_left) << device->name() << " row " << t;
    }
  }
}

// A row's scores and selects are the same bits in any batch, on any number of threads, in any page order, with its
// neighbours or without, on any kernel set with the same tree.
TEST_P(IndexTopkTest, BitsDependOnTheRowAlone) {
  Problem p(GetParam()), shuffled(GetParam(), 4242);
  const int64_t n_rows = p.c.n_rows, n_slots = p.c.n_cached;
  const Tensor first = p.scores(plain_device(), 0, n_rows, n_slots);
  for (TestDevice* device : backends_under_test()) {
    if (!runs(*device, p.c)) continue;
    const Tensor score = p.scores(*device, 0, n_rows, n_slots), topk = p.topk(*device, 0, n_rows);
    ASSERT_TRUE(same_bits(score, shuffled.scores(*device, 0, n_rows, n_slots))) << device->name();
    if (!has_own_tree(*device, p.c)) {
      ASSERT_TRUE(same_bits(score, first)) << device->name();
    }
    for (const int together : {2, kRunOfRows, 5, 8}) {
      ASSERT_TRUE(same_bits(score, p.scores(*device, 0, n_rows, n_slots, together))) << device->name();
      ASSERT_TRUE(same_bits(topk, p.topk(*device, 0, n_rows, together))) << device->name();
      ASSERT_TRUE(same_bits(topk, p.topk(*device, 0, n_rows, together, true))) << device->name() << ", planned before";
    }

    Tensor chosen(DType::kI32, {n_rows, p.c.n_topk});
    const std::vector<int32_t> begin(static_cast<size_t>(n_rows), p.c.first);
    Args args(*device);
    ops::select_topk(device->ctx(), {.score = args.in(score),
                                     .begin = args.in(i32_tensor(begin)),
                                     .end = args.in(i32_tensor(p.visible)),
                                     .topk = args.out(chosen)});
    args.fetch();
    ASSERT_TRUE(same_bits(topk, chosen)) << device->name() << ": the fused op and its parts";
    for (const int64_t t : rows_alone(n_rows)) {
      ASSERT_TRUE(same_bits(p.scores(*device, t, 1, n_slots), score.view().slice_first(t, 1)))
          << device->name() << " row " << t;
      ASSERT_TRUE(same_bits(p.topk(*device, t, 1), topk.view().slice_first(t, 1))) << device->name() << " row " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, IndexTopkTest,
    ::testing::Values(Case{CacheDType::kF32, 7, 16, 32, 200, 12, 0}, Case{CacheDType::kBF16, 7, 16, 32, 200, 12, 0},
                      Case{CacheDType::kFp8, 7, 16, 32, 200, 12, 0}, Case{CacheDType::kF32, 20, 3, 40, 333, 12, 1},
                      Case{CacheDType::kBF16, 20, 3, 40, 333, 12, 1}, Case{CacheDType::kFp8, 20, 3, 40, 333, 12, 1},
                      Case{CacheDType::kF32, 3, 64, 128, 300, 64, 0}, Case{CacheDType::kBF16, 3, 64, 128, 300, 64, 0},
                      Case{CacheDType::kFp8, 3, 64, 128, 300, 64, 0}, Case{CacheDType::kF32, 4, 7, 130, 129, 5, 65},
                      Case{CacheDType::kBF16, 4, 7, 131, 129, 5, 65}, Case{CacheDType::kF32, 2, 1, 1, 64, 100, 0},
                      Case{CacheDType::kF32, 1, 4, 16, 20000, 2048, 0},
                      Case{CacheDType::kBF16, 40, 5, 24, 1000, 100, 1},
                      Case{CacheDType::kFp8, 13, 16, 128, 500, 128, 1},
                      Case{CacheDType::kFp8, 4, 32, 128, 1500, 1024, 70}));

// The tree of ops/index_topk.h for bf16 keys on the amx-bf16 set.
float tile_tree_score(const Problem& p, int64_t t, int64_t slot) {
  const std::vector<double> key = decode_index_key(p.format, p.cache.rows(), p.seq[t], slot);
  float total[16] = {};
  for (int64_t h = 0; h < p.c.n_heads; ++h) {
    const int64_t row = t * p.c.n_heads + h;
    float dot = 0;
    for (int64_t step = 0; step < p.c.d; step += 32) {
      float sum[2] = {};  // of even and of odd columns
      for (int64_t i = step; i < step + 32; ++i) {
        sum[i % 2] += static_cast<float>(value_of(p.q, row * p.c.d + i) * key[i]);  // a product is exact in f32
      }
      dot += sum[0] + sum[1];
    }
    total[h % 16] = std::fma(p.w.at(row), std::max(0.0f, dot), total[h % 16]);
  }
  for (int64_t half = 8; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) total[i] += total[i + half];
  }
  return total[0];
}

TEST(IndexTopkTileTest, SumsAsItsHeaderSays) {
  if (!is_usable(Isa::kAmxBf16)) GTEST_SKIP() << "no matrix unit";
  for (const auto& [n_heads, d] : {std::pair{1, 32}, {7, 160}, {16, 128}, {17, 64}, {48, 96}, {64, 128}, {70, 32}}) {
    Problem p({CacheDType::kBF16, 20, n_heads, d, 150, 10, 3});
    for (const auto& device : devices_under_test()) {
      if (device->isa() != Isa::kAmxBf16) continue;
      const Tensor score = p.scores(*device, 0, p.c.n_rows, p.c.n_cached);
      for (int64_t t = 0; t < p.c.n_rows; ++t) {
        for (int64_t s = p.c.first; s < p.visible[t]; ++s) {
          ASSERT_EQ(score.at(t * p.c.n_cached + s), tile_tree_score(p, t, s))
              << device->name() << ", " << n_heads << " heads of " << d << ", row " << t << ", slot " << s;
        }
      }
    }
  }
}

// Keys that come in pieces give the same scores as keys that come at once.
TEST(IndexTopkChunks, AppendingInPiecesChangesNothing) {
  const Case c{CacheDType::kFp8, 5, 8, 64, 300, 32, 0};
  Problem whole(c), pieces(c);
  Random random(11);
  const Tensor keys = random_tensor(random, {300, 64});
  whole.append(keys, 0, 0);
  for (int64_t at = 0, n = 1; at < 300; at += n, n = std::min<int64_t>(300 - at, 2 * n + 5)) {
    pieces.append(
        Tensor::of(std::vector<float>(keys.view().row<float>(at), keys.view().row<float>(at) + n * 64), {n, 64}), 0,
        at);
  }
  for (const auto& device : devices_under_test()) {
    Tensor a(DType::kF32, {5, 300}), b(DType::kF32, {5, 300});
    ops::index_scores(device->ctx(), {.query = whole.query(0, 5), .score = a});
    ops::index_scores(device->ctx(), {.query = pieces.query(0, 5), .score = b});
    ASSERT_TRUE(same_bits(a, b)) << device->name();
  }
}

// More rows than fit the score buffer at once are scored in runs.
TEST(IndexTopkMemory, RunsOfRowsGiveTheSamePicks) {
  const int64_t n_cached = 1 << 20, n_rows = 26;  // 8 rows fill the buffer
  const IndexKeyFormat format = index_key_format(CacheDType::kF32, 2);
  const PagedCache cache(format.page_bytes(), 1, n_cached, 0);
  Random random(12);
  for (int64_t page = 0; page < n_cached / kPageTokens; ++page) {
    auto* keys = reinterpret_cast<float*>(cache.rows().page(0, page));
    for (int64_t i = 0; i < 2 * kPageTokens; ++i) keys[i] = static_cast<float>(random.below(1000)) - 300;
  }
  const Tensor q = random_tensor(random, {n_rows, 1, 2}), w = random_tensor(random, {n_rows, 1});
  std::vector<int32_t> seq(n_rows, 0), visible(n_rows, static_cast<int32_t>(n_cached));
  visible[4] = 3;  // takes all it sees, between runs
  const auto query = [&](int64_t begin, int64_t n) {
    return ops::IndexQuery{.q = q.view().slice_first(begin, n),
                           .w = w.view().slice_first(begin, n),
                           .seq = View::of(seq.data() + begin, {n}),
                           .visible = View::of(visible.data() + begin, {n}),
                           .format = format,
                           .cache = cache.rows()};
  };
  TestDevice device(devices_under_test().back()->isa(), 3);
  Tensor topk(DType::kI32, {n_rows, 100}), alone(DType::kI32, {1, 100});
  ops::index_topk(device.ctx(), {.query = query(0, n_rows), .topk = topk});
  for (int64_t t = 0; t < n_rows; ++t) {
    ops::index_topk(device.ctx(), {.query = query(t, 1), .topk = alone});
    ASSERT_TRUE(same_bits(alone, topk.view().slice_first(t, 1))) << t;
  }
  // The scores and a selection's two words per slot on each thread; twice, because the arena may leave the ends of its
  // blocks empty. All scores at once would be more.
  const int64_t limit = 2 * (ops::kIndexScoreBytes + 3 * 8 * (n_cached + 64)) - (int64_t{20} << 20);
  EXPECT_LT(limit, 4 * n_rows * n_cached);
  EXPECT_LT(device.ctx().arena->peak_bytes(), limit);
}

TEST(TakeAll, GivesThePicksOfIndexTopkWithoutAQuery) {
  for (const int32_t first : {0, 1}) {
    Problem p({CacheDType::kBF16, 6, 2, 8, 40, 40, first});
    p.visible = {0, 1, 2, 17, 39, 40};
    for (const auto& device : devices_under_test()) {
      Tensor expected(DType::kI32, {6, 40}), found(DType::kI32, {6, 40});
      ops::index_topk(device->ctx(), {.query = p.query(0, 6), .topk = expected});
      const View visible = View::of(p.visible.data(), {6});
      ops::take_all(device->ctx(), {.visible = visible, .first = first, .topk = found});
      EXPECT_TRUE(same_bits(expected, found)) << device->name() << " first " << first;
    }
  }
}

TEST(TakeAll, TakesEveryVisibleSlot) {
  const std::vector<int32_t> visible = {0, 1, 2, 17, 63, 64};
  std::vector<int32_t> want;
  for (const int32_t end : visible) {
    for (int32_t i = 0; i < 64; ++i) want.push_back(1 + i < end ? 1 + i : -1);
  }
  for (TestDevice* device : backends_under_test()) {
    const Tensor topk(DType::kI32, {6, 64});
    Args args(*device);
    ops::take_all(device->ctx(), {.visible = args.in(i32_tensor(visible)), .first = 1, .topk = args.out(topk)});
    args.fetch();
    EXPECT_TRUE(same_bits(topk, Tensor::of(want, {6, 64}))) << device->name();
  }
}

// The row takes its first candidates and is marked; the others have the bits that they have without it.
TEST(IndexTopkTest, ARowWithANanIsMarkedAndTheOthersStay) {
  Problem p({CacheDType::kF32, 4, 2, 8, 100, 10, 0});
  Tensor bad = random_tensor(*std::make_unique<Random>(1), {1, 8});
  bad.at(5) = std::numeric_limits<float>::quiet_NaN();
  p.append(bad, 0, 30);
  for (const auto& device : devices_under_test()) {
    Tensor topk(DType::kI32, {4, 10}), faults(DType::kI32, {4});
    std::fill_n(faults.view().data<int32_t>(), 4, 0);
    ops::index_topk(device->ctx(), {.query = p.query(0, 4), .topk = topk, .faults = faults});
    for (int64_t t = 0; t < 4; ++t) {
      const bool sees_it = p.query(0, 4).visible.data<int32_t>()[t] > 30 && p.query(0, 4).seq.data<int32_t>()[t] == 0;
      EXPECT_EQ(faults.view().data<int32_t>()[t] != 0, sees_it) << device->name() << " " << t;
      if (!sees_it) continue;
      for (int32_t i = 0; i < 10; ++i) EXPECT_EQ(topk.view().row<int32_t>(t)[i], i);
    }
  }
}

TEST(IndexTopkDeathTest, NamesTheArgument) {
  Problem p({CacheDType::kF32, 4, 2, 8, 100, 10, 0});
  Tensor topk(DType::kI32, {3, 10});
  EXPECT_DEATH(ops::index_topk(plain_device().ctx(), {.query = p.query(0, 4), .topk = topk}), "topk is i32 .3, 10.");
  p.visible[2] = 1000;
  Tensor right(DType::kI32, {4, 10});
  EXPECT_DEATH(ops::index_topk(plain_device().ctx(), {.query = p.query(0, 4), .topk = right}), "row 2 sees 1000 slots");
}

}  // namespace
}  // namespace levin::testing
