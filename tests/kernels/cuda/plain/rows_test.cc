// Row work, cache rows and their chains on the device against the CPU's plain kernels, bit for bit.
#include "kernels/cuda/plain/rows.h"

#include <limits>

#include "base/recovery.h"
#include "kernels/cuda/plain/plain_test.h"
#include "kernels/cuda/plain/quantize.h"
#include "kernels/cuda/plain/row_chains.h"
#include "ops/cache_rows.h"
#include "ops/logits.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/row_chains.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

struct Angles {
  Tensor cos, sin;
};
Angles random_angles(Random& random, int64_t n_rows, int64_t n_pairs) {
  Angles a{Tensor(DType::kF32, {n_rows, n_pairs}), Tensor(DType::kF32, {n_rows, n_pairs})};
  for (int64_t i = 0; i < n_rows * n_pairs; ++i) {
    const double angle = 100 * random.uniform();
    a.cos.at(i) = static_cast<float>(std::cos(angle)), a.sin.at(i) = static_cast<float>(std::sin(angle));
  }
  return a;
}

class PlainRowsTest : public PlainTest {
 protected:
  static Rotation upload(DeviceArgs& args, const Angles& a, bool half_split) {
    return {.cos = args.in<float>(a.cos),
            .sin = args.in<float>(a.sin),
            .ld = a.cos.view().dim(1),
            .half_split = half_split};
  }
  static ops::Rotation host(const Angles& a, bool half_split) {
    return {.cos = a.cos,
            .sin = a.sin,
            .pairing = half_split ? ops::RopePairing::kHalfSplit : ops::RopePairing::kInterleaved};
  }
  static ChainInput upload(DeviceArgs& args, const Tensor& x) {
    int64_t ld = 1;
    for (int i = 1; i < x.view().rank(); ++i) ld *= x.view().dim(i);
    return {.x = args.in<std::byte>(x), .dtype = x.view().dtype(), .ld = ld};
  }
};

constexpr std::pair<int64_t, int64_t> kRowShapes[] = {{1, 1},    {3, 7},    {2, 16},   {4, 384},
                                                      {1, 1000}, {2, 7168}, {1, 28672}};

// Where that is recovered from, as in a step of the engine, the device is not taken for a lost one.
TEST_F(PlainRowsTest, ARefusedLaunchIsToldByItsCheckAlone) {
  constexpr int64_t kTooManyBlocks = 65'536;  // along y
  const Recovery recovery;
  EXPECT_THROW(hadamard({.n_rows = 1, .n_heads = kTooManyBlocks, .d = 2}, stream()), CheckFailed);
  EXPECT_TRUE(stream_->synchronize().ok());
}

TEST_F(PlainRowsTest, RowsWithoutNumbersAreMarked) {
  constexpr int64_t kRows = 5, kWidth = 300;
  Random random(3);
  Tensor x = random_tensor(random, {kRows, kWidth}, 2.0f);
  x.at(1 * kWidth + 299) = std::numeric_limits<float>::quiet_NaN();
  x.at(3 * kWidth) = -std::numeric_limits<float>::infinity();
  Tensor faults = i32_tensor({0, 0, kNanIndexScore, 0, 0});
  DeviceArgs args(*stream_);
  mark_unusable(
      {.x = args.in<float>(x), .x_ld = kWidth, .fault = args.out<int32_t>(faults), .n_rows = kRows, .d = kWidth},
      stream());
  args.fetch();
  EXPECT_TRUE(same_bits(faults, i32_tensor({0, kNotFinite, kNanIndexScore, kNotFinite, 0})));
}

