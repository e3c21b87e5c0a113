// A chain has the bits of the ops it names, one after another on the plain device, on every backend and in any batch.
#include "ops/row_chains.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "base/numbers.h"
#include "ops/cache_rows.h"
#include "ops/copies.h"
#include "ops/norm.h"
#include "ops/paged_cache.h"
#include "ops/quantize.h"
#include "ops/weights.h"

namespace levin::testing {
namespace {

constexpr float kEps = 1e-6f;
constexpr int64_t kRope = 64, kIndex = 128, kLatent = 512;

Tensor copy_of(const Tensor& x) {
  Tensor out(DType::kF32, {x.view().dim(0), x.view().dim(1)});
  std::copy_n(x.view().data<float>(), x.view().n_elements(), out.view().data<float>());
  return out;
}

// x as the input type, and the values that it then has.
struct Input {
  Tensor given, values;
};
Input input(Random& random, DType dtype, int64_t n_rows, int64_t width) {
  Tensor x = random_tensor(random, {n_rows, width});
  Tensor given = converted(x, dtype, {n_rows, width});
  for (int64_t i = 0; i < n_rows * width; ++i) x.at(i) = static_cast<float>(value_of(given, i));
  return {std::move(given), std::move(x)};
}

struct Table {
  Tensor cos, sin;

  Table(Random& random, int64_t n_rows) : cos(DType::kF32, {n_rows, kRope / 2}), sin(DType::kF32, {n_rows, kRope / 2}) {
    for (int64_t i = 0; i < n_rows * kRope / 2; ++i) {
      const float angle = 3 * random.normal();
      cos.at(i) = std::cos(angle), sin.at(i) = std::sin(angle);
    }
  }
  ops::Rotation on(Args& args, ops::RopePairing pairing, int64_t begin, int64_t n) const {
    return {args.in(cos.view().slice_first(begin, n)), args.in(sin.view().slice_first(begin, n)), pairing};
  }
  void rotate(const View& x, ops::RopePairing pairing) const {
    ops::rope(plain_device().ctx(), {.x = x, .cos = cos, .sin = sin, .pairing = pairing});
  }
};

constexpr ops::RopePairing kPairings[] = {ops::RopePairing::kInterleaved, ops::RopePairing::kHalfSplit};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TEST(NormRowsTest, IsAdditionThenNormThenRounding) {
  OpContext& plain = plain_device().ctx();
  for (const int64_t d : {16, 144, 1536, 20}) {
    for (const DType dtype : kTypes) {
      for (const bool with_residual : {true, false}) {
        Random random(d);
        constexpr int64_t kRows = 5;
        const int64_t n_scales = (d + 127) / 128;
        const Input x = input(random, dtype, kRows, d);
        const Tensor residual = random_tensor(random, {kRows, d}, 4), weight = random_tensor(random, {d});
        const Tensor sum = with_residual ? copy_of(residual) : copy_of(x.values), normed(DType::kF32, {kRows, d});
        if (with_residual) ops::add_into(plain, {.x = sum, .y = x.values});
        ops::rms_norm(plain, {.x = sum, .weight = weight, .eps = kEps, .out = normed});
        const Tensor bf16(DType::kBF16, {kRows, d}), codes(DType::kF8E4M3, {kRows, d}),
            scale(DType::kF32, {kRows, n_scales});
        ops::round_to_bf16(plain, {.x = normed, .out = bf16});
        ops::quantize_fp8(plain, {.x = normed, .out = codes, .scale = scale});
        for (TestDevice* device : backends_under_test()) {
          if (device->on_cuda() && d % 16 != 0) continue;
          for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, kRows}, {3, 1}}) {
            const Tensor got(DType::kBF16, {n, d}), got_codes(DType::kF8E4M3, {n, d}),
                got_scale(DType::kF32, {n, n_scales}), stream = copy_of(residual);
            Args args(*device);
            const View stream_rows = with_residual ? args.out(stream.view().slice_first(begin, n)) : View();
            ops::norm_rows(device->ctx(), {.x = args.in(x.given.view().slice_first(begin, n)),
                                           .residual = stream_rows,
                                           .weight = args.in(weight),
                                           .eps = kEps,
                                           .normed = args.out(got),
                                           .codes = args.out(got_codes),
                                           .scale = args.out(got_scale)});
            args.fetch();
            ASSERT_TRUE(same_bits(got, bf16.view().slice_first(begin, n))) << device->name() << ", D " << d;
            ASSERT_TRUE(same_bits(got_codes, codes.view().slice_first(begin, n))) << device->name() << ", D " << d;
            ASSERT_TRUE(same_bits(got_scale, scale.view().slice_first(begin, n))) << device->name() << ", D " << d;
            if (with_residual) {
              ASSERT_TRUE(same_bits(stream.view().slice_first(begin, n), sum.view().slice_first(begin, n)));
            }
          }
        }
      }
    }
  }
}

