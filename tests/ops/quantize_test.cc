#include "ops/quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/numbers.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 20, 127, 128, 129, 200, 384, 1000};

// Normal numbers of widely different rows, with zeros, a row of zeros and values far below a block's largest.
Tensor awkward_rows(Random& random, int64_t n_rows, int64_t k) {
  Tensor x = random_tensor(random, {n_rows, k});
  for (int64_t i = 0; i < n_rows * k; ++i) {
    x.at(i) *= static_cast<float>(std::ldexp(1.0, static_cast<int>(i / k % 7 * 5 - 15)));
    if (random.below(9) == 0) x.at(i) = 0.0f;
    if (random.below(9) == 0) x.at(i) *= 0x1p-12f;
    if (i / k == 2) x.at(i) = 0.0f;
  }
  return x;
}

TEST(RoundToBf16Test, RoundsEachValueToTheNearest) {
  for (const int64_t k : kWidths) {
    Random random(k);
    const Tensor x = awkward_rows(random, 5, k);
    for (const auto& device : devices_under_test()) {
      const Tensor out(DType::kBF16, {5, k});
      ops::round_to_bf16(device->ctx(), {.x = x, .out = out});
      for (int64_t i = 0; i < 5 * k; ++i) {
        ASSERT_EQ(out.view().data<uint16_t>()[i], f32_to_bf16(x.at(i))) << device->name() << ", value " << x.at(i);
      }
    }
  }
}

TEST(QuantizeFp8Test, ScalesAreTheSmallestPowersOfTwoThatFit) {
  for (const int64_t k : kWidths) {
    Random random(k);
    const int64_t n_scales = (k + 127) / 128;
    const Tensor x = awkward_rows(random, 5, k);
    for (const auto& device : devices_under_test()) {
      const Tensor out(DType::kF8E4M3, {5, k}), scale(DType::kF32, {5, n_scales});
      ops::quantize_fp8(device->ctx(), {.x = x, .out = out, .scale = scale});
      for (int64_t i = 0; i < 5 * n_scales; ++i) {
        double amax = 1e-4;
        for (int64_t j = i % n_scales * 128; j < std::min(k, i % n_scales * 128 + 128); ++j) {
          amax = std::max(amax, std::fabs(double{x.at(i / n_scales * k + j)}));
        }
        const float s = scale.at(i);
        int exponent = 0;
        ASSERT_EQ(std::frexp(s, &exponent), 0.5f) << device->name() << ": " << s;  // a power of two
        // The quotient by 448 is rounded to f32 before its exponent is taken: one part in 2^23 either way.
        EXPECT_LE(amax, 448.0 * s * (1 + 0x1p-23)) << device->name();
        EXPECT_GT(amax, 224.0 * s * (1 - 0x1p-23)) << device->name();
      }
    }
  }
}

TEST(QuantizeFp8Test, CodesAreTheNearest) {
  for (const int64_t k : kWidths) {
    Random random(k + 1);
    const int64_t n_scales = (k + 127) / 128;
    const Tensor x = awkward_rows(random, 4, k);
    for (const auto& device : devices_under_test()) {
      const Tensor out(DType::kF8E4M3, {4, k}), scale(DType::kF32, {4, n_scales});
      ops::quantize_fp8(device->ctx(), {.x = x, .out = out, .scale = scale});
      for (int64_t i = 0; i < 4 * k; ++i) {
        const double exact = double{x.at(i)} / scale.at(i / k * n_scales + i % k / 128);
        const double chosen = e4m3_to_f32(out.view().data<uint8_t>()[i]);
        for (int code = 0; code < 256; ++code) {
          if ((code & 0x7F) == 0x7F) continue;
          ASSERT_LE(std::fabs(exact - chosen), std::fabs(exact - e4m3_to_f32(static_cast<uint8_t>(code))))
              << device->name() << ", value " << exact;
        }
      }
    }
  }
}

