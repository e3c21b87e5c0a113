// Products of f32 rows on the device: the bits of the tree in ops/matmul.h, of every plan, type and batch.
#include "kernels/cuda/gemm/gemm_f32.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/numbers.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/plain/products.h"

namespace levin::cuda {
namespace {

constexpr int64_t kBlock = 128;

// Rows and weights with neighbours that no sum may touch: what follows each row of x, and the rows after the last, are NaN.
struct F32Problem {
  int n_tokens, n_heads, n, k;
  DType w_type;
  int64_t x_head_ld, x_ld;
  std::vector<float> x;        // [T + 1, x_ld]
  std::vector<std::byte> w;    // [H, N, K]
  std::vector<float> w_scale;  // e4m3 alone

  F32Problem(DType type, int tokens, int heads, int outputs, int inputs, uint64_t seed = 1)
      : n_tokens(tokens), n_heads(heads), n(outputs), k(inputs), w_type(type) {
    x_head_ld = (k + 3) / 4 * 4 + 4;
    x_ld = heads * x_head_ld + 8;
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    x.assign(static_cast<size_t>((tokens + 1) * x_ld), std::numeric_limits<float>::quiet_NaN());
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(t * x_ld + h * x_head_ld + i)] = normal(generator);
    w.resize(static_cast<size_t>(int64_t{heads} * n * k * dtype_bytes(type)));
    for (int64_t i = 0; i < int64_t{heads} * n * k; ++i) set_weight(i, normal(generator), generator());
    if (type == DType::kF8E4M3) w_scale.resize(static_cast<size_t>(heads * blocks(n) * blocks(k)));
    for (float& scale : w_scale) scale = std::exp(normal(generator)) * 0.01f;  // no powers of two
  }

  static int64_t blocks(int64_t of) { return (of + kBlock - 1) / kBlock; }

  void set_weight(int64_t i, float value, uint64_t draw) {
    if (w_type == DType::kF32) std::memcpy(&w[static_cast<size_t>(i * 4)], &value, 4);
    if (w_type == DType::kBF16) {
      const uint16_t rounded = f32_to_bf16(value);
      std::memcpy(&w[static_cast<size_t>(i * 2)], &rounded, 2);
    }
    if (w_type == DType::kF8E4M3) w[static_cast<size_t>(i)] = std::byte((draw & 0x7F) == 0x7F ? 0 : draw & 0xFF);
  }
  float weight(int64_t i) const {
    if (w_type == DType::kF8E4M3) return e4m3_to_f32(static_cast<uint8_t>(w[static_cast<size_t>(i)]));
    if (w_type == DType::kF32) {
      float value;
      std::memcpy(&value, &w[static_cast<size_t>(i * 4)], 4);
      return value;
    }
    uint16_t value;
    std::memcpy(&value, &w[static_cast<size_t>(i * 2)], 2);
    return bf16_to_f32(value);
  }

  // The tree, as its header has it.
  float product(int64_t t, int64_t h, int64_t output) const {
    const float* row = &x[static_cast<size_t>(t * x_ld + h * x_head_ld)];
    float total = 0;
    for (int64_t block = 0; block < blocks(k); ++block) {
      float sum = 0;
      for (int64_t i = block * kBlock; i < std::min<int64_t>(k, (block + 1) * kBlock); ++i)
        sum = std::fma(row[i], weight((h * n + output) * k + i), sum);
      const int64_t scale = (h * blocks(n) + output / kBlock) * blocks(k) + block;
      total = std::fma(sum, w_scale.empty() ? 1.0f : w_scale[static_cast<size_t>(scale)], total);
    }
    return total;
  }
  std::vector<float> products() const {  // [T, H, N]
    std::vector<float> out;
    for (int64_t t = 0; t < n_tokens; ++t)
      for (int64_t h = 0; h < n_heads; ++h)
        for (int64_t i = 0; i < n; ++i) out.push_back(product(t, h, i));
    return out;
  }

  GemmF32Shape shape(int rows) const { return {.n_rows = rows, .w_type = w_type, .n = n, .k = k, .n_heads = n_heads}; }
};

class F32OnDevice {
 public:
  F32OnDevice(const Stream& stream, const F32Problem& p)
      : stream_(stream),
        p_(p),
        x_(stream, p.x),
        w_(stream, p.w),
        scale_(stream, p.w_scale.empty() ? std::vector<float>(1) : p.w_scale) {}