// Heads of 166: their parts begin anywhere.
TEST(RotateQueriesTest, RotatesThePartOfEachHead) {
  constexpr int64_t kRows = 4, kHeads = 5;
  for (const int64_t width : {192, 166}) {
    const int64_t first = width - kRope;
    for (const DType dtype : kTypes) {
      for (const ops::RopePairing pairing : kPairings) {
        Random random(2);
        const Input x = input(random, dtype, kRows, kHeads * width);
        const Table table(random, kRows);
        const Tensor parts(DType::kF32, {kRows, kHeads, kRope}), want(DType::kBF16, {kRows, kHeads, kRope});
        for (int64_t i = 0; i < kRows * kHeads * kRope; ++i)
          parts.view().data<float>()[i] = x.values.at(i / kRope * width + first + i % kRope);
        table.rotate(parts, pairing);
        for (int64_t i = 0; i < kRows * kHeads * kRope; ++i) want.view().data<uint16_t>()[i] = f32_to_bf16(parts.at(i));
        for (TestDevice* device : backends_under_test()) {
          const Tensor got(DType::kBF16, {kRows, kHeads, kRope});
          Args args(*device);
          const View heads = args.in(x.given).split_last(kHeads, width);
          ops::rotate_queries(device->ctx(), {.x = heads.slice_last(first, kRope),
                                              .rotation = table.on(args, pairing, 0, kRows),
                                              .out = args.out(got)});
          args.fetch();
          ASSERT_TRUE(same_bits(got, want)) << device->name() << ", heads of " << width;
        }
      }
    }
  }
}

// Tokens of two sequences that lie anywhere; one has no slot.
struct Slots {
  std::vector<int32_t> seq = {0, 1, 0, 1, 1}, slot = {3, 130, -1, 64, 0};
};

// Whether write(ctx, args, cache) leaves the bytes of `want` in a cache of every backend.
template <class Write>
void expect_cache(const PagedCache& want, int64_t page_bytes, const Write& write) {
  for (TestDevice* device : backends_under_test()) {
    const PagedCache got(page_bytes, 2, 192, 7);
    Args args(*device);
    write(device->ctx(), args, args.out(got.rows()));
    args.fetch();
    EXPECT_TRUE(got.same_bytes(want)) << device->name();
  }
}

TEST(WriteLatentTest, IsNormAndRopeIntoTheCache) {
  constexpr int64_t kRows = 5;
  const LatentFormat format = latent_format(CacheDType::kFp8, kLatent, kRope);
  for (const DType dtype : kTypes) {
    for (const ops::RopePairing pairing : kPairings) {
      Random random(3);
      const Input x = input(random, dtype, kRows, kLatent + kRope);
      const Table table(random, kRows);
      const Tensor weight = random_tensor(random, {kLatent}), values = copy_of(x.values);
      const Slots s;
      const View latent = values.view().slice_last(0, kLatent), rope = values.view().slice_last(kLatent, kRope);
      ops::rms_norm(plain_device().ctx(), {.x = latent, .weight = weight, .eps = kEps, .out = latent});
      table.rotate(rope.split_last(1, kRope), pairing);
      const PagedCache want(format.page_bytes(), 2, 192, 7);
      ops::append_latent(plain_device().ctx(), {.c_kv = latent,
                                                .k_rope = rope,
                                                .seq = i32_tensor(s.seq),
                                                .slot = i32_tensor(s.slot),
                                                .format = format,
                                                .cache = want.rows()});
      expect_cache(want, format.page_bytes(), [&](OpContext& ctx, Args& args, const PagedRows& cache) {
        ops::write_latent(ctx, {.x = args.in(x.given),
                                .weight = args.in(weight),
                                .eps = kEps,
                                .rotation = table.on(args, pairing, 0, kRows),
                                .seq = args.in(i32_tensor(s.seq)),
                                .slot = args.in(i32_tensor(s.slot)),
                                .format = format,
                                .cache = cache});
      });
    }
  }
}

