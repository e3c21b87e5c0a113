#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "ops/moe.h"
#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

struct Case {
  int64_t n_rows, n_experts;
  int n_groups, n_groups_kept;
  int64_t n_active;
};

struct Routing {
  Tensor topk, weights;
};
Routing route(TestDevice& device, const Case& c, const Tensor& logits, const Tensor& bias, bool normalize = true) {
  const int64_t n_rows = logits.view().dim(0);
  Routing r{.topk = Tensor(DType::kI32, {n_rows, c.n_active}), .weights = Tensor(DType::kF32, {n_rows, c.n_active})};
  Args args(device);
  ops::route_experts(device.ctx(), {.logits = args.in(logits),
                                    .bias = args.in(bias),
                                    .n_groups = c.n_groups,
                                    .n_groups_kept = c.n_groups_kept,
                                    .normalize = normalize,
                                    .factor = 2.5f,
                                    .topk = args.out(r.topk),
                                    .weights = args.out(r.weights)});
  args.fetch();
  return r;
}

// Groups of a row by the sum of their two best, kept ones as a set. Values in double; the closest race of random
// numbers is far wider than f32 rounding, so the sets must agree.
std::set<int64_t> oracle_topk(const Case& c, const std::vector<double>& biased) {
  const int64_t size = c.n_experts / c.n_groups;
  std::vector<std::pair<double, int64_t>> groups, experts;
  for (int64_t g = 0; g < c.n_groups; ++g) {
    std::vector<double> values(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(values.rbegin(), values.rend());
    groups.emplace_back(-(values[0] + (size > 1 ? values[1] : 0)), g);
  }
  std::sort(groups.begin(), groups.end());
  for (int64_t kept = 0; kept < c.n_groups_kept; ++kept) {
    for (int64_t e = groups[kept].second * size; e < (groups[kept].second + 1) * size; ++e)
      experts.emplace_back(-biased[e], e);
  }
  std::sort(experts.begin(), experts.end());
  std::set<int64_t> topk;
  for (int64_t i = 0; i < c.n_active; ++i) topk.insert(experts[i].second);
  return topk;
}

class RouteExpertsTest : public ::testing::TestWithParam<Case> {};

TEST_P(RouteExpertsTest, ChoosesAndWeighsAsTheOracle) {
  const Case c = GetParam();
  Random random(c.n_experts);
  const Tensor logits = random_tensor(random, {c.n_rows, c.n_experts}, 2.0f);
  const Tensor bias =
      random_tensor(random, {c.n_experts}, 3.0f);  // many b are negative, which a mask of 0 would win over
  const Routing want = route(plain_device(), c, logits, bias);
  for (int64_t t = 0; t < c.n_rows; ++t) {
    std::vector<double> s, b;
    for (int64_t e = 0; e < c.n_experts; ++e) {
      s.push_back(1 / (1 + std::exp(-double{logits.at(t * c.n_experts + e)})));
      b.push_back(s.back() + bias.at(e));
    }
    const std::set<int64_t> topk = oracle_topk(c, b);
    const int32_t* got = want.topk.view().row<int32_t>(t);
    ASSERT_TRUE(std::equal(topk.begin(), topk.end(), got, got + c.n_active)) << "row " << t;
    double sum = 0;
    for (const int64_t e : topk) sum += s[e];
    for (int64_t i = 0; i < c.n_active; ++i) {
      // sigmoid is good to 3 units, the sum of A of them to 3 + A, quotient and factor add two.
      const double expected = s[got[i]] / sum * 2.5;
      ASSERT_NEAR(want.weights.at(t * c.n_active + i), expected, expected * (8.0 + c.n_active) * 0x1p-23);
    }
  }
  for (TestDevice* device : backends_under_test()) {
    const Routing r = route(*device, c, logits, bias);
    ASSERT_TRUE(same_bits(r.topk, want.topk)) << device->name();
    ASSERT_TRUE(same_bits(r.weights, want.weights)) << device->name();
    const Routing alone = route(*device, c,
                                Tensor::of(std::vector<float>(logits.view().row<float>(c.n_rows - 1),
                                                              logits.view().row<float>(c.n_rows - 1) + c.n_experts),
                                           {1, c.n_experts}),
                                bias);
    ASSERT_TRUE(same_bits(alone.weights, want.weights.view().slice_first(c.n_rows - 1, 1))) << device->name();
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, RouteExpertsTest,
                         ::testing::Values(Case{9, 256, 8, 4, 8}, Case{9, 256, 1, 1, 8}, Case{5, 12, 3, 2, 4},
                                           Case{5, 7, 1, 1, 7}, Case{3, 160, 1, 1, 6}, Case{4, 16, 4, 1, 4}));

TEST(RouteExpertsTies, GoToTheLowestIndex) {
  const Case c{1, 12, 4, 2, 3};
  for (TestDevice* device : backends_under_test()) {
    // All equal: groups 0 and 1 stay, experts 0, 1, 2 win.
    Routing r = route(*device, c, Tensor(DType::kF32, {1, 12}), Tensor(DType::kF32, {12}));
    EXPECT_TRUE(same_bits(r.topk, Tensor::of(std::vector<int32_t>{0, 1, 2}, {1, 3}))) << device->name();
    // Group 3 wins by its pair, group 1 is next; within them 9, then the first of the equals 3, 4, 5, 10, 11.
    Tensor bias(DType::kF32, {12});
    bias.at(9) = 2, bias.at(10) = bias.at(11) = bias.at(3) = bias.at(4) = bias.at(5) = 1;
    r = route(*device, c, Tensor(DType::kF32, {1, 12}), bias);
    EXPECT_TRUE(same_bits(r.topk, Tensor::of(std::vector<int32_t>{3, 4, 9}, {1, 3}))) << device->name();
  }
}

TEST(RouteExpertsBias, MayBeLeftAway) {
  const Case c{4, 64, 1, 1, 6};
  Random random(3);
  const Tensor logits = random_tensor(random, {4, 64});
  const Routing want = route(plain_device(), c, logits, Tensor(DType::kF32, {64}));
  for (TestDevice* device : backends_under_test()) {
    const Tensor topk(DType::kI32, {4, 6}), weights(DType::kF32, {4, 6});
    Args args(*device);
    ops::route_experts(
        device->ctx(),
        {.logits = args.in(logits), .factor = 2.5f, .topk = args.out(topk), .weights = args.out(weights)});
    args.fetch();
    EXPECT_TRUE(same_bits(topk, want.topk)) << device->name();
    EXPECT_TRUE(same_bits(weights, want.weights)) << device->name();
  }
}

TEST(RouteExpertsWeights, AreTheScoresTimesTheFactorWhenNotNormalised) {
  const Case c{1, 4, 1, 1, 2};
  const Tensor logits(DType::kF32, {1, 4});
  for (TestDevice* device : backends_under_test()) {
    const Routing r = route(*device, c, logits, Tensor(DType::kF32, {4}), false);
    EXPECT_EQ(r.weights.at(0), 1.25f);
    EXPECT_EQ(r.weights.at(1), 1.25f);
  }
}

// Row 1 of 3; those before and after it are as if it were sound.
TEST(RouteExpertsTest, ARowWithANanGetsTheFirstExpertsWithoutWeightAndIsMarked) {
  for (const auto& device : devices_under_test()) {
    const Case c{3, 20, 1, 1, 2};
    Random random(7);
    Tensor logits = random_tensor(random, {3, 20});
    const Routing sound = route(*device, c, logits, Tensor(DType::kF32, {20}));
    logits.at(25) = std::numeric_limits<float>::quiet_NaN();
    Tensor topk(DType::kI32, {3, 2}), weights(DType::kF32, {3, 2}), faults(DType::kI32, {3});
    std::fill_n(faults.view().data<int32_t>(), 3, 0);
    ops::route_experts(device->ctx(),
                       {.logits = logits, .factor = 2.5f, .topk = topk, .weights = weights, .faults = faults});
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_EQ(faults.view().data<int32_t>()[t], t == 1 ? 1 : 0) << device->name();
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = 2 * t + i;
        EXPECT_EQ(topk.view().data<int32_t>()[at], t == 1 ? i : sound.topk.view().data<int32_t>()[at]);
        EXPECT_EQ(weights.at(at), t == 1 ? 0.0f : sound.weights.at(at));
      }
    }
  }
}