// On CUDA rows are a multiple of 16 long.
TEST(QuantizeFp8Test, GivesTheSameBitsOnEveryDeviceAndInAnyBatch) {
  constexpr int64_t kRows = 40;
  for (const int64_t k : {300, 304, 16, 384}) {
    Random random(8);
    const int64_t n_scales = (k + 127) / 128;
    const Tensor x = awkward_rows(random, kRows, k);
    const Tensor codes(DType::kF8E4M3, {kRows, k}), scales(DType::kF32, {kRows, n_scales});
    ops::quantize_fp8(plain_device().ctx(), {.x = x, .out = codes, .scale = scales});
    for (TestDevice* device : backends_under_test()) {
      if (device->on_cuda() && k % 16 != 0) continue;
      for (const int64_t begin : {0, 2, 39}) {
        const int64_t n = std::min<int64_t>(kRows - begin, 33);
        const Tensor out(DType::kF8E4M3, {n, k}), scale(DType::kF32, {n, n_scales});
        Args args(*device);
        ops::quantize_fp8(
            device->ctx(),
            {.x = args.in(x.view().slice_first(begin, n)), .out = args.out(out), .scale = args.out(scale)});
        args.fetch();
        ASSERT_TRUE(same_bits(out, codes.view().slice_first(begin, n))) << device->name();
        ASSERT_TRUE(same_bits(scale, scales.view().slice_first(begin, n))) << device->name();
      }
    }
  }
}

TEST(QuantizeFp8Test, AsBf16GivesWhatCodesAndScalesStandFor) {
  constexpr int64_t kRows = 5, kK = 304, kScales = 3;
  Random random(9);
  const Tensor x = awkward_rows(random, kRows, kK);
  const Tensor codes(DType::kF8E4M3, {kRows, kK}), scales(DType::kF32, {kRows, kScales});
  ops::quantize_fp8(plain_device().ctx(), {.x = x, .out = codes, .scale = scales});
  for (TestDevice* device : backends_under_test()) {
    const Tensor out(DType::kBF16, {kRows, kK});
    Args args(*device);
    ops::quantize_fp8(device->ctx(), {.x = args.in(x), .out = args.out(out)});
    args.fetch();
    for (int64_t i = 0; i < kRows * kK; ++i) {
      const float want = e4m3_to_f32(codes.view().data<uint8_t>()[i]) * scales.at(i / kK * kScales + i % kK / 128);
      ASSERT_EQ(bf16_to_f32(out.view().data<uint16_t>()[i]), want) << device->name() << ", value " << x.at(i);
    }
  }
}

// Every value becomes the nearest of its block's grid, ties to the even code; the scale is the least power of two that
// brings the largest value to 6.
TEST(RoundToFp4Test, ValuesAreTheNearestOfTheirBlock) {
  for (const int64_t k : {1, 31, 32, 33, 128}) {
    Random random(k);
    const Tensor x = awkward_rows(random, 5, k);
    for (const auto& device : devices_under_test()) {
      const Tensor out = Tensor::of(std::vector<float>(x.view().data<float>(), x.view().data<float>() + 5 * k), {5, k});
      ops::round_to_fp4(device->ctx(), {.x = out});
      for (int64_t i = 0; i < 5 * k; ++i) {
        const int64_t row = i / k * k, begin = row + i % k / 32 * 32, end = std::min(row + k, begin + 32);
        double amax = 6 * 0x1p-126;
        for (int64_t j = begin; j < end; ++j) amax = std::max(amax, std::fabs(double{x.at(j)}));
        const double scale = std::exp2(std::ceil(std::log2(amax / 6)));
        double nearest = INFINITY;
        for (const double magnitude : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) {
          nearest = std::min(nearest, std::fabs(std::fabs(double{x.at(i)}) - magnitude * scale));
        }
        ASSERT_EQ(std::fabs(double{x.at(i)} - out.at(i)), nearest) << device->name() << ", value " << x.at(i);
      }
    }
  }
}

