// Chains of row work on the device: bit for bit what the plain CPU kernels make of the same values, one after another.
#include "kernels/cuda/rows/row_chains.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/gemm_problem.h"

namespace levin::cuda {
namespace {

std::vector<float> normal_values(int64_t n, uint64_t seed, float spread = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(generator);
  return x;
}

std::vector<uint16_t> to_bf16(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), f32_to_bf16);
  return out;
}

// Rows as f32 or bf16 on the device; `values` are what they stand for.
struct Rows {
  Rows(const Stream& stream, const std::vector<float>& x, int64_t width, bool f32) : values(x), ld(width), is_f32(f32) {
    if (!f32)
      for (float& v : values) v = round_to_bf16(v);
    wide = DeviceArray<float>(stream, values);
    narrow = DeviceArray<uint16_t>(stream, to_bf16(values));
  }
  InputRows rows() const {
    return {is_f32 ? static_cast<const void*>(wide.data()) : static_cast<const void*>(narrow.data()), is_f32, ld};
  }

  std::vector<float> values;
  int64_t ld;
  bool is_f32;
  DeviceArray<float> wide;
  DeviceArray<uint16_t> narrow;
};

// Angles of T tokens, as a rope table holds them.
struct Angles {
  Angles(const Stream& stream, int n_tokens, bool half) : half_split(half) {
    for (const float angle : normal_values(int64_t{n_tokens} * 32, 77, 3)) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    device_cos = DeviceArray<float>(stream, cos);
    device_sin = DeviceArray<float>(stream, sin);
  }
  Rotation rotation() const { return {device_cos.data(), device_sin.data(), half_split}; }
  // x[T, H, 64] rotated in place; heads head_stride apart.
  void rotate(float* x, int64_t n_tokens, int64_t n_heads, int64_t row_stride, int64_t head_stride) const {
    const kernels::RowKernels plain = kernels::row_kernels_plain();
    (half_split ? plain.rope_half_split : plain.rope_interleaved)({.x = x,
                                                                   .row_stride = row_stride,
                                                                   .head_stride = head_stride,
                                                                   .cos = cos.data(),
                                                                   .cos_stride = 32,
                                                                   .sin = sin.data(),
                                                                   .sin_stride = 32,
                                                                   .n_rows = n_tokens,
                                                                   .n_heads = n_heads,
                                                                   .d = 64});
  }

  bool half_split;
  std::vector<float> cos, sin;
  DeviceArray<float> device_cos, device_sin;
};

struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // [rows, ceil(width / 128)]
};
Rounded rounded(const std::vector<float>& x, int64_t width) {
  const int64_t n_rows = static_cast<int64_t>(x.size()) / width;
  Rounded r{std::vector<uint8_t>(x.size()), std::vector<float>(static_cast<size_t>(n_rows * blocks_of(width)))};
  kernels::matmul_kernels_plain().quantize_fp8({.x = x.data(),
                                                .x_stride = width,
                                                .out = r.codes.data(),
                                                .out_stride = width,
                                                .scale = r.scales.data(),
                                                .scale_stride = blocks_of(width),
                                                .n_rows = n_rows,
                                                .k = width});
  return r;
}

void hadamard(std::vector<float>& x) {
  kernels::matmul_kernels_plain().hadamard({.x = x.data(),
                                            .x_stride = 128,
                                            .n_rows = static_cast<int64_t>(x.size()) / 128,
                                            .d = 128,
                                            .factor = static_cast<float>(1 / std::sqrt(128.0))});
}

void rms_norm(std::vector<float>& x, const std::vector<float>& weight, float eps, int64_t stride) {
  const int64_t d = static_cast<int64_t>(weight.size());
  kernels::row_kernels_plain().rms_norm({.x = x.data(),
                                         .x_stride = stride,
                                         .weight = weight.data(),
                                         .eps = eps,
                                         .out = x.data(),
                                         .out_stride = stride,
                                         .n_rows = static_cast<int64_t>(x.size()) / stride,
                                         .d = d});
}

class RowChainsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

TEST_F(RowChainsTest, NormRowsAddsNormsAndRounds) {
  for (const auto& [n_tokens, d] : {std::pair{1, 7168}, {5, 1536}, {3, 144}, {2, 16}, {2, 12288}, {3, 28672}}) {
    for (const bool f32 : {false, true}) {
      const Rows x(*stream_, normal_values(int64_t{n_tokens} * d, 1), d, f32);
      const std::vector<float> before = normal_values(int64_t{n_tokens} * d, 2, 4), weight = normal_values(d, 3);
      const int ld = (n_tokens + 3) / 4 * 4;
      const DeviceArray<float> residual(*stream_, before), device_weight(*stream_, weight),
          scale(*stream_, blocks_of(d) * ld);
      const DeviceArray<uint16_t> normed(*stream_, int64_t{n_tokens} * d);
      const DeviceArray<float> normed_f32(*stream_, int64_t{n_tokens} * d);
      const DeviceArray<uint8_t> codes(*stream_, int64_t{n_tokens} * d);
      norm_rows({.x = x.rows(),
                 .residual = residual.data(),
                 .weight = device_weight.data(),
                 .eps = 1e-6f,
                 .normed = normed.data(),
                 .normed_f32 = normed_f32.data(),
                 .rounded = {codes.data(), d, scale.data(), ld},
                 .n_tokens = n_tokens,
                 .d = d},
                stream_->handle());
      std::vector<float> sum = before;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += x.values[i];
      EXPECT_EQ(residual.host(), sum) << d;
      rms_norm(sum, weight, 1e-6f, d);
      EXPECT_EQ(normed.host(), to_bf16(sum)) << d;
      EXPECT_EQ(normed_f32.host(), sum) << d;
      const Rounded expected = rounded(sum, d);
      EXPECT_EQ(codes.host(), expected.codes) << d;
      const std::vector<float> scales = scale.host();
      for (int t = 0; t < n_tokens; ++t)
        for (int64_t b = 0; b < blocks_of(d); ++b)
          ASSERT_EQ(scales[static_cast<size_t>(b * ld + t)],
                    expected.scales[static_cast<size_t>(t * blocks_of(d) + b)]);
    }
  }
}

TEST_F(RowChainsTest, RotateQueriesTakesThePartOutOfEachHead) {
  constexpr int kTokens = 3, kHeads = 5, kHead = 192;
  for (const bool half_split : {false, true}) {
    const Rows q(*stream_, normal_values(kTokens * kHeads * kHead, 4), kHeads * kHead, half_split);
    const Angles angles(*stream_, kTokens, half_split);
    const DeviceArray<uint16_t> out(*stream_, kTokens * kHeads * 64);
    InputRows rope = q.rows();
    rope.data = static_cast<const std::byte*>(rope.data) + 128 * (q.is_f32 ? 4 : 2);
    rotate_queries({.x = rope,
                    .head_stride = kHead,
                    .rotation = angles.rotation(),
                    .out = out.data(),
                    .n_tokens = kTokens,
                    .n_heads = kHeads},
                   stream_->handle());
    std::vector<float> values = q.values, expected;
    angles.rotate(values.data() + 128, kTokens, kHeads, kHeads * kHead, kHead);
    for (int row = 0; row < kTokens * kHeads; ++row)
      expected.insert(expected.end(), values.begin() + row * kHead + 128, values.begin() + (row + 1) * kHead);
    EXPECT_EQ(out.host(), to_bf16(expected));
  }
}

