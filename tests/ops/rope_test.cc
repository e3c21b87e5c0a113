#include "ops/rope.h"

#include <cmath>

#include "ops/support.h"

namespace levin::testing {
namespace {

using ops::RopePairing;

// A quarter turn takes a pair (a, b) to (-b, a), which shows the pairing at a glance.
TEST(RopeTest, PairsAsNamed) {
  const Tensor cos = Tensor::of(std::vector<float>{0, 0}, {1, 2}), sin = Tensor::of(std::vector<float>{1, 1}, {1, 2});
  for (const auto& device : devices_under_test()) {
    Tensor interleaved = Tensor::of(std::vector<float>{1, 2, 3, 4}, {1, 1, 4});
    ops::rope(device->ctx(), {.x = interleaved, .cos = cos, .sin = sin, .pairing = RopePairing::kInterleaved});
    EXPECT_TRUE(same_bits(interleaved, Tensor::of(std::vector<float>{-2, 1, -4, 3}, {1, 1, 4}))) << device->name();
    Tensor half_split = Tensor::of(std::vector<float>{1, 2, 3, 4}, {1, 1, 4});
    ops::rope(device->ctx(), {.x = half_split, .cos = cos, .sin = sin, .pairing = RopePairing::kHalfSplit});
    EXPECT_TRUE(same_bits(half_split, Tensor::of(std::vector<float>{-3, -4, 1, 2}, {1, 1, 4}))) << device->name();
  }
}

struct Case {
  int64_t n_rows, n_heads, d;
  RopePairing pairing;
};
class RopeShapeTest : public ::testing::TestWithParam<Case> {};

// Each output is one product and one fused multiply-add, so its error is at most half a unit of either.
TEST_P(RopeShapeTest, RotatesASliceOnEveryDevice) {
  const Case c = GetParam();
  constexpr int64_t kBefore = 24, kAfter = 3;
  const int64_t wide = kBefore + c.d + kAfter;
  Random random(c.d + c.n_heads);
  const Tensor x = random_tensor(random, {c.n_rows, c.n_heads, wide});
  Tensor cos(DType::kF32, {c.n_rows, c.d / 2}), sin(DType::kF32, {c.n_rows, c.d / 2});
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < c.n_rows; ++t) positions.push_back(static_cast<int32_t>(random.below(100000)));
  std::vector<float> frequencies;
  for (int64_t j = 0; j < c.d / 2; ++j) frequencies.push_back(std::pow(1e4f, -2.0f * j / c.d));
  ops::rope_table(
      plain_device().ctx(),
      {.positions = Tensor::of(positions, {c.n_rows}), .frequencies = &frequencies, .cos = cos, .sin = sin});
  Tensor first(DType::kF32, {c.n_rows, c.n_heads, wide});
  for (const auto& device : devices_under_test()) {
    Tensor out = random_tensor(random, {c.n_rows, c.n_heads, wide});
    std::copy_n(x.view().data<float>(), x.view().n_elements(), out.view().data<float>());
    ops::rope(device->ctx(), {.x = out.view().slice_last(kBefore, c.d), .cos = cos, .sin = sin, .pairing = c.pairing});
    if (device == devices_under_test().front())
      first = Tensor::of(std::vector<float>(out.view().data<float>(), out.view().data<float>() + x.view().n_elements()),
                         {c.n_rows, c.n_heads, wide});
    ASSERT_TRUE(same_bits(out, first)) << device->name();
    for (int64_t row = 0; row < c.n_rows * c.n_heads; ++row) {
      for (int64_t i = 0; i < wide; ++i) {
        const double got = out.at(row * wide + i), in = x.at(row * wide + i);
        if (i < kBefore || i >= kBefore + c.d) {
          ASSERT_EQ(got, in) << "outside the slice";
          continue;
        }
        const bool adjacent = c.pairing == RopePairing::kInterleaved;
        const int64_t k = i - kBefore, half = c.d / 2;
        const int64_t pair = adjacent ? k / 2 : k % half;
        const bool second = adjacent ? k % 2 == 1 : k >= half;
        const int64_t other = adjacent ? k ^ 1 : (k + half) % c.d;
        const double cosine = cos.at(row / c.n_heads * half + pair), sine = sin.at(row / c.n_heads * half + pair);
        const double product = x.at(row * wide + kBefore + other) * sine;
        const double want = in * cosine + (second ? product : -product);
        ASSERT_NEAR(got, want, 0x1p-24 * (std::abs(product) + std::abs(want)) + 0x1p-149) << row << ", " << i;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, RopeShapeTest,
    ::testing::Values(Case{3, 128, 64, RopePairing::kInterleaved}, Case{3, 64, 64, RopePairing::kHalfSplit},
                      Case{2, 3, 16, RopePairing::kInterleaved}, Case{2, 3, 16, RopePairing::kHalfSplit},
                      Case{5, 1, 6, RopePairing::kInterleaved}, Case{5, 1, 38, RopePairing::kHalfSplit}));

// The angle is rounded to f32 first: at a million, half a unit of it is 0.03 rad, which an angle in double would show.
TEST(RopeTableTest, TakesTheCosineOfTheRoundedProduct) {
  const std::vector<float> frequencies = {1.0f, 0.7498942f, 0.05623413f, 3.3338036e-06f};
  const std::vector<int32_t> positions = {0, 1, 7, 4095, 163839, 1000003};
  const int64_t n_rows = static_cast<int64_t>(positions.size());
  Tensor cos(DType::kF32, {n_rows, 4}), sin(DType::kF32, {n_rows, 4});
  for (const auto& device : devices_under_test()) {
    ops::rope_table(
        device->ctx(),
        {.positions = Tensor::of(positions, {n_rows}), .frequencies = &frequencies, .cos = cos, .sin = sin});
    for (int64_t t = 0; t < n_rows; ++t) {
      for (int64_t j = 0; j < 4; ++j) {
        const float angle = static_cast<float>(positions[t]) * frequencies[j];
        EXPECT_EQ(cos.at(t * 4 + j), static_cast<float>(std::cos(double{angle})));
        EXPECT_EQ(sin.at(t * 4 + j), static_cast<float>(std::sin(double{angle})));
      }
    }
  }
}

}  // namespace
}  // namespace levin::testing