TEST_F(PlainRowsTest, Norms) {
  for (const auto& [n_rows, d] : kRowShapes) {
    SCOPED_TRACE(d);
    Random random(static_cast<uint64_t>(d));
    const Tensor x = random_tensor(random, {n_rows, d}, 2.0f);
    const Tensor weight = random_tensor(random, {d}, 1.0f), bias = random_tensor(random, {d}, 1.0f);
    const Tensor rms(DType::kF32, {n_rows, d}), bare(DType::kF32, {n_rows, d}), layer(DType::kF32, {n_rows, d});
    const Tensor sum = copy_of(x);
    ops::rms_norm(cpu(), {.x = x, .weight = weight, .eps = 1e-6f, .out = rms});
    ops::rms_norm(cpu(), {.x = x, .eps = 1e-5f, .out = bare});
    ops::layer_norm(cpu(), {.x = x, .weight = weight, .bias = bias, .eps = 1e-6f, .out = layer});
    ops::add_into(cpu(), {.x = sum, .y = rms});

    Tensor rms_out = unset(DType::kF32, {n_rows, d}), bare_out = copy_of(x),
           layer_out = unset(DType::kF32, {n_rows, d});
    Tensor sum_out = copy_of(x);
    DeviceArgs args(*stream_);
    Norm norm{.x = args.in<float>(x),
              .x_ld = d,
              .weight = args.in<float>(weight),
              .bias = args.in<float>(bias),
              .eps = 1e-6f,
              .out = args.out<float>(rms_out),
              .out_ld = d,
              .n_rows = n_rows,
              .d = d};
    rms_norm(norm, stream());
    add_into({.x = args.out<float>(sum_out), .x_ld = d, .y = norm.out, .y_ld = d, .n_rows = n_rows, .d = d}, stream());
    norm.out = args.out<float>(layer_out);
    layer_norm(norm, stream());
    norm.out = args.out<float>(bare_out), norm.x = norm.out, norm.weight = nullptr, norm.eps = 1e-5f;  // in place
    rms_norm(norm, stream());
    args.fetch();
    EXPECT_TRUE(same_bits(rms_out, rms));
    EXPECT_TRUE(same_bits(sum_out, sum));
    EXPECT_TRUE(same_bits(layer_out, layer));
    EXPECT_TRUE(same_bits(bare_out, bare));
  }
}

TEST_F(PlainRowsTest, Embedding) {
  Random random(3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor table = testing::converted(random_tensor(random, {11, 37}, 1.0f), dtype, {11, 37});
    const Tensor ids = i32_tensor({10, 0, 3, 3});
    const Tensor expected(DType::kF32, {4, 37});
    ops::embed(cpu(), {.ids = ids, .table = table, .out = expected});
    Tensor out = unset(DType::kF32, {4, 37});
    DeviceArgs args(*stream_);
    embed({.ids = args.in<int32_t>(ids),
           .table = args.in<std::byte>(table),
           .table_dtype = dtype,
           .out = args.out<float>(out),
           .out_ld = 37,
           .n_rows = 4,
           .d = 37},
          stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected));
  }
}

TEST_F(PlainRowsTest, RopeAndItsTable) {
  for (const bool half_split : {false, true}) {
    for (const auto& [n_rows, n_heads, d] : {std::array<int64_t, 3>{1, 1, 2}, {3, 5, 64}, {4, 2, 6}}) {
      Random random(static_cast<uint64_t>(d));
      const Tensor positions = i32_tensor({0, 7, 163839, 1000003});
      std::vector<float> frequencies;
      for (int64_t j = 0; j < d / 2; ++j) frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / d)));
      const View rows = View(positions).slice_first(0, n_rows);
      const Angles expected{Tensor(DType::kF32, {n_rows, d / 2}), Tensor(DType::kF32, {n_rows, d / 2})};
      ops::rope_table(cpu(),
                      {.positions = rows, .frequencies = &frequencies, .cos = expected.cos, .sin = expected.sin});
      const Tensor x = random_tensor(random, {n_rows, n_heads, d + 3}, 1.0f), rotated = copy_of(x);
      const ops::Rotation rotation = host(expected, half_split);
      ops::rope(cpu(), {.x = rotated.view().slice_last(3, d),
                        .cos = rotation.cos,
                        .sin = rotation.sin,
                        .pairing = rotation.pairing});

      Angles angles{unset(DType::kF32, {n_rows, d / 2}), unset(DType::kF32, {n_rows, d / 2})};
      Tensor out = copy_of(x);
      DeviceArgs args(*stream_);
      const RopeTable table{.positions = args.in<int32_t>(positions),
                            .frequencies = args.in(frequencies),
                            .cos = args.out<float>(angles.cos),
                            .sin = args.out<float>(angles.sin),
                            .ld = d / 2,
                            .n_rows = n_rows,
                            .n_pairs = d / 2};
      rope_table(table, stream());
      rope({.x = args.out<float>(out) + 3,
            .x_ld = n_heads * (d + 3),
            .head_ld = d + 3,
            .rotation = {.cos = table.cos, .sin = table.sin, .ld = d / 2, .half_split = half_split},
            .n_rows = n_rows,
            .n_heads = n_heads,
            .d = d},
           stream());
      args.fetch();
      EXPECT_TRUE(same_bits(angles.cos, expected.cos)) << d;
      EXPECT_TRUE(same_bits(angles.sin, expected.sin)) << d;
      EXPECT_TRUE(same_bits(out, rotated)) << d;
    }
  }
}

