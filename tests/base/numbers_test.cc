#include "base/numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace levin {
namespace {

// A small float by its definition: sign, then exponent and mantissa of the given widths.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (mantissa_bits + exponent_bits) & 1) != 0;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits) + (exponent != 0 ? 1.0 : 0.0);
  const double magnitude = std::ldexp(fraction, std::max(exponent, 1) - bias);
  return negative ? -magnitude : magnitude;
}

bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

TEST(NumbersTest, AllBf16CodesReadAndWriteBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float x = bf16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(x)) {
      EXPECT_EQ(f32_to_bf16(x), code | 0x40) << code;
      continue;
    }
    if ((code & 0x7F80) != 0x7F80) {
      ASSERT_EQ(x, value_of(code, 8, 7, 127)) << code;
    }
    ASSERT_EQ(f32_to_bf16(x), code);
  }
}

TEST(NumbersTest, Bf16RoundsToTheNearestTiesToEven) {
  for (uint32_t code = 0; code < 0x7F80; ++code) {
    const float low = bf16_to_f32(static_cast<uint16_t>(code)), high = bf16_to_f32(static_cast<uint16_t>(code + 1));
    const float middle = std::bit_cast<float>(code << 16 | 0x8000u);
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(f32_to_bf16(middle), even);
    ASSERT_EQ(f32_to_bf16(-middle), even | 0x8000);
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, low)), code);
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, high)), code + 1);
  }
}

TEST(NumbersTest, F16RoundsToTheNearestTiesToEven) {
  for (uint32_t code = 0; code < 0x7C00; ++code) {
    const float low = f16_to_f32(static_cast<uint16_t>(code));
    ASSERT_EQ(f32_to_f16(low), code);
    ASSERT_EQ(f32_to_f16(-low), code | 0x8000);
    // half of the step to the next code; the last finite code's step leads to infinity
    const float high = code == 0x7BFF ? 65536.0f : f16_to_f32(static_cast<uint16_t>(code + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(f32_to_f16(middle), code % 2 == 0 ? code : code + 1) << code;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, low)), code);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::infinity()), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::quiet_NaN()) & 0x7E00, 0x7E00);
}

TEST(NumbersTest, AllF16CodesReadAsDefined) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float x = f16_to_f32(static_cast<uint16_t>(code));
    if ((code & 0x7C00) != 0x7C00) {
      ASSERT_TRUE(same(x, static_cast<float>(value_of(code, 5, 10, 15)))) << code;
    } else if ((code & 0x3FF) == 0) {
      ASSERT_EQ(
          x, (code & 0x8000) != 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity());
    } else {
      ASSERT_TRUE(std::isnan(x)) << code;
    }
  }
}

TEST(NumbersTest, AllE4m3CodesReadAsDefinedAndWriteBack) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float x = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(x)) << code;
    } else {
      EXPECT_TRUE(same(x, static_cast<float>(value_of(code, 4, 3, 7)))) << code;
    }
    EXPECT_EQ(f32_to_e4m3(x), code);
  }
  EXPECT_EQ(e4m3_to_f32(0x7E), kE4m3Max);
}

TEST(NumbersTest, E4m3RoundsToTheNearestTiesToEven) {
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code)), high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_e4m3(middle), even);
    EXPECT_EQ(f32_to_e4m3(-middle), even | 0x80);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, low)), code);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, high)), code + 1);
  }
}

TEST(NumbersTest, E4m3Saturates) {
  for (const float x : {448.0f, 449.0f, 464.0f, 1e9f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(f32_to_e4m3(x), 0x7E) << x;
    EXPECT_EQ(f32_to_e4m3(-x), 0xFE) << x;
  }
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
}

TEST(NumbersTest, AllE8m0CodesArePowersOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(0xFF)));
}

TEST(NumbersTest, AllE2m1CodesReadAsDefined) {
  for (uint32_t code = 0; code < 16; ++code) {
    EXPECT_TRUE(same(e2m1_to_f32(static_cast<uint8_t>(code)), static_cast<float>(value_of(code, 2, 1, 1)))) << code;
  }
}

TEST(NumbersTest, E2m1RoundsToTheNearestTiesToTheEvenCode) {
  for (uint8_t code = 0; code < 7; ++code) {
    const float low = e2m1_to_f32(code), high = e2m1_to_f32(code + 1), middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_e2m1(low), code);
    EXPECT_EQ(f32_to_e2m1(-high), code + 9);
    EXPECT_EQ(f32_to_e2m1(middle), even) << middle;
    EXPECT_EQ(f32_to_e2m1(-middle), even + 8) << middle;
    EXPECT_EQ(f32_to_e2m1(std::nextafter(middle, low)), code);
    EXPECT_EQ(f32_to_e2m1(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(f32_to_e2m1(1e30f), 7);
  EXPECT_EQ(f32_to_e2m1(-std::numeric_limits<float>::infinity()), 15);
  EXPECT_EQ(f32_to_e2m1(-0.0f), 8);
  EXPECT_EQ(f32_to_e2m1(std::numeric_limits<float>::quiet_NaN()), 0);
}

TEST(NumbersTest, ScalesOfE2m1AreTheSmallestPowersOfTwoThatFit) {
  EXPECT_EQ(e2m1_pow2_scale(0.0f), 0x1p-126f);
  for (int e = -126; e < 120; ++e) {
    EXPECT_EQ(e2m1_pow2_scale(std::ldexp(6.0f, e)), std::ldexp(1.0f, e)) << e;
    EXPECT_EQ(e2m1_pow2_scale(std::ldexp(6.001f, e)), std::ldexp(2.0f, e)) << e;
  }
}

TEST(NumbersTest, ScaleIsTheSmallestPowerOfTwoThatFits) {
  EXPECT_EQ(e4m3_pow2_scale(448.0f), 1.0f);
  EXPECT_EQ(e4m3_pow2_scale(std::nextafter(449.0f, 500.0f)), 2.0f);
  EXPECT_EQ(e4m3_pow2_scale(224.0f), 0.5f);
  EXPECT_EQ(e4m3_pow2_scale(0.0f), e4m3_pow2_scale(kE4m3MinAmax));
  EXPECT_EQ(e4m3_pow2_scale(kE4m3MinAmax), 0x1p-22f);
  for (float amax = 1e-4f; amax < 1e30f; amax *= 1.0371f) {
    const float scale = e4m3_pow2_scale(amax);
    int exponent = 0;
    ASSERT_EQ(std::frexp(scale, &exponent), 0.5f) << amax;  // a power of two
    // The quotient by 448 is rounded before its exponent is read: one part in 2^23 either way.
    ASSERT_LE(amax, 448.0 * scale * (1 + 0x1p-23)) << amax;
    ASSERT_GT(amax, 224.0 * scale * (1 - 0x1p-23)) << amax;
  }
}

}  // namespace
}  // namespace levin