TEST(IndexQueriesTest, IsRopeHadamardAndRounding) {
  constexpr int64_t kRows = 4, kHeads = 6;
  constexpr float kFactor = 0.0361f;
  for (const DType dtype : kTypes) {
    for (const bool rotated : {true, false}) {
      const ops::RopePairing pairing = kPairings[rotated ? 1 : 0];
      Random random(4);
      const Input x = input(random, dtype, kRows, kHeads * kIndex);
      const Table table(random, kRows);
      const Tensor w = random_tensor(random, {kRows, kHeads}), values = copy_of(x.values);
      const View heads = values.view().split_last(kHeads, kIndex);
      table.rotate(heads.slice_last(0, kRope), pairing);
      if (rotated) ops::hadamard(plain_device().ctx(), {.x = heads});
      const Tensor codes(DType::kF8E4M3, {kRows, kHeads, kIndex}), scale(DType::kF32, {kRows * kHeads, 1}),
          weights(DType::kF32, {kRows, kHeads});
      ops::quantize_fp8(plain_device().ctx(),
                        {.x = heads.merged_first(), .out = codes.view().merged_first(), .scale = scale});
      for (int64_t i = 0; i < kRows * kHeads; ++i) weights.view().data<float>()[i] = w.at(i) * kFactor * scale.at(i);
      for (TestDevice* device : backends_under_test()) {
        const Tensor got(DType::kF8E4M3, {kRows, kHeads, kIndex}), got_weights(DType::kF32, {kRows, kHeads});
        Args args(*device);
        ops::index_queries(device->ctx(), {.x = args.in(x.given).split_last(kHeads, kIndex),
                                           .w = args.in(w),
                                           .factor = kFactor,
                                           .rotation = table.on(args, pairing, 0, kRows),
                                           .hadamard = rotated,
                                           .q = args.out(got),
                                           .weights = args.out(got_weights)});
        args.fetch();
        ASSERT_TRUE(same_bits(got, codes)) << device->name();
        ASSERT_TRUE(same_bits(got_weights, weights)) << device->name();
      }
    }
  }
}

TEST(WriteIndexKeysTest, IsNormRopeAndHadamardIntoTheCache) {
  constexpr int64_t kRows = 5;
  const IndexKeyFormat format = index_key_format(CacheDType::kFp8, kIndex);
  for (const DType dtype : kTypes) {
    for (const bool rotated : {true, false}) {
      const ops::RopePairing pairing = kPairings[rotated ? 1 : 0];
      Random random(5);
      const Input x = input(random, dtype, kRows, kIndex);
      const Table table(random, kRows);
      const Tensor weight = random_tensor(random, {kIndex}), bias = random_tensor(random, {kIndex}),
                   values = copy_of(x.values);
      const Slots s;
      OpContext& plain = plain_device().ctx();
      ops::layer_norm(plain, {.x = values, .weight = weight, .bias = bias, .eps = kEps, .out = values});
      table.rotate(values.view().slice_last(0, kRope).split_last(1, kRope), pairing);
      if (rotated) ops::hadamard(plain, {.x = values.view().split_last(1, kIndex)});
      const PagedCache want(format.page_bytes(), 2, 192, 7);
      ops::append_index_keys(plain, {.keys = values,
                                     .seq = i32_tensor(s.seq),
                                     .slot = i32_tensor(s.slot),
                                     .format = format,
                                     .cache = want.rows()});
      expect_cache(want, format.page_bytes(), [&](OpContext& ctx, Args& args, const PagedRows& cache) {
        ops::write_index_keys(ctx, {.x = args.in(x.given),
                                    .weight = args.in(weight),
                                    .bias = args.in(bias),
                                    .eps = kEps,
                                    .rotation = table.on(args, pairing, 0, kRows),
                                    .hadamard = rotated,
                                    .seq = args.in(i32_tensor(s.seq)),
                                    .slot = args.in(i32_tensor(s.slot)),
                                    .format = format,
                                    .cache = cache});
      });
    }
  }
}