// Rows of a step: two sequences, one token of padding.
struct Tokens {
  Tensor seq = i32_tensor({0, 1, 0, 1, 1});
  Tensor slot = i32_tensor({63, 0, 64, -1, 130});
};
constexpr int64_t kTokens = 5;

std::vector<LatentFormat> latent_formats() {
  std::vector<LatentFormat> formats;
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    formats.push_back(latent_format(dtype, 512, 64));
    formats.push_back(latent_format(dtype, 33, 6));
    formats.push_back(key_value_format(dtype, 512, 64));
    formats.push_back(key_value_format(dtype, 80, 10));
  }
  return formats;
}

TEST_F(PlainRowsTest, CacheRowsAndTheirChains) {
  for (const LatentFormat& f : latent_formats()) {
    SCOPED_TRACE(fmt::format("{} {} + {}", cache_dtype_name(f.dtype), f.d_latent, f.d_rope));
    for (const bool half_split : {false, true}) {
      Random random(static_cast<uint64_t>(f.row_bytes));
      const Tokens tokens;
      const Tensor latent = random_tensor(random, {kTokens, f.d_latent}, 3.0f);
      const Tensor rope = random_tensor(random, {kTokens, f.d_rope}, 3.0f);
      const Tensor both = random_tensor(random, {kTokens, f.d_latent + f.d_rope}, 3.0f);
      const Tensor x =
          testing::converted(both, half_split ? DType::kBF16 : DType::kF32, {kTokens, f.d_latent + f.d_rope});
      const Tensor weight = random_tensor(random, {f.d_latent}, 1.0f);
      const Angles angles = random_angles(random, kTokens, f.d_rope / 2);
      testing::PagedCache appended(f.page_bytes(), 2, 192, 5), written(f.page_bytes(), 2, 192, 5);
      testing::PagedCache appended_out(f.page_bytes(), 2, 192, 5), written_out(f.page_bytes(), 2, 192, 5);
      ops::append_latent(cpu(), {.c_kv = latent,
                                 .k_rope = rope,
                                 .seq = tokens.seq,
                                 .slot = tokens.slot,
                                 .format = f,
                                 .cache = appended.rows()});
      ops::write_latent(cpu(), {.x = x,
                                .weight = weight,
                                .eps = 1e-6f,
                                .rotation = host(angles, half_split),
                                .seq = tokens.seq,
                                .slot = tokens.slot,
                                .format = f,
                                .cache = written.rows()});
      DeviceArgs args(*stream_);
      CacheSlots to{.seq = args.in<int32_t>(tokens.seq), .slot = args.in<int32_t>(tokens.slot)};
      to.cache = args.out(appended_out.rows());
      append_latent({.c_kv = args.in<float>(latent),
                     .c_kv_ld = f.d_latent,
                     .k_rope = args.in<float>(rope),
                     .k_rope_ld = f.d_rope,
                     .format = f,
                     .to = to,
                     .n_rows = kTokens},
                    stream());
      to.cache = args.out(written_out.rows());
      write_latent({.x = upload(args, x),
                    .weight = args.in<float>(weight),
                    .eps = 1e-6f,
                    .rotation = upload(args, angles, half_split),
                    .format = f,
                    .to = to,
                    .n_rows = kTokens},
                   stream());
      args.fetch();
      EXPECT_TRUE(appended_out.same_bytes(appended));
      EXPECT_TRUE(written_out.same_bytes(written));
    }
  }
}

