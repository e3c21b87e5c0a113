#include "tensor/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/numbers.h"

namespace levin {
namespace {

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},    {15, 7},    {16, 16},   {17, 20},  {33, 56},
                                                   {120, 40}, {132, 129}, {256, 384}, {300, 257}};

// Element i of a source matrix: distinct values, exact in every type.
float f32_value(int64_t i) { return static_cast<float>(i % 251 - 125); }
uint16_t bf16_value(int64_t i) { return f32_to_bf16(f32_value(i)); }
uint8_t e4m3_value(int64_t i) { return static_cast<uint8_t>(i % 127 + (i % 3 == 0 ? 128 : 0)); }
uint16_t f16_value(int64_t i) { return static_cast<uint16_t>(i % 0x7C00); }

template <class T>
std::vector<std::byte> source_bytes(int64_t n, T (*value)(int64_t)) {
  std::vector<std::byte> bytes(static_cast<size_t>(n) * sizeof(T) + 1);
  for (int64_t i = 0; i < n; ++i) {
    const T v = value(i);
    std::memcpy(bytes.data() + 1 + static_cast<size_t>(i) * sizeof(T), &v, sizeof(T));  // one byte off: unaligned
  }
  return bytes;
}

TEST(PackMatrixTest, KeepsAllValuesOfUnalignedSources) {
  for (const auto& [n, k] : kShapes) {
    const auto f32 = source_bytes(n * k, f32_value);
    const auto bf16 = source_bytes(n * k, bf16_value);
    const auto e4m3 = source_bytes(n * k, e4m3_value);
    const auto f16 = source_bytes(n * k, f16_value);
    const Matrix a = pack_matrix({.data = f32.data() + 1, .dtype = DType::kF32, .n = n, .k = k});
    const Matrix b = pack_matrix({.data = bf16.data() + 1, .dtype = DType::kBF16, .n = n, .k = k});
    const Matrix c = pack_matrix({.data = e4m3.data() + 1, .dtype = DType::kF8E4M3, .n = n, .k = k});
    const Matrix d = pack_matrix({.data = f16.data() + 1, .dtype = DType::kF16, .n = n, .k = k});
    EXPECT_EQ(d.dtype(), DType::kF32);
    for (int64_t i = 0; i < n * k; ++i) {
      ASSERT_EQ(a.stored(i / k, i % k), f32_value(i));
      ASSERT_EQ(b.stored(i / k, i % k), f32_value(i));
      ASSERT_EQ(c.stored(i / k, i % k), e4m3_to_f32(e4m3_value(i)));
      ASSERT_EQ(d.stored(i / k, i % k), f16_to_f32(f16_value(i)));
    }
  }
}

TEST(PackMatrixTest, PanelsInterleaveSixteenRowsAlongK) {
  constexpr int64_t kN = 20, kK = 5;
  const auto f32 = source_bytes(kN * kK, f32_value);
  const auto bf16 = source_bytes(kN * kK, bf16_value);
  const Matrix a = pack_matrix({.data = f32.data() + 1, .dtype = DType::kF32, .n = kN, .k = kK});
  const Matrix b = pack_matrix({.data = bf16.data() + 1, .dtype = DType::kBF16, .n = kN, .k = kK});
  EXPECT_EQ(a.n_panels(), 2);
  EXPECT_EQ(a.panel_bytes(), 5 * 16 * 4);
  EXPECT_EQ(b.panel_bytes(), 6 * 16 * 2);
  for (int64_t row = 0; row < 32; ++row) {
    for (int64_t col = 0; col < 6; ++col) {
      const float expected = row < kN && col < kK ? f32_value(row * kK + col) : 0.0f;
      if (col < kK) {
        EXPECT_EQ(reinterpret_cast<const float*>(a.panel(row / 16))[col * 16 + row % 16], expected);
      }
      const auto* pairs = reinterpret_cast<const uint16_t*>(b.panel(row / 16));
      EXPECT_EQ(bf16_to_f32(pairs[col / 2 * 32 + row % 16 * 2 + col % 2]), expected) << row << ", " << col;
    }
  }
}