// ---- several chains by one call ----

// A matrix of f32 or bf16 where the device can multiply with it.
const Matrix* placed(TestDevice& device, const TestMatrix& w, Matrix& memory) {
  if (!device.on_cuda()) return &w.packed;
  std::vector<uint16_t> bf16;
  for (const float value : w.values) bf16.push_back(f32_to_bf16(value));
  const bool is_f32 = w.packed.dtype() == DType::kF32;
  Result<Matrix> uploaded =
      device.cuda().upload({.data = is_f32 ? static_cast<const void*>(w.values.data()) : bf16.data(),
                            .dtype = w.packed.dtype(),
                            .n = w.packed.n(),
                            .k = w.packed.k()});
  LEVIN_CHECK(uploaded.ok(), "{}", uploaded.error().message);
  memory = std::move(uploaded).value();
  return &memory;
}

TEST(NormAndAppendTest, IsItsThreeChainsAndAProduct) {
  constexpr int64_t kRows = 5, kOutputs = 7;
  const LatentFormat latent_rows = latent_format(CacheDType::kFp8, kLatent, kRope);
  const IndexKeyFormat key_rows = index_key_format(CacheDType::kFp8, kIndex);
  for (const int64_t d : {144, 1536}) {
    for (const bool with_keys : {true, false}) {
      Random random(21);
      const Tensor q = random_tensor(random, {kRows, d}), kv = random_tensor(random, {kRows, kLatent + kRope}),
                   key = random_tensor(random, {kRows, kIndex}), q_weight = random_tensor(random, {d}),
                   kv_weight = random_tensor(random, {kLatent}), key_weight = random_tensor(random, {kIndex}),
                   key_bias = random_tensor(random, {kIndex}), h = random_tensor(random, {kRows, 1024});
      const TestMatrix w = random_matrix(random, with_keys ? DType::kF32 : DType::kBF16, kOutputs, 1024);
      const Table table(random, kRows);
      const Slots s;
      const Tensor sequences = i32_tensor(s.seq), slots = i32_tensor(s.slot);
      struct Outputs {
        Tensor normed, codes, scale, product;
        PagedCache latent, keys;
      };
      // Rows begin .. begin + n - 1, by one call or by one for each chain.
      const auto run = [&](TestDevice& device, int64_t begin, int64_t n, bool together) {
        Outputs out{Tensor(DType::kF32, {n, d}),
                    Tensor(DType::kF8E4M3, {n, d}),
                    Tensor(DType::kF32, {n, (d + 127) / 128}),
                    Tensor(DType::kF32, {n, kOutputs}),
                    PagedCache(latent_rows.page_bytes(), 2, 192, 7),
                    PagedCache(key_rows.page_bytes(), 2, 192, 8)};
        Args args(device);
        const auto rows = [&](const Tensor& x) { return args.in(x.view().slice_first(begin, n)); };
        const View seq = rows(sequences), slot = rows(slots);
        Matrix memory;
        ops::NormAndAppend a{
            .norm = {.x = rows(q),
                     .weight = args.in(q_weight),
                     .eps = kEps,
                     .normed = args.out(out.normed),
                     .codes = args.out(out.codes),
                     .scale = args.out(out.scale)},
            .latent = {.x = rows(kv),
                       .weight = args.in(kv_weight),
                       .eps = kEps,
                       .rotation = table.on(args, kPairings[0], begin, n),
                       .seq = seq,
                       .slot = slot,
                       .format = latent_rows,
                       .cache = args.out(out.latent.rows())},
            .keys = {},
            .product = {.x = rows(h), .x_scale = {}, .w = placed(device, w, memory), .out = args.out(out.product)}};
        if (with_keys) {
          a.keys = {.x = rows(key),
                    .weight = args.in(key_weight),
                    .bias = args.in(key_bias),
                    .eps = kEps,
                    .rotation = table.on(args, kPairings[1], begin, n),
                    .seq = seq,
                    .slot = slot,
                    .format = key_rows,
                    .cache = args.out(out.keys.rows())};
        }
        if (together) {
          ops::norm_and_append(device.ctx(), a);
        } else {
          ops::norm_rows(device.ctx(), a.norm);
          ops::write_latent(device.ctx(), a.latent);
          if (with_keys) ops::write_index_keys(device.ctx(), a.keys);
          ops::matmul(device.ctx(), a.product);
        }
        args.fetch();
        return out;
      };
      for (TestDevice* device : backends_under_test()) {
        for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, kRows}, {3, 1}}) {
          const Outputs want = run(*device, begin, n, false), got = run(*device, begin, n, true);
          ASSERT_TRUE(same_bits(got.normed, want.normed)) << device->name() << ", D " << d;
          ASSERT_TRUE(same_bits(got.codes, want.codes)) << device->name() << ", D " << d;
          ASSERT_TRUE(same_bits(got.scale, want.scale)) << device->name() << ", D " << d;
          ASSERT_TRUE(same_bits(got.product, want.product)) << device->name() << ", D " << d;
          ASSERT_TRUE(got.latent.same_bytes(want.latent)) << device->name() << ", D " << d;
          ASSERT_TRUE(got.keys.same_bytes(want.keys)) << device->name() << ", D " << d;
        }
      }
    }
  }
}