  // [count, H, N] of the rows from `first`. Rows of the result, and heads, are apart; what lies between stays as it was. `fours`:
  // rows and heads begin where four values may be stored at once.
  std::vector<float> run(const GemmF32Plan& plan, int first, int count, bool fours = false, int n_busy_sms = 0) const {
    const int64_t head_ld = fours ? (p_.n + 7) / 4 * 4 : p_.n + 3, ld = p_.n_heads * head_ld + (fours ? 4 : 5);
    const DeviceArray<float> out(stream_, (int64_t{count} + 1) * ld);
    out.fill(0xFF);
    gemm_f32({.x = x_.data() + first * p_.x_ld,
              .x_ld = p_.x_ld,
              .x_head_ld = p_.x_head_ld,
              .w = w_.data(),
              .w_type = p_.w_type,
              .w_scale = p_.w_scale.empty() ? nullptr : scale_.data(),
              .out = out.data(),
              .out_ld = ld,
              .out_head_ld = head_ld,
              .n_tokens = count,
              .n_heads = p_.n_heads,
              .n = p_.n,
              .k = p_.k,
              .n_busy_sms = n_busy_sms},
             plan, stream_.handle());
    std::vector<float> dense;
    int64_t n_touched = 0;
    const std::vector<float> host = out.host();
    for (int64_t i = 0; i < (int64_t{count} + 1) * ld; ++i) {
      const int64_t head = i % ld / head_ld;
      if (i / ld < count && head < p_.n_heads && i % ld % head_ld < p_.n) {
        dense.push_back(host[static_cast<size_t>(i)]);
      } else {
        n_touched += !std::isnan(host[static_cast<size_t>(i)]);
      }
    }
    EXPECT_EQ(n_touched, 0) << "values beyond the result, " << plan.describe();
    return dense;
  }

 private:
  const Stream& stream_;
  const F32Problem& p_;
  DeviceArray<float> x_;
  DeviceArray<std::byte> w_;
  DeviceArray<float> scale_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GemmF32Test : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  const Stream& stream() const { return *stream_; }

  void check_all_plans(const F32Problem& p) {
    SCOPED_TRACE(fmt::format("{} rows, {} heads [{}, {}] {}", p.n_tokens, p.n_heads, p.n, p.k, dtype_name(p.w_type)));
    const F32OnDevice device(stream(), p);
    const std::vector<float> expected = p.products();
    for (const GemmF32Plan& plan : gemm_f32_plans(p.shape(p.n_tokens))) {
      ASSERT_TRUE(same_bits(device.run(plan, 0, p.n_tokens), expected)) << plan.describe();
      ASSERT_TRUE(same_bits(device.run(plan, 0, p.n_tokens, true), expected)) << plan.describe();
      ASSERT_TRUE(same_bits(device.run(plan, 0, p.n_tokens, true, 130), expected)) << plan.describe();
    }
  }

  // In every plan: f32, bf16 and codes are those of the sums.
  void check_rounding(int n_heads, int n_outputs);

  std::optional<Stream> stream_;
};

TEST_P(GemmF32Test, GivesTheBitsOfItsTreeInEveryPlan) {
  for (const int rows : {1, 3, 8, 37, 70}) {
    check_all_plans({GetParam(), rows, 1, 40, 16});
    check_all_plans({GetParam(), rows, 1, 200, 1040});
    check_all_plans({GetParam(), rows, 3, 75, 272});
    check_all_plans({GetParam(), rows, 2, 160, 1168});
  }
  check_all_plans({GetParam(), 2, 5, 33, 128});
  check_all_plans({GetParam(), 20, 3, 6, 272});
  check_all_plans({GetParam(), 5, 1, 1, 2048});
  check_all_plans({GetParam(), 300, 2, 130, 272});
  // several items for a block, and a last turn of slots that is not full
  check_all_plans({GetParam(), 140, 35, 160, 528});
  check_all_plans({GetParam(), 140, 35, 130, 880});
}

TEST_P(GemmF32Test, GivesARowTheBitsThatItHasAloneWhateverThePlan) {
  const F32Problem p(GetParam(), 90, 2, 320, 1168);
  const F32OnDevice device(stream(), p);
  const std::vector<float> all = device.run(plan_gemm_f32(p.shape(90)), 0, 90);
  const size_t row = all.size() / 90;
  for (const auto& [first, count] :
       {std::pair{0, 1}, {89, 1}, {3, 2}, {17, 5}, {40, 8}, {1, 9}, {20, 17}, {2, 33}, {5, 65}}) {
    const std::vector<float> some(all.begin() + static_cast<int64_t>(row) * first,
                                  all.begin() + static_cast<int64_t>(row) * (first + count));
    for (const GemmF32Plan& plan : gemm_f32_plans(p.shape(count))) {
      ASSERT_TRUE(same_bits(device.run(plan, first, count), some)) << plan.describe() << ", from row " << first;
    }
  }
}

// NaN and infinity stay in their rows and outputs, and what underflows does so as it would alone.
TEST_P(GemmF32Test, KeepsWhatIsNoNumberInItsRow) {
  F32Problem p(GetParam(), 20, 1, 100, 272);
  p.x[static_cast<size_t>(4 * p.x_ld + 200)] = std::numeric_limits<float>::quiet_NaN();
  p.x[static_cast<size_t>(9 * p.x_ld)] = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < p.k; ++i) p.x[static_cast<size_t>(11 * p.x_ld + i)] *= 1e-40f;
  const F32OnDevice device(stream(), p);
  const std::vector<float> expected = p.products();
  for (const GemmF32Plan& plan : gemm_f32_plans(p.shape(p.n_tokens))) {
    const std::vector<float> got = device.run(plan, 0, p.n_tokens);
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool same =
          std::isnan(expected[i]) ? std::isnan(got[i]) : std::memcmp(&got[i], &expected[i], sizeof(float)) == 0;
      ASSERT_TRUE(same) << plan.describe() << ", row " << i / 100 << ", output " << i % 100 << ": " << got[i]
                        << ", not " << expected[i];
    }
  }
}

