// The selection alone: exact, whatever the scores look like.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/index_topk.h"
#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// By stable sort: score descending, slot ascending; -0 equals +0 to operator>.
std::vector<int32_t> sorted_topk(const std::vector<float>& score, int64_t begin, int64_t end, int64_t n_topk) {
  std::vector<int32_t> slots(static_cast<size_t>(std::max<int64_t>(0, end - begin)));
  std::iota(slots.begin(), slots.end(), static_cast<int32_t>(begin));
  std::stable_sort(slots.begin(), slots.end(), [&](int32_t i, int32_t j) { return score[i] > score[j]; });
  slots.resize(std::min<size_t>(slots.size(), static_cast<size_t>(n_topk)));
  std::sort(slots.begin(), slots.end());
  slots.resize(static_cast<size_t>(n_topk), -1);
  return slots;
}

std::vector<int32_t> topk_of(TestDevice& device, const std::vector<float>& score, int64_t begin, int64_t end,
                             int64_t n_topk) {
  Tensor topk(DType::kI32, {1, n_topk});
  const Tensor row = Tensor::of(score, {1, static_cast<int64_t>(score.size())}),
               first = i32_tensor({static_cast<int32_t>(begin)}), last = i32_tensor({static_cast<int32_t>(end)});
  Args args(device);
  ops::select_topk(device.ctx(),
                   {.score = args.in(row), .begin = args.in(first), .end = args.in(last), .topk = args.out(topk)});
  args.fetch();
  const int32_t* p = topk.view().data<int32_t>();
  return {p, p + n_topk};
}

// Shapes of score rows that selections get wrong: plateaus at the border, one value, signs and zeros, a drift that
// makes a sample lie.
std::vector<float> scores(int kind, int64_t n, Random& random) {
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    switch (kind) {
      case 0:
        x[i] = random.normal();
        break;
      case 1:
        x[i] = static_cast<float>(random.below(5)) - 2;
        break;
      case 2:
        x[i] = 0.25f;
        break;
      case 3:
        x[i] = random.below(2) != 0 ? 0.0f : -0.0f;
        break;
      case 4:
        x[i] = random.below(50) == 0 ? random.normal() : 0.0f;
        break;
      case 5:
        x[i] = i % 16 == 0 ? 1000.0f + random.normal() : random.normal();
        break;  // the sampled ones are larger
      case 6:
        x[i] = i % 16 == 0 ? -1000.0f : random.normal();
        break;  // the sampled ones are smaller
      case 7:
        x[i] = static_cast<float>(i) * 1e-3f;
        break;
      case 8:
        x[i] = std::ldexp(random.normal(), static_cast<int>(random.below(200)) - 100);
        break;
      case 9:
        x[i] = random.below(4) == 0 ? (random.below(2) != 0 ? kInf : -kInf) : random.normal();
        break;
      default:
        x[i] = std::nextafter(1.0f, 2.0f + static_cast<float>(random.below(2)));
        break;
    }
  }
  return x;
}

TEST(SelectTopkTest, EqualsAStableSortOnEveryShape) {
  Random random(1);
  for (TestDevice* device : backends_under_test()) {
    for (int kind = 0; kind <= 10; ++kind) {
      for (const int64_t n : {0, 1, 11, 12, 13, 100, 2049, 4097, 20000}) {
        const std::vector<float> x = scores(kind, n + 3, random);
        for (const int64_t n_topk : {1, 12, 64, 2048}) {
          if (device->on_cuda() && n_topk % 64 != 0) continue;
          ASSERT_EQ(topk_of(*device, x, 1, n + 1, n_topk), sorted_topk(x, 1, n + 1, n_topk))
              << device->name() << ", shape " << kind << ", " << n << " scores, K = " << n_topk;
        }
      }
    }
  }
}

TEST(SelectTopkTest, AMillionScores) {
  Random random(2);
  const int64_t n = 1'000'003;
  for (const int kind : {0, 1, 5}) {
    const std::vector<float> x = scores(kind, n, random);
    const std::vector<int32_t> want = sorted_topk(x, 0, n, 2048);
    for (TestDevice* device : backends_under_test()) ASSERT_EQ(topk_of(*device, x, 0, n, 2048), want) << device->name();
  }
}

RC_GTEST_PROP(SelectTopkProperty, EqualsAStableSort, ()) {
  const int64_t n = *rc::gen::inRange<int64_t>(0, 6000);
  const int64_t begin = *rc::gen::inRange<int64_t>(0, 100), n_topk = *rc::gen::inRange<int64_t>(1, 700);
  const int n_values = *rc::gen::element(1, 2, 3, 17, 1000, 1000000);
  Random random(*rc::gen::arbitrary<uint64_t>());
  std::vector<float> x(static_cast<size_t>(begin + n + 5));
  for (float& v : x) v = static_cast<float>(random.below(n_values) - n_values / 2) * 0.37f;
  for (const auto& device : devices_under_test()) {
    if (device->n_threads() != 1) continue;
    RC_ASSERT(topk_of(*device, x, begin, begin + n, n_topk) == sorted_topk(x, begin, begin + n, n_topk));
  }
}

TEST(SelectTopkTest, RowsKeepTheirOwnRanges) {
  Random random(3);
  const int64_t n_rows = 9, n = 300;
  const std::vector<float> x = scores(1, n_rows * n, random);
  std::vector<int32_t> begin, end;
  for (int32_t t = 0; t < n_rows; ++t) begin.push_back(3 * t), end.push_back(300 - 33 * t);
  for (TestDevice* device : backends_under_test()) {
    for (const int64_t n_topk : {20, 128}) {
      if (device->on_cuda() && n_topk % 64 != 0) continue;
      Tensor topk(DType::kI32, {n_rows, n_topk});
      Args args(*device);
      ops::select_topk(device->ctx(), {.score = args.in(Tensor::of(x, {n_rows, n})),
                                       .begin = args.in(i32_tensor(begin)),
                                       .end = args.in(i32_tensor(end)),
                                       .topk = args.out(topk)});
      args.fetch();
      for (int64_t t = 0; t < n_rows; ++t) {
        const std::vector<float> row(x.begin() + t * n, x.begin() + (t + 1) * n);
        const int32_t* p = topk.view().row<int32_t>(t);
        ASSERT_EQ(std::vector<int32_t>(p, p + n_topk), sorted_topk(row, begin[t], end[t], n_topk))
            << device->name() << " " << t;
      }
    }
  }
}

TEST(SelectTopkTest, ARowWithANanTakesItsFirstCandidates) {
  Random random(4);
  for (const int64_t n : {20, 5000}) {
    std::vector<float> x = scores(0, n, random);
    x[n - 3] = -std::numeric_limits<float>::quiet_NaN();
    for (const auto& device : devices_under_test()) {
      if (device->n_threads() != 1) continue;
      const std::vector<int32_t> first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
      EXPECT_EQ(topk_of(*device, x, 0, n, 12), first);
      EXPECT_EQ(topk_of(*device, x, 0, n - 3, 12), sorted_topk(x, 0, n - 3, 12)) << "outside the range NaN is nobody's";
    }
  }
}

}  // namespace
}  // namespace levin::testing