TEST(AttentionQueriesTest, IsItsTwoChains) {
  constexpr int64_t kRows = 4, kHeads = 5, kIndexHeads = 6, kHead = 192;
  for (const DType type : {DType::kBF16, DType::kF32}) {
    Random random(22);
    const Tensor x = random_tensor(random, {kRows, kHeads * kHead + kIndexHeads * kIndex}),
                 w = random_tensor(random, {kRows, kIndexHeads});
    const Table table(random, kRows);
    struct Outputs {
      Tensor rope, codes, weights, x;
    };
    const auto run = [&](TestDevice& device, int64_t begin, int64_t n, bool together) {
      Outputs out{Tensor(DType::kBF16, {n, kHeads, kRope}), Tensor(DType::kF8E4M3, {n, kIndexHeads, kIndex}),
                  Tensor(DType::kF32, {n, kIndexHeads}),
                  Tensor(DType::kF32, {n, kHeads * kHead + kIndexHeads * kIndex})};
      std::copy_n(x.view().row<float>(begin), out.x.view().n_elements(), out.x.view().data<float>());
      Args args(device);
      const View rows = args.out(out.x);
      const View rope = rows.slice_last(0, kHeads * kHead).split_last(kHeads, kHead).slice_last(128, kRope);
      const View index = rows.slice_last(kHeads * kHead, kIndexHeads * kIndex).split_last(kIndexHeads, kIndex);
      const ops::AttentionQueries a{.rotate = {.x = rope,
                                               .rotation = table.on(args, kPairings[0], begin, n),
                                               .out = type == DType::kF32 ? rope : args.out(out.rope)},
                                    .index = {.x = index,
                                              .w = args.in(w.view().slice_first(begin, n)),
                                              .factor = 0.0361f,
                                              .rotation = table.on(args, kPairings[1], begin, n),
                                              .q = args.out(out.codes),
                                              .weights = args.out(out.weights)}};
      if (together) {
        ops::attention_queries(device.ctx(), a);
      } else {
        ops::rotate_queries(device.ctx(), a.rotate);
        ops::index_queries(device.ctx(), a.index);
      }
      args.fetch();
      return out;
    };
    for (TestDevice* device : backends_under_test()) {
      for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, kRows}, {3, 1}}) {
        const Outputs want = run(*device, begin, n, false), got = run(*device, begin, n, true);
        ASSERT_TRUE(same_bits(got.rope, want.rope)) << device->name();
        ASSERT_TRUE(same_bits(got.codes, want.codes)) << device->name();
        ASSERT_TRUE(same_bits(got.weights, want.weights)) << device->name();
        ASSERT_TRUE(same_bits(got.x, want.x)) << device->name();
      }
    }
  }
}

