#include "base/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace levin {
namespace {

constexpr long double kTolerance = 0x1p-50L;  // relative, as the header promises

// Points of [low, high], evenly spaced but off every round number.
template <class Check>
void for_points(double low, double high, int n, const Check& check) {
  for (int i = 0; i <= n; ++i) check(low + (high - low) * (i + 0.37 * (i % 3 == 1)) / (n + 1));
}

TEST(MathTest, ExpIsWithinItsBound) {
  const auto check = [](double x) {
    const long double exact = std::exp(static_cast<long double>(x));
    ASSERT_LE(std::fabs(exp_exact(x) - exact), kTolerance * exact) << x;
  };
  for_points(-700.0, 709.0, 20000, check);
  for_points(-1.0, 1.0, 20000, check);
}

TEST(MathTest, ExpAtTheEndsOfItsRange) {
  EXPECT_EQ(exp_exact(0.0), 1.0);
  EXPECT_EQ(exp_exact(-0.0), 1.0);
  EXPECT_EQ(exp_exact(710.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(exp_exact(-746.0), 0.0);
  EXPECT_EQ(exp_exact(std::numeric_limits<double>::infinity()), std::numeric_limits<double>::infinity());
  EXPECT_EQ(exp_exact(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_NEAR(exp_exact(-740.0) / 4.2e-322, 1.0, 0.02);  // subnormal: only its few bits can be right
}

TEST(MathTest, LogIsWithinItsBound) {
  const auto check = [](double x) {
    const long double exact = std::log(static_cast<long double>(x));
    ASSERT_LE(std::fabs(log_exact(x) - exact), kTolerance * std::fabs(exact)) << x;
  };
  for_points(1e-9, 4.0, 20000, check);
  for (int e = -1074; e < 1024; ++e) check(std::ldexp(1.37, e));
  check(0x1p-33);  // the smallest u of the sampling noise
  EXPECT_EQ(log_exact(1.0), 0.0);
}

TEST(MathTest, LogNearOneKeepsItsRelativeError) {
  for (int i = -1000; i <= 1000; ++i) {
    if (i == 0) continue;
    const double x = 1.0 + i * 0x1p-40;
    const long double exact = std::log1p(static_cast<long double>(i) * 0x1p-40L);
    ASSERT_LE(std::fabs(log_exact(x) - exact), kTolerance * std::fabs(exact)) << i;
  }
}

// The error of the logarithm is multiplied by what it is in units of the result: |exponent * log(base)| * 2^-50 and a
// rounding more.
TEST(MathTest, PowIsWithinTheErrorOfItsParts) {
  for (const double base : {1e-3, 0.5, 0.97, 2.0, 10000.0, 1e6}) {
    for_points(-20.0, 20.0, 2000, [&](double exponent) {
      const long double exact = std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
      const long double size = 2 + std::fabs(exponent * std::log(static_cast<long double>(base)));
      ASSERT_LE(std::fabs(pow_exact(base, exponent) - exact), size * kTolerance * exact) << base << ", " << exponent;
    });
  }
}

TEST(MathTest, SinAndCosAreWithinTheirBound) {
  const auto check = [](double x) {
    const SinCos got = sin_cos_exact(x);
    const long double s = std::sin(static_cast<long double>(x)), c = std::cos(static_cast<long double>(x));
    ASSERT_LE(std::fabs(got.sin - s), kTolerance * std::fabs(s)) << x;
    ASSERT_LE(std::fabs(got.cos - c), kTolerance * std::fabs(c)) << x;
  };
  for_points(-10.0, 10.0, 20000, check);
  for_points(-2147483647.0, 2147483647.0, 20000, check);
  for (int i = 0; i < 163840; i += 97) check(i);                 // positions at frequency 1
  for (int i = 1; i < 1000; ++i) check(i * 1.5707963267948966);  // next to the zeros
  EXPECT_EQ(sin_cos_exact(0.0).sin, 0.0);
  EXPECT_EQ(sin_cos_exact(0.0).cos, 1.0);
}

}  // namespace
}  // namespace levin