TEST(RoundToFp4Test, TiesGoToTheEvenCode) {
  const Tensor x = Tensor::of(std::vector<float>{6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -5}, {1, 9});
  ops::round_to_fp4(plain_device().ctx(), {.x = x});
  EXPECT_TRUE(same_bits(x, Tensor::of(std::vector<float>{6, 0, 1, 1, 2, 2, 4, 4, -4}, {1, 9})));
}

class HadamardTest : public ::testing::TestWithParam<int64_t> {};

// log2(d) stages, each rounding a partial sum that is at most the sum of |x|, then the factor and its own rounding.
TEST_P(HadamardTest, IsTheMatrixProduct) {
  const int64_t d = GetParam(), n_rows = 3, n_heads = 5;
  Random random(d);
  const Tensor x = random_tensor(random, {n_rows, n_heads, d});
  for (const auto& device : devices_under_test()) {
    const Tensor out =
        Tensor::of(std::vector<float>(x.view().data<float>(), x.view().data<float>() + n_rows * n_heads * d),
                   {n_rows, n_heads, d});
    ops::hadamard(device->ctx(), {.x = out});
    for (int64_t row = 0; row < n_rows * n_heads; ++row) {
      double magnitude = 0;
      for (int64_t i = 0; i < d; ++i) magnitude += std::fabs(double{x.at(row * d + i)});
      const double tolerance = (std::log2(d) + 2) * 0x1p-24 * magnitude / std::sqrt(d);
      for (int64_t j = 0; j < d; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < d; ++i) {
          sum += std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? x.at(row * d + i) : -x.at(row * d + i);
        }
        ASSERT_NEAR(out.at(row * d + j), sum / std::sqrt(d), tolerance) << device->name() << ", column " << j;
      }
    }
  }
}

TEST_P(HadamardTest, GivesTheSameBitsOnEveryDeviceAndLeavesTheRestOfWiderRows) {
  const int64_t d = GetParam(), n_rows = 4, n_heads = 3, wide = d + 24;
  Random random(d + 1);
  const Tensor x = random_tensor(random, {n_rows, n_heads, wide});
  const auto turned_on = [&](TestDevice& device) {
    Tensor out =
        Tensor::of(std::vector<float>(x.view().data<float>(), x.view().data<float>() + n_rows * n_heads * wide),
                   {n_rows, n_heads, wide});
    ops::hadamard(device.ctx(), {.x = out.view().slice_last(24, d)});
    return out;
  };
  const Tensor plain = turned_on(plain_device());
  for (int64_t i = 0; i < n_rows * n_heads * 24; ++i) {
    ASSERT_EQ(plain.at(i / 24 * wide + i % 24), x.at(i / 24 * wide + i % 24));
  }
  for (const auto& device : devices_under_test()) ASSERT_TRUE(same_bits(turned_on(*device), plain)) << device->name();
}

INSTANTIATE_TEST_SUITE_P(Widths, HadamardTest, ::testing::Values(1, 2, 8, 16, 32, 64, 128, 256, 512, 1024));

TEST(QuantizeCheckTest, NamesTheArgumentThatDoesNotFit) {
  OpContext& ctx = plain_device().ctx();
  const Tensor x(DType::kF32, {2, 24}), bf16(DType::kBF16, {2, 20}), fp8(DType::kF8E4M3, {2, 24}),
      scale(DType::kF32, {2, 2});
  const Tensor heads(DType::kF32, {2, 3, 24});
  EXPECT_DEATH(ops::round_to_bf16(ctx, {.x = x, .out = bf16}), "round_to_bf16.*bf16 \\[2, 20\\]");
  EXPECT_DEATH(ops::quantize_fp8(ctx, {.x = x, .out = fp8, .scale = scale}), "scale is f32 \\[2, 2\\]");
  EXPECT_DEATH(ops::quantize_fp8(ctx, {.x = x, .out = fp8}), "quantize_fp8: out is f8_e4m3 .*, scale .none.");
  EXPECT_DEATH(ops::hadamard(ctx, {.x = heads}), "power of two");
}

}  // namespace
}  // namespace levin::testing
