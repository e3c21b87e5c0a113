// The vectorised codecs against the scalar ones of base/numbers.h, over all codes.
#include <gtest/gtest.h>

#include <cstring>

#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

template <class Out, class In>
std::vector<Out> widened(Isa isa, const std::vector<In>& codes, DType operand) {
  std::vector<Out> out(codes.size());
  kernels::cpu_kernels(isa).matmul.prepare({.x = codes.data(),
                                            .x_dtype = DTypeOf<In>::value,
                                            .row_end = 1,
                                            .n_rows = 1,
                                            .k = static_cast<int64_t>(codes.size()),
                                            .operand_dtype = operand,
                                            .operand = out.data()});
  return out;
}

// NaN codes of e4m3 are refused when a checkpoint is read; kernels may take them for anything.
std::vector<uint8_t> finite_e4m3() {
  std::vector<uint8_t> codes;
  for (int c = 0; c < 256; ++c) {
    if ((c & 0x7F) != 0x7F) codes.push_back(static_cast<uint8_t>(c));
  }
  return codes;
}

std::vector<uint16_t> all_words() {
  std::vector<uint16_t> words(65536);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
  return words;
}

TEST(CodecTest, E4m3IsExactInF32) {
  const std::vector<uint8_t> codes = finite_e4m3();
  for (const Isa isa : usable_isas()) {
    const std::vector<float> values = widened<float>(isa, codes, DType::kF32);
    for (size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(e4m3_to_f32(codes[i])))
          << isa_name(isa) << ", code " << int{codes[i]};
    }
  }
}

// Every code of e2m1 with every scale, by products with rows of the unit matrix.
TEST(CodecTest, Mxfp4IsExact) {
  constexpr int64_t kScales = kMxMaxScale - kMxMinScale + 1;
  std::vector<uint8_t> pairs, scales;
  for (int64_t n = 0; n < kScales; ++n) {
    for (int i = 0; i < 16; ++i) pairs.push_back(static_cast<uint8_t>(i << 4 | (i + 5) % 16));
    scales.push_back(static_cast<uint8_t>(kMxMinScale + n));
  }
  const Matrix w = pack_matrix(
      {.data = pairs.data(), .dtype = DType::kMxfp4, .n = kScales, .k = kMxGroup, .group_scales = scales.data()});
  for (const auto& device : devices_under_test()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor unit(DType::kF32, {kMxGroup, kMxGroup}), bf16(DType::kBF16, {kMxGroup, kMxGroup});
      for (int64_t k = 0; k < kMxGroup; ++k) unit.view().row<float>(k)[k] = 1.0f;
      ops::round_to_bf16(device->ctx(), {.x = unit, .out = bf16});
      const Tensor out(DType::kF32, {kMxGroup, kScales});
      ops::matmul(device->ctx(), {.x = dtype == DType::kF32 ? unit.view() : bf16.view(), .w = &w, .out = out});
      for (int64_t i = 0; i < kMxGroup * kScales; ++i) {
        const int64_t k = i / kScales, n = i % kScales;
        const uint8_t pair = pairs[static_cast<size_t>(n * 16 + k / 2)];
        const float value = e2m1_to_f32(k % 2 == 0 ? pair & 0xF : pair >> 4);
        ASSERT_EQ(out.at(i), value * e8m0_to_f32(scales[static_cast<size_t>(n)]))
            << device->name() << ", scale " << int{scales[static_cast<size_t>(n)]} << ", column " << k;
      }
    }
  }
}