void GemmF32Test::check_rounding(int n_heads, int n_outputs) {
  constexpr int kRows = 300;
  const int width = n_heads * n_outputs, n_scales = width / 128 * kRows;
  const F32Problem p(GetParam(), kRows, n_heads, n_outputs, 528);
  const std::vector<float> want = p.products();
  const DeviceArray<float> x(stream(), p.x), w_scale(stream(), p.w_scale.empty() ? std::vector<float>(1) : p.w_scale),
      wanted(stream(), want), f32(stream(), kRows * width), scale(stream(), n_scales), want_scale(stream(), n_scales);
  const DeviceArray<std::byte> w(stream(), p.w);
  const DeviceArray<uint16_t> bf16(stream(), kRows * width);
  const DeviceArray<uint8_t> codes(stream(), kRows * width), want_codes(stream(), kRows * width);
  quantize_fp8(
      {.x = wanted.data(),
       .x_is_f32 = true,
       .x_ld = width,
       .out = {.codes = want_codes.data(), .code_row_bytes = width, .scale = want_scale.data(), .scale_ld = kRows},
       .n_tokens = kRows,
       .k = width},
      stream().handle());
  for (const GemmF32Plan& plan : gemm_f32_plans(p.shape(kRows))) {
    GemmF32 a{.x = x.data(),
              .x_ld = p.x_ld,
              .x_head_ld = p.x_head_ld,
              .w = w.data(),
              .w_type = p.w_type,
              .w_scale = p.w_scale.empty() ? nullptr : w_scale.data(),
              .out = f32.data(),
              .out_ld = width,
              .out_head_ld = n_outputs,
              .n_tokens = kRows,
              .n_heads = n_heads,
              .n = n_outputs,
              .k = p.k};
    f32.fill(0xFF);
    gemm_f32(a, plan, stream().handle());
    ASSERT_TRUE(same_bits(f32.host(), want)) << plan.describe();
    a.out = bf16.data(), a.out_is_bf16 = true;
    bf16.fill(0xFF);
    gemm_f32(a, plan, stream().handle());
    const std::vector<uint16_t> rounded = bf16.host();
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(rounded[i], f32_to_bf16(want[i])) << plan.describe();
    if (!rounds_rows(plan, p.shape(kRows))) continue;
    a.out = nullptr, a.out_is_bf16 = false;
    a.rounded = {.codes = codes.data(), .code_row_bytes = width, .scale = scale.data(), .scale_ld = kRows};
    codes.fill(0xFF), scale.fill(0xFF);
    gemm_f32(a, plan, stream().handle());
    ASSERT_EQ(codes.host(), want_codes.host()) << plan.describe();
    ASSERT_EQ(scale.host(), want_scale.host()) << plan.describe();
  }
}

// Rows of 300 and whole blocks of 128 outputs, so that every way of storing is whole.
TEST_P(GemmF32Test, RoundsWhatItWouldHaveStored) {
  check_rounding(20, 128);
  check_rounding(7, 256);
}