// Eleven tokens in two pages, physical or through a table, one of them padding.
struct Places {
  static constexpr int kTokens = 11;
  std::vector<int32_t> slot = {63, 64, 65, 0, 1, -1, 127, 100, 31, 32, 2};
  std::vector<int32_t> table_row = {0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0};
  std::vector<int32_t> tables = {2, 0, -1, 3, 1, -1};  // [2, 3]
  int page(int t, bool with_tables) const {
    return with_tables
               ? tables[static_cast<size_t>(table_row[static_cast<size_t>(t)] * 3 + slot[static_cast<size_t>(t)] / 64)]
               : slot[static_cast<size_t>(t)] / 64;
  }
};

struct PlacesOnDevice {
  PlacesOnDevice(const Stream& stream, int64_t page_size)
      : page_bytes(page_size),
        slot(stream, places.slot),
        table_row(stream, places.table_row),
        tables(stream, places.tables),
        pages(stream, std::vector<uint8_t>(static_cast<size_t>(4 * page_size), 0xA5)) {}
  CacheSlots slots(bool with_tables) const {
    CacheSlots to;
    to.slot = slot.data();
    if (with_tables) {
      to.tables = {tables.data(), 3, nullptr};
      to.table_row = table_row.data();
    }
    to.pages = reinterpret_cast<std::byte*>(pages.data());
    to.page_bytes = page_bytes;
    return to;
  }

  Places places;
  int64_t page_bytes;
  DeviceArray<int32_t> slot, table_row, tables;
  DeviceArray<uint8_t> pages;
};

void put(std::vector<uint8_t>& pages, int64_t at, const void* from, size_t n_bytes) {
  std::memcpy(pages.data() + at, from, n_bytes);
}

TEST_F(RowChainsTest, WriteLatentWritesWholeRowsAndNothingElse) {
  for (const LatentRows format : {LatentRows::kFp8, LatentRows::kBF16}) {
    for (const bool with_tables : {false, true}) {
      const int64_t row_bytes = format == LatentRows::kFp8 ? 656 : 1152;
      const PlacesOnDevice device(*stream_, 64 * row_bytes + 64);
      const Rows x(*stream_, normal_values(Places::kTokens * 576, 5), 576, with_tables);
      const std::vector<float> weight = normal_values(512, 6);
      const DeviceArray<float> device_weight(*stream_, weight);
      const Angles angles(*stream_, Places::kTokens, false);
      write_latent({.x = x.rows(),
                    .weight = device_weight.data(),
                    .eps = 1e-5f,
                    .rotation = angles.rotation(),
                    .format = format,
                    .to = device.slots(with_tables),
                    .n_tokens = Places::kTokens},
                   stream_->handle());
      std::vector<float> values = x.values;
      angles.rotate(values.data() + 512, Places::kTokens, 1, 576, 64);
      rms_norm(values, weight, 1e-5f, 576);
      std::vector<uint8_t> expected(static_cast<size_t>(4 * device.page_bytes), 0xA5);
      for (int t = 0; t < Places::kTokens; ++t) {
        const int slot = device.places.slot[static_cast<size_t>(t)];
        if (slot < 0) continue;
        const int64_t at = device.places.page(t, with_tables) * device.page_bytes + slot % 64 * row_bytes;
        const std::vector<float> c(values.begin() + t * 576, values.begin() + t * 576 + 512);
        const std::vector<uint16_t> rope = to_bf16({values.begin() + t * 576 + 512, values.begin() + (t + 1) * 576});
        if (format == LatentRows::kBF16) {
          put(expected, at, to_bf16(c).data(), 1024);
          put(expected, at + 1024, rope.data(), 128);
        } else {
          const Rounded r = rounded(c, 512);
          put(expected, at, r.codes.data(), 512);
          put(expected, at + 512, r.scales.data(), 16);
          put(expected, at + 528, rope.data(), 128);
        }
      }
      EXPECT_EQ(device.pages.host(), expected) << "row bytes " << row_bytes << (with_tables ? " by tables" : "");
    }
  }
}