// Every code of e2m1 with every scale of e4m3 that is no NaN and not negative: none of the products rounds.
TEST(CodecTest, Nvfp4IsExact) {
  constexpr int64_t kScales = 0x7F;
  std::vector<uint8_t> pairs, scales;
  for (int64_t n = 0; n < kScales; ++n) {
    for (int i = 0; i < 8; ++i) pairs.push_back(static_cast<uint8_t>((2 * i + 1) << 4 | 2 * i));
    scales.push_back(static_cast<uint8_t>(n));
  }
  const Matrix w = pack_matrix(
      {.data = pairs.data(), .dtype = DType::kNvfp4, .n = kScales, .k = kNvGroup, .group_scales = scales.data()});
  for (const auto& device : devices_under_test()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n_rows : {int64_t{1}, kNvGroup}) {  // few rows and many take different ways
        const Tensor unit(DType::kF32, {kNvGroup, kNvGroup}), bf16(DType::kBF16, {kNvGroup, kNvGroup});
        for (int64_t k = 0; k < kNvGroup; ++k) unit.view().row<float>(k)[k] = 1.0f;
        ops::round_to_bf16(device->ctx(), {.x = unit, .out = bf16});
        const View x = dtype == DType::kF32 ? unit.view() : bf16.view();
        const Tensor out(DType::kF32, {kNvGroup, kScales});
        for (int64_t k = 0; k < kNvGroup; k += n_rows) {
          ops::matmul(device->ctx(),
                      {.x = x.slice_first(k, n_rows), .w = &w, .out = out.view().slice_first(k, n_rows)});
        }
        for (int64_t i = 0; i < kNvGroup * kScales; ++i) {
          const auto k = static_cast<uint8_t>(i / kScales), scale = static_cast<uint8_t>(i % kScales);
          ASSERT_EQ(out.at(i), e2m1_to_f32(k) * e4m3_to_f32(scale))
              << device->name() << ", scale " << int{scale} << ", code " << int{k};
        }
      }
    }
  }
}

TEST(CodecTest, E4m3IsExactInBf16) {
  if (!is_usable(Isa::kAvx512Bf16)) GTEST_SKIP() << "no bf16 dot instruction here";
  const std::vector<uint8_t> codes = finite_e4m3();
  const std::vector<uint16_t> values = widened<uint16_t>(Isa::kAvx512Bf16, codes, DType::kBF16);
  for (size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(values[i], f32_to_bf16(e4m3_to_f32(codes[i]))) << "code " << int{codes[i]};
  }
}

TEST(CodecTest, Bf16IsExactInF32) {
  const std::vector<uint16_t> words = all_words();
  for (const Isa isa : usable_isas()) {
    const std::vector<float> values = widened<float>(isa, words, DType::kF32);
    for (size_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), uint32_t{words[i]} << 16) << isa_name(isa);
    }
  }
}

// Every bf16 value, the values half way to the next, and their neighbours: all the places where rounding decides.
std::vector<float> rounding_places() {
  std::vector<float> values;
  for (uint32_t word = 0; word < 65536; ++word) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      values.push_back(std::bit_cast<float>(word << 16 | low));
    }
  }
  return values;
}

TEST(CodecTest, RoundingToBf16IsTheScalarOne) {
  const std::vector<float> values = rounding_places();
  for (const Isa isa : usable_isas()) {
    std::vector<uint16_t> out(values.size());
    kernels::cpu_kernels(isa).matmul.round_to_bf16(
        {.x = values.data(), .out = out.data(), .n_rows = 1, .k = static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out[i], f32_to_bf16(values[i])) << isa_name(isa) << ", bits " << std::bit_cast<uint32_t>(values[i]);
    }
  }
}

// 448 at the head of each block of 128 makes its scale 1, so that codes are those of the values themselves.
TEST(CodecTest, RoundingToE4m3IsTheScalarOne) {
  std::vector<float> values;
  for (const float v : rounding_places()) {
    if (!(std::fabs(v) <= kE4m3Max)) continue;
    if (values.size() % 128 == 0) values.push_back(kE4m3Max);
    values.push_back(v);
  }
  const size_t n_blocks = (values.size() + 127) / 128;
  for (const Isa isa : usable_isas()) {
    std::vector<uint8_t> out(values.size());
    std::vector<float> scale(n_blocks);
    kernels::cpu_kernels(isa).matmul.quantize_fp8({.x = values.data(),
                                                   .out = out.data(),
                                                   .scale = scale.data(),
                                                   .n_rows = 1,
                                                   .k = static_cast<int64_t>(values.size())});
    EXPECT_EQ(scale, std::vector<float>(n_blocks, 1.0f)) << isa_name(isa);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(int{out[i]}, int{f32_to_e4m3(values[i])}) << isa_name(isa) << ", value " << values[i];
    }
  }
}

}  // namespace
}  // namespace levin::testing