// ---- the forms that models of all families ask for: f32 rows, other norms, other columns ----

TEST(NormRowsTest, GivesF32RowsWithAndWithoutAWeight) {
  OpContext& plain = plain_device().ctx();
  constexpr int64_t kRows = 5, kWidth = 144;
  Random random(11);
  const Tensor x = random_tensor(random, {kRows, kWidth}), residual = random_tensor(random, {kRows, kWidth}, 4),
               weight = random_tensor(random, {kWidth});
  for (const bool with_residual : {true, false}) {
    for (const bool with_weight : {true, false}) {
      const Tensor sum = copy_of(with_residual ? residual : x), want(DType::kF32, {kRows, kWidth});
      if (with_residual) ops::add_into(plain, {.x = sum, .y = x});
      const View gain = with_weight ? weight.view() : View();
      ops::rms_norm(plain, {.x = sum, .weight = gain, .eps = kEps, .out = want});
      for (TestDevice* device : backends_under_test()) {
        const Tensor got(DType::kF32, {kRows, kWidth}), stream = copy_of(residual), in_place = copy_of(x);
        Args args(*device);
        const View rows = args.out(in_place), stream_rows = with_residual ? args.out(stream) : View();
        const ops::NormRows norm{.x = rows, .residual = stream_rows, .weight = args.in(gain), .eps = kEps};
        ops::NormRows apart = norm, over = norm;
        apart.normed = args.out(got);
        over.normed = rows;
        ops::norm_rows(device->ctx(), apart);
        if (!with_residual) ops::norm_rows(device->ctx(), over);
        args.fetch();
        ASSERT_TRUE(same_bits(got, want)) << device->name();
        if (with_residual) {
          ASSERT_TRUE(same_bits(stream, sum)) << device->name();
        } else {
          ASSERT_TRUE(same_bits(in_place, want)) << device->name();
        }
      }
    }
  }
}

TEST(RotateQueriesTest, RotatesF32InPlace) {
  constexpr int64_t kRows = 4, kHeads = 5, kHead = 192;
  Random random(12);
  const Tensor x = random_tensor(random, {kRows, kHeads * kHead}), want = copy_of(x);
  const Table table(random, kRows);
  table.rotate(want.view().split_last(kHeads, kHead).slice_last(128, kRope), ops::RopePairing::kHalfSplit);
  for (TestDevice* device : backends_under_test()) {
    const Tensor got = copy_of(x);
    Args args(*device);
    const View part = args.out(got).split_last(kHeads, kHead).slice_last(128, kRope);
    ops::rotate_queries(device->ctx(),
                        {.x = part, .rotation = table.on(args, ops::RopePairing::kHalfSplit, 0, kRows), .out = part});
    args.fetch();
    ASSERT_TRUE(same_bits(got, want)) << device->name();
  }
}

TEST(WriteLatentTest, NormsTheWholeRowOrNothing) {
  constexpr int64_t kRows = 5, kWidth = kLatent + kRope;
  OpContext& plain = plain_device().ctx();
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    const LatentFormat format = key_value_format(dtype, kWidth, kRope);
    for (const bool with_norm : {true, false}) {
      Random random(13);
      const Tensor x = random_tensor(random, {kRows, kWidth}), row = copy_of(x),
                   weight = random_tensor(random, {kWidth});
      const Table table(random, kRows);
      const Slots s;
      if (with_norm) ops::rms_norm(plain, {.x = row, .weight = weight, .eps = kEps, .out = row});
      table.rotate(row.view().slice_last(kLatent, kRope).split_last(1, kRope), ops::RopePairing::kInterleaved);
      const PagedCache want(format.page_bytes(), 2, 192, 7);
      ops::append_latent(plain, {.c_kv = row.view().slice_last(0, kLatent),
                                 .k_rope = row.view().slice_last(kLatent, kRope),
                                 .seq = i32_tensor(s.seq),
                                 .slot = i32_tensor(s.slot),
                                 .format = format,
                                 .cache = want.rows()});
      expect_cache(want, format.page_bytes(), [&](OpContext& ctx, Args& args, const PagedRows& cache) {
        ops::write_latent(ctx, {.x = args.in(x),
                                .weight = with_norm ? args.in(weight) : View(),
                                .eps = kEps,
                                .rotation = table.on(args, ops::RopePairing::kInterleaved, 0, kRows),
                                .seq = args.in(i32_tensor(s.seq)),
                                .slot = args.in(i32_tensor(s.slot)),
                                .format = format,
                                .cache = cache});
      });
    }
  }
}