TEST_F(RowChainsTest, IndexRowsAreNormedRotatedAndRounded) {
  constexpr int kTokens = Places::kTokens, kHeads = 16;
  for (const bool half_split : {false, true}) {
    for (const bool with_hadamard : {true, false}) {
      const Angles angles(*stream_, kTokens, half_split);
      const PlacesOnDevice device(*stream_, 8192 + 256);
      const Rows k(*stream_, normal_values(kTokens * 128, 7, 5), 128, half_split);
      const std::vector<float> weight = normal_values(128, 8), bias = normal_values(128, 9);
      const DeviceArray<float> device_weight(*stream_, weight), device_bias(*stream_, bias);
      write_index_keys({.x = k.rows(),
                        .weight = device_weight.data(),
                        .bias = device_bias.data(),
                        .eps = 1e-6f,
                        .rotation = angles.rotation(),
                        .hadamard = with_hadamard,
                        .to = device.slots(half_split),
                        .n_tokens = kTokens},
                       stream_->handle());
      std::vector<float> keys = k.values;
      kernels::row_kernels_plain().layer_norm({.x = keys.data(),
                                               .x_stride = 128,
                                               .weight = weight.data(),
                                               .bias = bias.data(),
                                               .eps = 1e-6f,
                                               .out = keys.data(),
                                               .out_stride = 128,
                                               .n_rows = kTokens,
                                               .d = 128});
      angles.rotate(keys.data(), kTokens, 1, 128, 128);
      if (with_hadamard) hadamard(keys);
      const Rounded r = rounded(keys, 128);
      std::vector<uint8_t> expected(static_cast<size_t>(4 * device.page_bytes), 0xA5);
      for (int t = 0; t < kTokens; ++t) {
        const int slot = device.places.slot[static_cast<size_t>(t)];
        if (slot < 0) continue;
        const int64_t page = device.places.page(t, half_split) * device.page_bytes;
        put(expected, page + slot % 64 * 128, r.codes.data() + t * 128, 128);
        put(expected, page + 8192 + slot % 64 * 4, &r.scales[static_cast<size_t>(t)], 4);
      }
      EXPECT_EQ(device.pages.host(), expected);

      const Rows q(*stream_, normal_values(kTokens * kHeads * 128, 10), kHeads * 128, !half_split);
      const std::vector<float> w = normal_values(kTokens * kHeads, 11);
      const DeviceArray<float> device_w(*stream_, w), folded(*stream_, kTokens * kHeads);
      const DeviceArray<uint8_t> codes(*stream_, kTokens * kHeads * 128);
      index_queries({.x = q.rows(),
                     .w = device_w.data(),
                     .w_ld = kHeads,
                     .factor = 0.03125f * 0.7f,
                     .rotation = angles.rotation(),
                     .hadamard = with_hadamard,
                     .codes = codes.data(),
                     .weights = folded.data(),
                     .n_tokens = kTokens,
                     .n_heads = kHeads},
                    stream_->handle());
      std::vector<float> queries = q.values;
      angles.rotate(queries.data(), kTokens, kHeads, kHeads * 128, 128);
      if (with_hadamard) hadamard(queries);
      const Rounded rq = rounded(queries, 128);
      EXPECT_EQ(codes.host(), rq.codes);
      std::vector<float> weights = w;
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = weights[i] * (0.03125f * 0.7f) * rq.scales[i];
      EXPECT_EQ(folded.host(), weights);
    }
  }
}

TEST(RowChainsSupportTest, NamesWhatIsNotThere) {
  EXPECT_EQ(chain_support({.d_model = 7168}), "");
  EXPECT_NE(chain_support({.d_model = 7169}).find("7169"), std::string::npos);
  EXPECT_NE(chain_support({.d_model = 7168, .d_latent = 448}).find("448"), std::string::npos);
  EXPECT_NE(chain_support({.d_model = 7168, .d_index = 64}).find("64"), std::string::npos);
}

}  // namespace
}  // namespace levin::cuda