INSTANTIATE_TEST_SUITE_P(Types, GemmF32Test, ::testing::Values(DType::kBF16, DType::kF32, DType::kF8E4M3),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

// The products of DeepSeek-V3.2, GLM-5 and DeepSeek-V4 with such rows, against the plain kernel.
struct ModelShape {
  const char* name;
  DType w_type;
  int n_heads, n, k;
};
class GemmF32ModelsTest : public ::testing::TestWithParam<ModelShape> {};

TEST_P(GemmF32ModelsTest, GivesTheBitsOfThePlainKernel) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  const Stream stream = must(Stream::create());
  const ModelShape& m = GetParam();
  constexpr int kRows = 33;
  const int64_t n_values = int64_t{m.n_heads} * m.n * m.k, x_ld = int64_t{m.n_heads} * m.k, out_ld = m.n_heads * m.n;
  std::mt19937_64 generator(3);
  std::vector<uint64_t> words(static_cast<size_t>(n_values * dtype_bytes(m.w_type) / 8 + 1));
  for (uint64_t& word : words) {
    word = generator();
    // Exponents of bf16 and f32 near that of one, codes of e4m3 without NaN.
    word = m.w_type == DType::kF8E4M3
               ? word & 0xBFBFBFBFBFBFBFBF
               : (word & 0x83FF83FF83FF83FF) | (m.w_type == DType::kBF16 ? 0x3C003C003C003C00 : 0x3C0000003C000000);
  }
  std::vector<float> x(static_cast<size_t>(kRows * x_ld)), scales;
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(generator);
  if (m.w_type == DType::kF8E4M3) {
    scales.resize(static_cast<size_t>(m.n_heads * F32Problem::blocks(m.n) * F32Problem::blocks(m.k)));
    for (float& v : scales) v = std::exp(normal(generator));
  }
  const DeviceArray<uint64_t> w(stream, words);
  const DeviceArray<float> rows(stream, x), scale(stream, scales.empty() ? std::vector<float>(1) : scales);
  const DeviceArray<float> expected(stream, kRows * out_ld), out(stream, kRows * out_ld);
  plain::matmul_per_head(
      {.x = {.x = rows.data(), .dtype = DType::kF32, .ld = x_ld},
       .x_head_ld = m.k,
       .w =
           {.data = w.data(), .dtype = m.w_type, .scales = scales.empty() ? nullptr : scale.data(), .n = m.n, .k = m.k},
       .out = expected.data(),
       .out_ld = out_ld,
       .out_head_ld = m.n,
       .n_rows = kRows,
       .n_heads = m.n_heads},
      stream.handle());
  const std::vector<float> want = expected.host();
  for (const int count : {1, 2, 8, 16, kRows}) {
    out.fill(0xFF);
    const GemmF32Plan plan =
        plan_gemm_f32({.n_rows = count, .w_type = m.w_type, .n = m.n, .k = m.k, .n_heads = m.n_heads});
    gemm_f32({.x = rows.data(),
              .x_ld = x_ld,
              .x_head_ld = m.k,
              .w = w.data(),
              .w_type = m.w_type,
              .w_scale = scales.empty() ? nullptr : scale.data(),
              .out = out.data(),
              .out_ld = out_ld,
              .out_head_ld = m.n,
              .n_tokens = count,
              .n_heads = m.n_heads,
              .n = m.n,
              .k = m.k},
             plan, stream.handle());
    const std::vector<float> got = out.host(count * out_ld);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
        << count << " rows, " << plan.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GemmF32ModelsTest,
                         ::testing::Values(ModelShape{"Head", DType::kBF16, 1, 129280, 7168},
                                           ModelShape{"Router", DType::kBF16, 1, 256, 7168},
                                           ModelShape{"IndexHeadWeights", DType::kBF16, 1, 64, 7168},
                                           ModelShape{"Join", DType::kBF16, 1, 7168, 14336},
                                           ModelShape{"Keys", DType::kF8E4M3, 128, 512, 128},
                                           ModelShape{"Values", DType::kF8E4M3, 128, 128, 512},
                                           ModelShape{"GlmKeys", DType::kBF16, 64, 512, 192},
                                           ModelShape{"GlmValues", DType::kBF16, 64, 256, 512},
                                           ModelShape{"StreamFunctions", DType::kF32, 1, 24, 16384},
                                           ModelShape{"F32Router", DType::kF32, 1, 256, 7168}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(GemmF32SupportTest, TakesWeightsWhoseRowsAreMultiplesOf16Bytes) {
  EXPECT_EQ(gemm_f32_support(DType::kBF16, 8), "");
  EXPECT_EQ(gemm_f32_support(DType::kF32, 4), "");
  EXPECT_EQ(gemm_f32_support(DType::kF8E4M3, 16), "");
  EXPECT_NE(gemm_f32_support(DType::kBF16, 12).find("multiple of 8, not 12"), std::string::npos);
  EXPECT_NE(gemm_f32_support(DType::kF8E4M3, 8).find("multiple of 16, not 8"), std::string::npos);
  EXPECT_NE(gemm_f32_support(DType::kMxfp4, 64).find("not mxfp4"), std::string::npos);
}

}  // namespace
}  // namespace levin::cuda
