// Rounding of activations on the device: the same codes and scales as the scalar codecs give.
#include "kernels/cuda/rows/quantize_fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/numbers.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cuda/device_array.h"

namespace levin::cuda {
namespace {

std::vector<float> random_rows(int n_tokens, int k, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n_tokens) * k);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(normal(generator), static_cast<int>(i / 128 % 40) - 30);
  for (int i = 0; i < k && i < 128; ++i) x[static_cast<size_t>(i)] = 0;  // a block of zeros
  x[5] = -0.0f;
  return x;
}

class QuantizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }

  // Codes and scales on the device against the codecs applied to x.
  void expect_rounded(const std::vector<float>& x, int n_tokens, int k, const std::vector<uint8_t>& codes,
                      const std::vector<float>& scales, int ld) {
    for (int t = 0; t < n_tokens; ++t) {
      for (int first = 0; first < k; first += 128) {
        float amax = 0;
        for (int i = first; i < std::min(k, first + 128); ++i)
          amax = std::max(amax, std::fabs(x[static_cast<size_t>(t) * k + i]));
        const float scale = e4m3_pow2_scale(amax);
        ASSERT_EQ(scales[static_cast<size_t>(first / 128) * ld + t], scale) << "row " << t << " block " << first / 128;
        for (int i = first; i < std::min(k, first + 128); ++i)
          ASSERT_EQ(codes[static_cast<size_t>(t) * k + i], f32_to_e4m3(x[static_cast<size_t>(t) * k + i] / scale))
              << t << ", " << i;
      }
    }
  }

  void expect_silu_mul(float limit) {
    const int n_tokens = 9, f = 2048, ld = 12;
    std::mt19937_64 generator(3);
    std::normal_distribution<float> normal(0, 8);
    std::vector<uint16_t> gate_up(static_cast<size_t>(n_tokens) * 2 * f);
    for (uint16_t& value : gate_up) value = f32_to_bf16(normal(generator));
    std::vector<float> hidden(static_cast<size_t>(n_tokens) * f);
    for (int t = 0; t < n_tokens; ++t) {
      for (int i = 0; i < f; ++i) {
        const float gate = bf16_to_f32(gate_up[static_cast<size_t>(t) * 2 * f + i]);
        const float up = bf16_to_f32(gate_up[static_cast<size_t>(t) * 2 * f + f + i]);
        hidden[static_cast<size_t>(t) * f + i] = kernels::limited_silu_mul<kernels::OneLane>(gate, up, limit);
      }
    }
    const DeviceArray<uint16_t> device(*stream_, gate_up);
    const DeviceArray<uint8_t> codes(*stream_, int64_t{n_tokens} * f);
    const DeviceArray<float> scale(*stream_, int64_t{f} / 128 * ld);
    silu_mul_quantize({.gate = device.data(),
                       .up = device.data() + f,
                       .ld = 2 * f,
                       .limit = limit,
                       .out = {codes.data(), f, scale.data(), ld},
                       .n_tokens = n_tokens,
                       .d_hidden = f},
                      stream_->handle());
    expect_rounded(hidden, n_tokens, f, codes.host(), scale.host(), ld);
  }

  std::optional<Stream> stream_;
};

TEST_F(QuantizeTest, EqualsTheScalarCodecs) {
  for (const auto& [n_tokens, k] : {std::pair{1, 128}, {3, 7168}, {5, 144}, {70, 2048}, {2, 16}}) {
    const std::vector<float> x = random_rows(n_tokens, k, static_cast<uint64_t>(k));
    const int ld = (n_tokens + 3) / 4 * 4, n_blocks = (k + 127) / 128;
    const DeviceArray<float> device_x(*stream_, x);
    const DeviceArray<uint8_t> codes(*stream_, int64_t{n_tokens} * k);
    const DeviceArray<float> scale(*stream_, int64_t{n_blocks} * ld);
    quantize_fp8({.x = device_x.data(),
                  .x_is_f32 = true,
                  .x_ld = k,
                  .out = {codes.data(), k, scale.data(), ld},
                  .n_tokens = n_tokens,
                  .k = k},
                 stream_->handle());
    expect_rounded(x, n_tokens, k, codes.host(), scale.host(), ld);

    std::vector<uint16_t> narrow(x.size());
    std::vector<float> widened(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      narrow[i] = f32_to_bf16(x[i]);
      widened[i] = bf16_to_f32(narrow[i]);
    }
    const DeviceArray<uint16_t> device_narrow(*stream_, narrow);
    quantize_fp8({.x = device_narrow.data(),
                  .x_ld = k,
                  .out = {codes.data(), k, scale.data(), ld},
                  .n_tokens = n_tokens,
                  .k = k},
                 stream_->handle());
    expect_rounded(widened, n_tokens, k, codes.host(), scale.host(), ld);
  }
}

TEST_F(QuantizeTest, ValuesAreWhatCodesAndScalesStandFor) {
  constexpr int kTokens = 5, kWidth = 1040, kLd = 1056;
  const std::vector<float> x = random_rows(kTokens, kWidth, 21);
  const DeviceArray<float> device_x(*stream_, x);
  const DeviceArray<uint16_t> values(*stream_, kTokens * kLd);
  quantize_fp8({.x = device_x.data(),
                .x_is_f32 = true,
                .x_ld = kWidth,
                .out = {.values = values.data(), .values_ld = kLd},
                .n_tokens = kTokens,
                .k = kWidth},
               stream_->handle());
  const std::vector<uint16_t> got = values.host();
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kWidth; ++i) {
      float amax = 0;
      for (int j = i / 128 * 128; j < std::min(kWidth, i / 128 * 128 + 128); ++j)
        amax = std::max(amax, std::fabs(x[static_cast<size_t>(t * kWidth + j)]));
      const float scale = e4m3_pow2_scale(amax), value = x[static_cast<size_t>(t * kWidth + i)];
      ASSERT_EQ(bf16_to_f32(got[static_cast<size_t>(t * kLd + i)]), e4m3_to_f32(f32_to_e4m3(value / scale)) * scale)
          << t << ", " << i;
    }
  }
}

TEST_F(QuantizeTest, SiluMulEqualsTheCpuFormula) {
  for (const float limit : {std::numeric_limits<float>::infinity(), 7.0f}) expect_silu_mul(limit);
}

}  // namespace
}  // namespace levin::cuda