TEST(PackMatrixTest, ScalesBelongToBlocksOf128RowsAndColumns) {
  for (const auto& [n, k] : kShapes) {
    const int64_t n_k_blocks = (k + 127) / 128;
    std::vector<float> scales(static_cast<size_t>((n + 127) / 128 * n_k_blocks));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.5f + static_cast<float>(i);
    const auto e4m3 = source_bytes(n * k, e4m3_value);
    const Matrix m =
        pack_matrix({.data = e4m3.data() + 1, .dtype = DType::kF8E4M3, .n = n, .k = k, .scales = scales.data()});
    ASSERT_TRUE(m.has_scales());
    EXPECT_EQ(m.n_bytes(), packed_matrix_bytes(DType::kF8E4M3, n, k, true));
    for (int64_t i = 0; i < n * k; ++i) {
      ASSERT_EQ(m.scale(i / k, i % k), scales[i / k / 128 * n_k_blocks + i % k / 128]) << n << " x " << k;
    }
  }
}

TEST(PackMatrixTest, GroupsOfMxfp4HoldTheirScalesAndPairs) {
  for (const auto& [n, k] : {std::pair{1, 2}, {16, 32}, {20, 50}, {33, 96}, {40, 130}}) {
    const int64_t n_groups = (k + kMxGroup - 1) / kMxGroup;
    const auto pairs = source_bytes(n * k / 2, e4m3_value);
    std::vector<uint8_t> scales(static_cast<size_t>(n * n_groups));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(kMxMinScale + i % 251);
    const Matrix m =
        pack_matrix({.data = pairs.data() + 1, .dtype = DType::kMxfp4, .n = n, .k = k, .group_scales = scales.data()});
    EXPECT_FALSE(m.has_scales());
    EXPECT_EQ(m.n_bytes(), packed_matrix_bytes(DType::kMxfp4, n, k, false));
    EXPECT_EQ(m.panel_bytes(), 16 * n_groups + 64 * ((k + 7) / 8));
    for (int64_t i = 0; i < n * k; ++i) {
      const uint8_t pair = e4m3_value(i / 2);
      ASSERT_EQ(m.stored(i / k, i % k), e2m1_to_f32(i % 2 == 0 ? pair & 0xF : pair >> 4)) << n << " x " << k;
      ASSERT_EQ(m.scale(i / k, i % k), e8m0_to_f32(scales[static_cast<size_t>(i / k * n_groups + i % k / kMxGroup)]));
    }
  }
}

TEST(PackMatrixTest, GroupsOfNvfp4HoldTheirScalesAndPairs) {
  for (const auto& [n, k] : {std::pair{1, 16}, {16, 32}, {20, 48}, {33, 96}, {40, 144}}) {
    const int64_t n_groups = k / kNvGroup;
    const auto pairs = source_bytes(n * k / 2, e4m3_value);
    std::vector<uint8_t> scales(static_cast<size_t>(n * n_groups));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i % 127);
    constexpr float kFactor = 0.003f;
    const Matrix m = pack_matrix({.data = pairs.data() + 1,
                                  .dtype = DType::kNvfp4,
                                  .n = n,
                                  .k = k,
                                  .group_scales = scales.data(),
                                  .factor = kFactor});
    EXPECT_TRUE(m.has_scales());
    EXPECT_EQ(m.n_bytes(), packed_matrix_bytes(DType::kNvfp4, n, k, true));
    EXPECT_EQ(m.panel_bytes(), 16 * n_groups + 8 * k);
    EXPECT_EQ(m.factor(), kFactor);
    for (int64_t i = 0; i < n * k; ++i) {
      const uint8_t pair = e4m3_value(i / 2), scale = scales[static_cast<size_t>(i / k * n_groups + i % k / kNvGroup)];
      const float value = e2m1_to_f32(i % 2 == 0 ? pair & 0xF : pair >> 4) * (e4m3_to_f32(scale) * kFactor);
      ASSERT_EQ(m.stored(i / k, i % k) * m.scale(i / k, i % k), value) << n << " x " << k;
    }
  }
}