TEST(RouteExpertsDeathTest, NamesTheGroups) {
  Tensor logits(DType::kF32, {3, 20});
  EXPECT_DEATH(route(plain_device(), {3, 20, 3, 1, 2}, logits, Tensor(DType::kF32, {20})), "n_groups is 3");
}

// DeepSeek-V4: scores are sqrt(softplus(x)), which exp, log, sum and root leave good to 5 units; x near -100 and below
// gives scores near 0 that still have their digits, as long as exp(x) is a normal number.
TEST(RouteExpertsScores, OfSoftplusKeepTheirDigits) {
  const int64_t n_experts = 300, n_active = 6;
  std::vector<float> x;
  for (int64_t e = 0; e < n_experts; ++e) x.push_back(static_cast<float>(e - 150) * 0.55f);
  const Tensor logits = Tensor::of(x, {1, n_experts});
  const auto score = [](double z) { return std::sqrt(std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)))); };
  for (int64_t first = 0; first + n_active <= n_experts; first += n_active) {
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < n_active; ++i) chosen.push_back(static_cast<int32_t>(first + i));
    for (const auto& device : devices_under_test()) {
      Tensor topk(DType::kI32, {1, n_active}), weights(DType::kF32, {1, n_active});
      ops::route_experts(device->ctx(), {.logits = logits,
                                         .score = ops::ExpertScore::kSqrtSoftplus,
                                         .chosen = Tensor::of(chosen, {1, n_active}),
                                         .normalize = false,
                                         .topk = topk,
                                         .weights = weights});
      ASSERT_TRUE(same_bits(topk, Tensor::of(chosen, {1, n_active})));
      for (int64_t i = 0; i < n_active; ++i) {
        const double want = score(x[first + i]);
        ASSERT_NEAR(weights.at(i), want, 5 * 0x1p-24 * want) << device->name() << ", logit " << x[first + i];
      }
    }
  }
}