TEST_F(PlainRowsTest, IndexKeysAndTheirChain) {
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    for (const int64_t d : {128, 64, 16}) {
      const IndexKeyFormat f = index_key_format(dtype, d);
      SCOPED_TRACE(fmt::format("{} {}", cache_dtype_name(dtype), d));
      Random random(static_cast<uint64_t>(d));
      const Tokens tokens;
      const Tensor x = random_tensor(random, {kTokens, d}, 2.0f), weight = random_tensor(random, {d}, 1.0f);
      const Tensor bias = random_tensor(random, {d}, 1.0f);
      const Angles angles = random_angles(random, kTokens, d / 4);
      testing::PagedCache appended(f.page_bytes(), 2, 192, 9), written(f.page_bytes(), 2, 192, 9);
      testing::PagedCache appended_out(f.page_bytes(), 2, 192, 9), written_out(f.page_bytes(), 2, 192, 9);
      ops::append_index_keys(
          cpu(), {.keys = x, .seq = tokens.seq, .slot = tokens.slot, .format = f, .cache = appended.rows()});
      ops::write_index_keys(cpu(), {.x = x,
                                    .weight = weight,
                                    .bias = bias,
                                    .eps = 1e-6f,
                                    .rotation = host(angles, true),
                                    .hadamard = dtype != CacheDType::kF32,
                                    .seq = tokens.seq,
                                    .slot = tokens.slot,
                                    .format = f,
                                    .cache = written.rows()});
      DeviceArgs args(*stream_);
      CacheSlots to{.seq = args.in<int32_t>(tokens.seq), .slot = args.in<int32_t>(tokens.slot)};
      to.cache = args.out(appended_out.rows());
      append_index_keys({.keys = args.in<float>(x), .keys_ld = d, .format = f, .to = to, .n_rows = kTokens}, stream());
      to.cache = args.out(written_out.rows());
      write_index_keys({.x = upload(args, x),
                        .weight = args.in<float>(weight),
                        .bias = args.in<float>(bias),
                        .eps = 1e-6f,
                        .rotation = upload(args, angles, true),
                        .d_rope = d / 2,
                        .hadamard = dtype != CacheDType::kF32,
                        .format = f,
                        .to = to,
                        .n_rows = kTokens},
                       stream());
      args.fetch();
      EXPECT_TRUE(appended_out.same_bytes(appended));
      EXPECT_TRUE(written_out.same_bytes(written));
    }
  }
}