TEST(PackMatrixTest, Nvfp4TakesScalesThatAreFiniteAndNotNegative) {
  const std::vector<uint8_t> pairs(8, 0x71);
  for (const uint8_t scale : {uint8_t{0x7F}, uint8_t{0x80}, uint8_t{0xFF}}) {
    EXPECT_DEATH(pack_matrix({.data = pairs.data(), .dtype = DType::kNvfp4, .n = 1, .k = 16, .group_scales = &scale}),
                 "scale \\[0, 0\\] is");
  }
}

TEST(PackMatrixTest, Mxfp4TakesScalesThatKeepItsValuesNormal) {
  const uint8_t pair = 0x71;
  for (const uint8_t scale : {0, 1, 253, 255}) {
    EXPECT_DEATH(pack_matrix({.data = &pair, .dtype = DType::kMxfp4, .n = 1, .k = 2, .group_scales = &scale}),
                 "scale \\[0, 0\\] is 2\\^");
  }
}

TEST(PackMatrixTest, WithoutScalesTheScaleIsOne) {
  const auto bf16 = source_bytes(6, bf16_value);
  const Matrix m = pack_matrix({.data = bf16.data() + 1, .dtype = DType::kBF16, .n = 2, .k = 3});
  EXPECT_FALSE(m.has_scales());
  EXPECT_EQ(m.panel_scales(0), nullptr);
  EXPECT_EQ(m.scale(1, 2), 1.0f);
  EXPECT_EQ(m.n_bytes(), packed_matrix_bytes(DType::kBF16, 2, 3, false));
  EXPECT_TRUE(Matrix().empty());
}

TEST(PackMatrixTest, ComputedValuesAreStoredAsBf16WhereThatIsExact) {
  std::vector<float> values = {1.0f, -2.5f, 0x1p-100f, 0.0f, 3.0f, 448.0f};
  EXPECT_EQ(pack_matrix_exactly(values.data(), 2, 3).dtype(), DType::kBF16);
  values[4] = 1.0f + 0x1p-20f;
  const Matrix m = pack_matrix_exactly(values.data(), 2, 3);
  EXPECT_EQ(m.dtype(), DType::kF32);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(m.stored(i / 3, i % 3), values[i]);
}

// Half the distance of e4m3 numbers around y: three bits after the first, and none smaller than 2^-9.
double half_e4m3_ulp(double y) { return std::ldexp(0.5, std::max(-6, std::ilogb(y)) - 3); }

float largest_in_block(const Matrix& w, int64_t n, int64_t k) {
  float largest = 0;
  for (int64_t row = n / 128 * 128; row < std::min(w.n(), n / 128 * 128 + 128); ++row) {
    for (int64_t col = k / 128 * 128; col < std::min(w.k(), k / 128 * 128 + 128); ++col)
      largest = std::max(largest, std::fabs(w.stored(row, col)));
  }
  return largest;
}

// Normal values, each block with a magnitude of its own, and within a block spread over more binades than e4m3 has.
std::vector<float> spread_values(int64_t n, int64_t k) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n * k; ++i) {
    const int block = static_cast<int>(i / k / 128 * 5 + i % k / 128 * 3);
    values[static_cast<size_t>(i)] = std::ldexp(normal(random), block - static_cast<int>(random() % 20));
  }
  return values;
}

TEST(RoundToE4m3Test, EveryValueIsWithinHalfAnUlpAndTheLargestIs448) {
  ThreadPool pool(2);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {17, 20}, {128, 130}, {260, 129}}) {
    std::vector<float> values = spread_values(n, k);
    const Matrix f32 = pack_matrix({.data = values.data(), .dtype = DType::kF32, .n = n, .k = k});
    for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
    const Matrix bf16 = pack_matrix_exactly(values.data(), n, k);
    ASSERT_EQ(bf16.dtype(), DType::kBF16);
    for (const Matrix* w : {&f32, &bf16}) {
      const Matrix m = round_matrix_to_e4m3(*w, pool);
      ASSERT_EQ(m.dtype(), DType::kF8E4M3);
      ASSERT_EQ(m.n(), n);
      ASSERT_EQ(m.k(), k);
      EXPECT_EQ(m.n_bytes(), packed_matrix_bytes(DType::kF8E4M3, n, k, true));
      for (int64_t row = 0; row < n; row += 128) {
        for (int64_t col = 0; col < k; col += 128)
          ASSERT_EQ(m.scale(row, col), largest_in_block(*w, row, col) / 448) << n << " x " << k;
      }
      for (int64_t i = 0; i < n * k; ++i) {
        const double exact = static_cast<double>(w->stored(i / k, i % k)) / m.scale(i / k, i % k);
        // the quotient itself is rounded once, to f32
        ASSERT_LE(std::fabs(m.stored(i / k, i % k) - exact), half_e4m3_ulp(exact) * (1 + 0x1p-18))
            << n << " x " << k << " at " << i;
      }
    }
  }
}