// Given experts win whatever their scores, also where every score is 0: their weights are 0 then, not NaN.
TEST(RouteExpertsChosen, WinWhateverTheirScores) {
  const Tensor logits = Tensor::of(std::vector<float>{-200, 5, -200, 3}, {1, 4});
  const Tensor chosen = Tensor::of(std::vector<int32_t>{0, 2}, {1, 2});
  for (const auto& device : devices_under_test()) {
    Tensor topk(DType::kI32, {1, 2}), weights(DType::kF32, {1, 2});
    ops::route_experts(device->ctx(), {.logits = logits,
                                       .score = ops::ExpertScore::kSqrtSoftplus,
                                       .chosen = chosen,
                                       .topk = topk,
                                       .weights = weights});
    EXPECT_TRUE(same_bits(topk, chosen)) << device->name();
    EXPECT_EQ(weights.at(0), 0.0f);
    EXPECT_EQ(weights.at(1), 0.0f);
  }
}

// A table by token id, in any order: rows of the step look theirs up, and hand the top-k indices on ascending.
TEST(RouteExpertsChosen, AreLookedUpByToken) {
  const Tensor logits = Tensor::of(std::vector<float>{1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 0, 0}, {3, 4});
  const Tensor table = Tensor::of(std::vector<int32_t>{3, 1, 2, 0}, {2, 2});
  const Tensor tokens = Tensor::of(std::vector<int32_t>{1, 0, 1}, {3});
  const Tensor rows = Tensor::of(std::vector<int32_t>{0, 2, 1, 3, 0, 2}, {3, 2});
  for (const auto& device : devices_under_test()) {
    Tensor topk(DType::kI32, {3, 2}), weights(DType::kF32, {3, 2}), expected_weights(DType::kF32, {3, 2});
    ops::RouteExperts a{.logits = logits, .score = ops::ExpertScore::kSqrtSoftplus};
    a.chosen = table, a.tokens = tokens, a.topk = topk, a.weights = weights;
    ops::route_experts(device->ctx(), a);
    EXPECT_TRUE(same_bits(topk, rows)) << device->name();
    a.chosen = rows, a.tokens = View(), a.weights = expected_weights;
    ops::route_experts(device->ctx(), a);
    EXPECT_TRUE(same_bits(weights, expected_weights)) << device->name();
  }
}

