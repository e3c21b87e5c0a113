// The formulas of base/math.h and CUDA kernels alike, part of the code that calls them, and so of the caller's instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/math.h"

#ifdef __CUDACC__
#define LEVIN_PART_OF_CALLER __host__ __device__ inline
#else
#define LEVIN_PART_OF_CALLER [[gnu::always_inline]] inline
#endif

namespace levin {

constexpr double kLn2High = 0x1.62e42fefa39efp-1;
constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;

// pi/2 in three doubles: with fused multiply-adds the reduced argument of any |x| < 2^31 keeps full precision.
constexpr double kHalfPi1 = 0x1.921fb54442d18p+0;
constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;

// sin and cos on [-pi/4, pi/4] by their Taylor series, Horner from the highest term; the first term left out is below
// 2^-60 there.
LEVIN_PART_OF_CALLER double sin_reduced(double r) {
  constexpr double kCoefficients[] = {-1.0 / 121645100408832000.0,
                                      1.0 / 355687428096000.0,
                                      -1.0 / 1307674368000.0,
                                      1.0 / 6227020800.0,
                                      -1.0 / 39916800.0,
                                      1.0 / 362880.0,
                                      -1.0 / 5040.0,
                                      1.0 / 120.0,
                                      -1.0 / 6.0};
  const double z = r * r;
  double sum = 0.0;
  for (const double c : kCoefficients) sum = std::fma(sum, z, c);
  return std::fma(sum * z, r, r);
}

LEVIN_PART_OF_CALLER double cos_reduced(double r) {
  constexpr double kCoefficients[] = {1.0 / 2432902008176640000.0,
                                      -1.0 / 6402373705728000.0,
                                      1.0 / 20922789888000.0,
                                      -1.0 / 87178291200.0,
                                      1.0 / 479001600.0,
                                      -1.0 / 3628800.0,
                                      1.0 / 40320.0,
                                      -1.0 / 720.0,
                                      1.0 / 24.0,
                                      -1.0 / 2.0};
  const double z = r * r;
  double sum = 0.0;
  for (const double c : kCoefficients) sum = std::fma(sum, z, c);
  return std::fma(sum, z, 1.0);
}

LEVIN_PART_OF_CALLER double scale_by_power_of_two(double x, int64_t exponent) {
  // In two factors, so that results near the ends of the range are rounded once.
  const int64_t first = exponent / 2;
  const auto power = [](int64_t e) { return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52); };
  return x * power(first) * power(exponent - first);
}

LEVIN_PART_OF_CALLER double exp_of(double x) {
  if (x > 709.782712893384) return std::numeric_limits<double>::infinity();
  if (x < -745.1332191019412) return 0.0;
  const double k = std::nearbyint(x / kLn2High);
  const double r = std::fma(-k, kLn2Low, std::fma(-k, kLn2High, x));
  constexpr double kCoefficients[] = {// 1/13! ... 1/0!
                                      1.0 / 6227020800.0,
                                      1.0 / 479001600.0,
                                      1.0 / 39916800.0,
                                      1.0 / 3628800.0,
                                      1.0 / 362880.0,
                                      1.0 / 40320.0,
                                      1.0 / 5040.0,
                                      1.0 / 720.0,
                                      1.0 / 120.0,
                                      1.0 / 24.0,
                                      1.0 / 6.0,
                                      1.0 / 2.0,
                                      1.0,
                                      1.0};
  double sum = 0.0;
  for (const double c : kCoefficients) sum = std::fma(sum, r, c);
  return scale_by_power_of_two(sum, static_cast<int64_t>(k));
}

LEVIN_PART_OF_CALLER double log_of(double x) {
  int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {  // subnormal
    x *= 0x1p54;
    exponent = -54;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | (1023ull << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt(2)
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double sum = 0.0;
  for (int n = 23; n >= 3; n -= 2) sum = std::fma(sum, z, 1.0 / n);
  const double tail = 2.0 * s * z * sum;
  const double e = static_cast<double>(exponent);
  return std::fma(e, kLn2High, std::fma(e, kLn2Low, tail) + 2.0 * s);
}

LEVIN_PART_OF_CALLER SinCos sin_cos_of(double x) {
  const double n = std::nearbyint(x * 0x1.45f306dc9c883p-1);  // 2/pi
  const double r = std::fma(-n, kHalfPi3, std::fma(-n, kHalfPi2, std::fma(-n, kHalfPi1, x)));
  const double s = sin_reduced(r), c = cos_reduced(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace levin
