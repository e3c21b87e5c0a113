#include "decode/noise.h"

#include <gtest/gtest.h>

#include <cmath>

namespace levin {
namespace {

// Known answers published with the generator (Random123).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

double gumbel_noise(const NoisePlace& place, uint32_t token) { return gumbel_of(noise_bits(place, token)[token % 4]); }

TEST(Gumbel, HasTheDistributionsMeanAndVariance) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const double g =
        gumbel_noise({.seed = 5, .position = static_cast<uint32_t>(i / 1000)}, static_cast<uint32_t>(i % 1000));
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5772156649, 5 * 1.2825 / std::sqrt(kDraws));  // Euler's constant
  EXPECT_NEAR(squares / kDraws - mean * mean, M_PI * M_PI / 6, 5 * 2.98 / std::sqrt(kDraws));
}

TEST(Gumbel, DependsOnEveryPartOfThePlace) {
  const NoisePlace place{.seed = 1, .position = 2, .choice = 3};
  const double g = gumbel_noise(place, 4);
  EXPECT_EQ(g, gumbel_noise(place, 4));
  EXPECT_NE(g, gumbel_noise(place, 5));
  EXPECT_NE(g, gumbel_noise(place, 8));
  EXPECT_NE(g, gumbel_noise({.seed = 1 + (uint64_t{1} << 40), .position = 2, .choice = 3}, 4));
  EXPECT_NE(g, gumbel_noise({.seed = 1, .position = 3, .choice = 3}, 4));
  EXPECT_NE(g, gumbel_noise({.seed = 1, .position = 2, .choice = 0}, 4));
}

TEST(Gumbel, IsNeverAboveItsBound) { EXPECT_LT(-std::log(-std::log((0xFFFFFFFFu + 0.5) * 0x1p-32)), kMaxGumbelNoise); }

}  // namespace
}  // namespace levin