TEST(IndexQueriesTest, HasTheTypeOfTheKeys) {
  constexpr int64_t kRows = 4, kHeads = 6, kColumn = kIndex - kRope;
  constexpr float kFactor = 0.0361f;
  OpContext& plain = plain_device().ctx();
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const bool fp4 : {true, false}) {
      Random random(14);
      const Tensor x = random_tensor(random, {kRows, kHeads * kIndex}), w = random_tensor(random, {kRows, kHeads}),
                   values = copy_of(x);
      const Table table(random, kRows);
      const View heads = values.view().split_last(kHeads, kIndex);
      table.rotate(heads.slice_last(kColumn, kRope), ops::RopePairing::kInterleaved);
      ops::hadamard(plain, {.x = heads});
      if (fp4) ops::round_to_fp4(plain, {.x = heads.merged_first()});
      const Tensor want(type, {kRows, kHeads, kIndex}), weights(DType::kF32, {kRows, kHeads}),
          scale(DType::kF32, {kRows, kHeads});
      const View rows = want.view().merged_first();
      if (type == DType::kF32) ops::copy_rows(plain, {.x = heads.merged_first(), .out = rows});
      if (type == DType::kBF16) ops::round_to_bf16(plain, {.x = heads.merged_first(), .out = rows});
      if (type == DType::kF8E4M3) {
        const View scales = scale.view().reshaped({kRows * kHeads, 1});
        ops::quantize_fp8(plain, {.x = heads.merged_first(), .out = rows, .scale = scales});
      }
      for (int64_t i = 0; i < kRows * kHeads; ++i) {
        const float weight = w.at(i) * kFactor;
        weights.view().data<float>()[i] = type == DType::kF8E4M3 ? weight * scale.at(i) : weight;
      }
      for (TestDevice* device : backends_under_test()) {
        const Tensor got(type, {kRows, kHeads, kIndex}), got_weights(DType::kF32, {kRows, kHeads}),
            in_place = copy_of(x);
        Args args(*device);
        const ops::IndexQueries queries{.x = args.out(in_place).split_last(kHeads, kIndex),
                                        .w = args.in(w),
                                        .factor = kFactor,
                                        .rotation = table.on(args, ops::RopePairing::kInterleaved, 0, kRows),
                                        .rope_column = kColumn,
                                        .fp4 = fp4,
                                        .q = args.out(got),
                                        .weights = args.out(got_weights)};
        ops::index_queries(device->ctx(), queries);
        ops::IndexQueries over = queries;
        over.q = over.x;
        if (type == DType::kF32) ops::index_queries(device->ctx(), over);
        args.fetch();
        ASSERT_TRUE(same_bits(got, want)) << device->name() << ", " << dtype_name(type);
        ASSERT_TRUE(same_bits(got_weights, weights)) << device->name() << ", " << dtype_name(type);
        ASSERT_TRUE(same_bits(in_place, type == DType::kF32 ? values : x)) << device->name();
      }
    }
  }
}