TEST_F(PlainRowsTest, ChainOfANorm) {
  for (const auto& [n_rows, d] : kRowShapes) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE(fmt::format("{} rows of {}", n_rows, d));
      Random random(static_cast<uint64_t>(d));
      const Tensor x = testing::converted(random_tensor(random, {n_rows, d}, 1.0f),
                                          with_residual ? DType::kF32 : DType::kBF16, {n_rows, d});
      const Tensor before = random_tensor(random, {n_rows, d}, 4.0f), residual = copy_of(before);
      const Tensor weight = random_tensor(random, {d}, 1.0f);
      const int64_t n_scales = (d + 127) / 128;
      const Tensor normed(DType::kBF16, {n_rows, d}), codes(DType::kF8E4M3, {n_rows, d}),
          scale(DType::kF32, {n_rows, n_scales});
      ops::norm_rows(cpu(), {.x = x,
                             .residual = with_residual ? View(residual) : View(),
                             .weight = weight,
                             .eps = 1e-6f,
                             .normed = normed,
                             .codes = codes,
                             .scale = scale});
      Tensor residual_out = copy_of(before), normed_out = unset(DType::kBF16, {n_rows, d});
      Tensor codes_out = unset(DType::kF8E4M3, {n_rows, d}), scale_out = unset(DType::kF32, {n_rows, n_scales});
      DeviceArgs args(*stream_);
      norm_rows({.x = upload(args, x),
                 .residual = with_residual ? args.out<float>(residual_out) : nullptr,
                 .residual_ld = d,
                 .weight = args.in<float>(weight),
                 .eps = 1e-6f,
                 .normed = args.out<uint16_t>(normed_out),
                 .codes = args.out<uint8_t>(codes_out),
                 .scale = args.out<float>(scale_out),
                 .n_rows = n_rows,
                 .d = d},
                stream());
      args.fetch();
      EXPECT_TRUE(same_bits(residual_out, residual));
      EXPECT_TRUE(same_bits(normed_out, normed));
      EXPECT_TRUE(same_bits(codes_out, codes));
      EXPECT_TRUE(same_bits(scale_out, scale));
    }
  }
}

TEST_F(PlainRowsTest, ChainsOfQueries) {
  for (const bool half_split : {false, true}) {
    for (const auto& [n_heads, d] : {std::pair<int64_t, int64_t>{64, 128}, {3, 32}, {2, 8}}) {
      SCOPED_TRACE(d);
      constexpr int64_t kRows = 3;
      Random random(static_cast<uint64_t>(d));
      const Tensor x = testing::converted(random_tensor(random, {kRows, n_heads, d}, 1.0f),
                                          half_split ? DType::kF32 : DType::kBF16, {kRows, n_heads, d});
      const Tensor w = random_tensor(random, {kRows, n_heads}, 1.0f);
      const Angles half = random_angles(random, kRows, d / 4), whole = random_angles(random, kRows, d / 2);
      const Tensor codes(DType::kF8E4M3, {kRows, n_heads, d}), weights(DType::kF32, {kRows, n_heads});
      const Tensor rotated(DType::kBF16, {kRows, n_heads, d});
      ops::index_queries(cpu(), {.x = x,
                                 .w = w,
                                 .factor = 0.0321f,
                                 .rotation = host(half, half_split),
                                 .hadamard = half_split,
                                 .q = codes,
                                 .weights = weights});
      ops::rotate_queries(cpu(), {.x = x, .rotation = host(whole, half_split), .out = rotated});
      Tensor codes_out = unset(DType::kF8E4M3, {kRows, n_heads, d}), weights_out = unset(DType::kF32, {kRows, n_heads});
      Tensor rotated_out = unset(DType::kBF16, {kRows, n_heads, d});
      DeviceArgs args(*stream_);
      index_queries({.x = upload(args, x),
                     .w = args.in<float>(w),
                     .w_ld = n_heads,
                     .factor = 0.0321f,
                     .rotation = upload(args, half, half_split),
                     .d_rope = d / 2,
                     .hadamard = half_split,
                     .codes = args.out<uint8_t>(codes_out),
                     .weights = args.out<float>(weights_out),
                     .n_rows = kRows,
                     .n_heads = n_heads,
                     .d = d},
                    stream());
      rotate_queries({.x = upload(args, x),
                      .head_ld = d,
                      .rotation = upload(args, whole, half_split),
                      .out = args.out<uint16_t>(rotated_out),
                      .n_rows = kRows,
                      .n_heads = n_heads,
                      .d = d},
                     stream());
      args.fetch();
      EXPECT_TRUE(same_bits(codes_out, codes));
      EXPECT_TRUE(same_bits(weights_out, weights));
      EXPECT_TRUE(same_bits(rotated_out, rotated));
    }
  }
}

}  // namespace
}  // namespace levin::cuda::plain