TEST(RouteExpertsDeathTest, ChosenExpertsDiffer) {
  Tensor topk(DType::kI32, {1, 2}), weights(DType::kF32, {1, 2});
  const Tensor logits(DType::kF32, {1, 4}), chosen = Tensor::of(std::vector<int32_t>{1, 1}, {1, 2});
  EXPECT_DEATH(
      ops::route_experts(plain_device().ctx(), {.logits = logits, .chosen = chosen, .topk = topk, .weights = weights}),
      "chosen\\[0\\] has 1");
}

// silu is good to exp's error, an addition and a division: 3 units in the last place. Where exp(-x) is beyond f32 it is
// 0 instead of at most 89 e^-89 = 2e-37.
TEST(SiluMulTest, IsNearTheOracleAndTheSameEverywhere) {
  Random random(8);
  const int64_t n_rows = 3, d = 1000;
  Tensor gate = random_tensor(random, {n_rows, d}, 20.0f);
  for (int64_t i = 0; i < 200; ++i) gate.at(i) = static_cast<float>(i - 100) * 1.1f;
  const Tensor up = random_tensor(random, {n_rows, d});
  Tensor want(DType::kF32, {n_rows, d});
  ops::silu_mul(plain_device().ctx(), {.gate = gate, .up = up, .out = want});
  for (int64_t i = 0; i < n_rows * d; ++i) {
    const double expected = gate.at(i) / (1 + std::exp(-double{gate.at(i)})) * up.at(i);
    ASSERT_NEAR(want.at(i), expected, 4 * 0x1p-23 * std::abs(expected) + 2e-37) << gate.at(i);
  }
  for (const auto& device : devices_under_test()) {
    Tensor out =
        Tensor::of(std::vector<float>(gate.view().data<float>(), gate.view().data<float>() + n_rows * d), {n_rows, d});
    ops::silu_mul(device->ctx(), {.gate = out, .up = up, .out = out});
    ASSERT_TRUE(same_bits(out, want)) << device->name();
  }
}

// The gate is cut off above alone, the other factor on both sides.
TEST(SiluMulTest, StaysWithinItsLimit) {
  Random random(9);
  const int64_t n_rows = 3, d = 500;
  const Tensor gate = random_tensor(random, {n_rows, d}, 20.0f), up = random_tensor(random, {n_rows, d}, 20.0f);
  Tensor cut_gate(DType::kF32, {n_rows, d}), cut_up(DType::kF32, {n_rows, d}), want(DType::kF32, {n_rows, d});
  for (int64_t i = 0; i < n_rows * d; ++i) {
    cut_gate.at(i) = std::min(gate.at(i), 7.0f);
    cut_up.at(i) = std::clamp(up.at(i), -7.0f, 7.0f);
  }
  ops::silu_mul(plain_device().ctx(), {.gate = cut_gate, .up = cut_up, .out = want});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {n_rows, d});
    ops::silu_mul(device->ctx(), {.gate = gate, .up = up, .limit = 7.0f, .out = out});
    ASSERT_TRUE(same_bits(out, want)) << device->name();
  }
}

TEST(SiluMulTest, HandsInfinitiesAndNanOn) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor gate = Tensor::of(std::vector<float>{inf, nan, -200.0f, 0.0f, 3.4e38f, -3.4e38f}, {1, 6});
  const Tensor up = Tensor::of(std::vector<float>(6, 1.0f), {1, 6});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {1, 6});
    ops::silu_mul(device->ctx(), {.gate = gate, .up = up, .out = out});
    EXPECT_EQ(out.at(0), inf);
    EXPECT_TRUE(std::isnan(out.at(1)));
    EXPECT_EQ(out.at(2), 0.0f);
    EXPECT_EQ(out.at(3), 0.0f);
    EXPECT_EQ(out.at(4), 3.4e38f);
    EXPECT_EQ(out.at(5), 0.0f);
  }
}

}  // namespace
}  // namespace levin::testing