TEST(RoundToE4m3Test, WhatIsNoValueStaysZero) {
  ThreadPool pool(1);
  const std::vector<float> ones(19 * 13, 1.0f);
  const Matrix m = round_matrix_to_e4m3(pack_matrix_exactly(ones.data(), 19, 13), pool);
  int n_set = 0;
  for (int64_t i = 0; i < m.n_panels() * m.panel_bytes(); ++i) n_set += m.panel(0)[i] != std::byte{};
  EXPECT_EQ(n_set, 19 * 13);
}

TEST(RoundToE4m3Test, BlocksOfZerosAndOfTinyValuesStayFinite) {
  ThreadPool pool(1);
  for (const float tiny : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1p-140f}) {
    const std::vector<float> values = {tiny, 0.0f, -tiny, 0.0f};
    const Matrix w = pack_matrix({.data = values.data(), .dtype = DType::kF32, .n = 2, .k = 2});
    const Matrix m = round_matrix_to_e4m3(w, pool);
    EXPECT_EQ(m.scale(0, 0), std::numeric_limits<float>::min());
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(m.stored(i / 2, i % 2), 0.0f) << tiny;
  }
}

// Matrices of e4m3 in memory that says it is a device's.
class JoinTest : public ::testing::Test {
 protected:
  static constexpr int64_t kK = 256, kRowScales = 2;

  Matrix place(int64_t n, int64_t first_row, int64_t first_block) const {
    const std::byte *codes = codes_.data() + first_row * kK,
                    *scales = scales_.data() + first_block * kRowScales * int64_t{sizeof(float)};
    return matrix_on_device({.n = n,
                             .k = kK,
                             .data = Buffer::borrowed(codes, n * kK, Device::kCuda),
                             .scales = Buffer::borrowed(scales, (n + 127) / 128 * kRowScales * 4, Device::kCuda)});
  }
  static Matrix join(const Matrix& a, const Matrix& b) {
    const Matrix* parts[] = {&a, &b};
    return joined_on_device(parts);
  }

  Buffer codes_ = Buffer(1000 * kK), scales_ = Buffer(64);
};

TEST_F(JoinTest, MatricesThatStandOneAfterAnotherAreOne) {
  const Matrix joined = join(place(256, 0, 0), place(40, 256, 2));
  EXPECT_EQ(joined.n(), 296);
  EXPECT_EQ(joined.k(), kK);
  EXPECT_EQ(joined.device_data(), codes_.data());
  EXPECT_EQ(joined.data().n_bytes(), 296 * kK);
  EXPECT_EQ(joined.scales().n_bytes(), 3 * kRowScales * 4);
}

TEST_F(JoinTest, OnADeviceHasNoPanels) { EXPECT_DEATH(place(40, 0, 0).panel(0), "\\[40, 256\\] lies on a device"); }

TEST_F(JoinTest, OthersAreNot) {
  EXPECT_TRUE(join(place(256, 0, 0), place(40, 257, 2)).empty());  // a row between them
  EXPECT_TRUE(join(place(256, 0, 0), place(40, 256, 3)).empty());  // scales
  EXPECT_TRUE(join(place(40, 0, 0), place(256, 40, 1)).empty());   // a block of rows with two scales
  const std::vector<float> values(8);
  const auto on_host = [&] { return pack_matrix({.data = values.data(), .dtype = DType::kF32, .n = 4, .k = 2}); };
  EXPECT_TRUE(join(on_host(), on_host()).empty());
}

}  // namespace
}  // namespace levin