TEST(WriteIndexKeysTest, NormsByRmsAndRotatesTheLastColumns) {
  constexpr int64_t kRows = 5, kColumn = kIndex - kRope;
  OpContext& plain = plain_device().ctx();
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    const IndexKeyFormat format = index_key_format(dtype, kIndex);
    for (const bool fp4 : {true, false}) {
      Random random(15);
      const Tensor x = random_tensor(random, {kRows, kIndex}), keys = copy_of(x),
                   weight = random_tensor(random, {kIndex});
      const Table table(random, kRows);
      const Slots s;
      ops::rms_norm(plain, {.x = keys, .weight = weight, .eps = kEps, .out = keys});
      table.rotate(keys.view().slice_last(kColumn, kRope).split_last(1, kRope), ops::RopePairing::kInterleaved);
      ops::hadamard(plain, {.x = keys.view().split_last(1, kIndex)});
      if (fp4) ops::round_to_fp4(plain, {.x = keys});
      const PagedCache want(format.page_bytes(), 2, 192, 7);
      ops::append_index_keys(
          plain,
          {.keys = keys, .seq = i32_tensor(s.seq), .slot = i32_tensor(s.slot), .format = format, .cache = want.rows()});
      expect_cache(want, format.page_bytes(), [&](OpContext& ctx, Args& args, const PagedRows& cache) {
        ops::write_index_keys(ctx, {.x = args.in(x),
                                    .weight = args.in(weight),
                                    .eps = kEps,
                                    .rotation = table.on(args, ops::RopePairing::kInterleaved, 0, kRows),
                                    .rope_column = kColumn,
                                    .fp4 = fp4,
                                    .seq = args.in(i32_tensor(s.seq)),
                                    .slot = args.in(i32_tensor(s.slot)),
                                    .format = format,
                                    .cache = cache});
      });
    }
  }
}

// Keys for which the kernel of the whole chain has no room.
TEST(WriteIndexKeysTest, TakesKeysOfAnyWidth) {
  constexpr int64_t kRows = 5;
  OpContext& plain = plain_device().ctx();
  for (const int64_t width : {4096, 4098, 8192}) {
    const IndexKeyFormat format = index_key_format(CacheDType::kBF16, width);
    Random random(16);
    const Tensor x = random_tensor(random, {kRows, width}), keys = copy_of(x), weight = random_tensor(random, {width}),
                 bias = random_tensor(random, {width});
    const Table table(random, kRows);
    const Slots s;
    ops::layer_norm(plain, {.x = keys, .weight = weight, .bias = bias, .eps = kEps, .out = keys});
    table.rotate(keys.view().slice_last(0, kRope).split_last(1, kRope), ops::RopePairing::kInterleaved);
    const PagedCache want(format.page_bytes(), 2, 192, 7);
    ops::append_index_keys(
        plain,
        {.keys = keys, .seq = i32_tensor(s.seq), .slot = i32_tensor(s.slot), .format = format, .cache = want.rows()});
    expect_cache(want, format.page_bytes(), [&](OpContext& ctx, Args& args, const PagedRows& cache) {
      ops::write_index_keys(ctx, {.x = args.in(x),
                                  .weight = args.in(weight),
                                  .bias = args.in(bias),
                                  .eps = kEps,
                                  .rotation = table.on(args, ops::RopePairing::kInterleaved, 0, kRows),
                                  .hadamard = false,
                                  .seq = args.in(i32_tensor(s.seq)),
                                  .slot = args.in(i32_tensor(s.slot)),
                                  .format = format,
                                  .cache = cache});
    });
  }
}

TEST(RowChainsDeathTest, NamesTheArgument) {
  OpContext& ctx = plain_device().ctx();
  const Tensor x(DType::kF32, {2, 32}), weight(DType::kF32, {32}), short_weight(DType::kF32, {16}),
      out(DType::kBF16, {2, 32}), codes(DType::kF8E4M3, {2, 32});
  EXPECT_DEATH(ops::norm_rows(ctx, {.x = out.view().reshaped({64}), .weight = weight}), "x is bf16 .64., expected");
  EXPECT_DEATH(ops::norm_rows(ctx, {.x = x, .weight = short_weight}), "norm_rows: weight is f32 .16.");
  EXPECT_DEATH(ops::norm_rows(ctx, {.x = x, .weight = weight, .codes = codes}), "codes are f8_e4m3 .*their scale");
  const Tensor cos(DType::kF32, {2, 8}), f32(DType::kF32, {2, 2, 16});
  const ops::Rotation rotation{.cos = cos, .sin = cos};
  EXPECT_DEATH(ops::rotate_queries(ctx, {.x = x.view().split_last(2, 16), .rotation = rotation, .out = f32}),
               "rotate_queries: out is f32 .2, 2, 16., expected bf16, or x itself");
  EXPECT_DEATH(ops::index_queries(ctx, {.x = x.view().split_last(2, 16), .rotation = rotation, .rope_column = 1}),
               "rotated from column 1");
}

}  // namespace
}  // namespace levin::testing
