// The n-gram memory's ops, the two levels of selection, and the roundings of DeepSeek-V4.1's rows.
#include "ops/engram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "ops/index_topk.h"
#include "ops/quantize.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

// ---- rows chosen by hashes ---------------------------------------------------------------------------------------

constexpr int64_t kTokens = 40;
constexpr int64_t kPad = 7;
const std::vector<int64_t> kMultipliers = {76632096046245, 4839876093313, 35959672319349};
const std::vector<int64_t> kPrimes = {101, 103, 107, 109};
const std::vector<int64_t> kOffsets = {0, 101, 204, 311};

std::vector<float> classes() {
  Random random(3);
  std::vector<float> out(kTokens);
  for (float& c : out) c = static_cast<float>(random.below(99092));
  return out;
}

// The formula, from all classes.
std::vector<int32_t> expected_rows() {
  const std::vector<float> all = classes();
  const auto seen = [&](int64_t p) { return p < 0 ? kPad : static_cast<int64_t>(all[static_cast<size_t>(p)]); };
  std::vector<int32_t> out;
  for (int64_t p = 0; p < kTokens; ++p) {
    const int64_t two = seen(p) * kMultipliers[0] ^ seen(p - 1) * kMultipliers[1];
    const int64_t three = two ^ seen(p - 2) * kMultipliers[2];
    for (size_t j = 0; j < 4; ++j)
      out.push_back(static_cast<int32_t>(kOffsets[j] + (j < 2 ? two : three) % kPrimes[j]));
  }
  return out;
}

TEST(NgramRowsTest, AreThoseOfTheLastTokensWhateverTheStepsWere) {
  const StateFormat format{.n_channels = 1, .n_tokens = 3, .n_before = 2};
  for (const int64_t n_step : {1, 2, 3, 7, 40}) {
    for (const auto& device : devices_under_test()) {
      std::vector<uint32_t> memory(static_cast<size_t>(2 * format.n_tokens),
                                   0xFFFFFFFF);  // NaN where nothing is written
      const Tensor ids = Tensor::of(std::vector<int32_t>{0}, {1});
      const StateRings rings{.rings = reinterpret_cast<std::byte*>(memory.data()),
                             .n_rows = format.n_tokens,
                             .format = format,
                             .ids = ids};
      std::vector<int32_t> found;
      for (int64_t first = 0; first < kTokens; first += n_step) {
        const int64_t n = std::min(n_step, kTokens - first);
        const std::vector<float> all = classes();
        const Tensor values = Tensor::of(std::vector<float>(all.begin() + first, all.begin() + first + n), {n, 1});
        const auto one = [](int64_t x) { return Tensor::of(std::vector<int32_t>{static_cast<int32_t>(x)}, {1}); };
        const Tensor begin = one(0), end = one(n), position = one(first), seq(DType::kI32, {n});
        const ops::WindowTokens tokens{.values = values,
                                       .gates = values,
                                       .seq = seq,
                                       .first_row = begin,
                                       .end_row = end,
                                       .first_position = position,
                                       .state = rings};
        const Tensor out(DType::kI32, {n, 4});
        ops::ngram_rows(device->ctx(),
                        {.tokens = tokens,
                         .hash = {.multipliers = kMultipliers, .primes = kPrimes, .offsets = kOffsets, .pad = kPad},
                         .out = out});
        ops::keep_state(device->ctx(), tokens);
        found.insert(found.end(), out.view().data<int32_t>(), out.view().data<int32_t>() + n * 4);
      }
      EXPECT_EQ(found, expected_rows()) << n_step;
    }
  }
}

// ---- the table ---------------------------------------------------------------------------------------------------

TEST(TableRowsTest, AreCodesTimesTheScalesOfTheirColumns) {
  constexpr int64_t kRows = 5, kColumns = 40, kBlock = 32;
  Random random(4);
  std::vector<std::byte> codes(kRows * kColumns), scales(kRows * 2);
  for (std::byte& code : codes) code = static_cast<std::byte>(random.below(0x7F));
  for (std::byte& scale : scales) scale = static_cast<std::byte>(120 + random.below(10));
  const ops::MappedTable table{
      .codes = codes.data(), .scales = scales.data(), .n_rows = kRows, .d = kColumns, .block = kBlock};
  const std::vector<int32_t> ids = {4, 0, 2, 2, 1, 3};
  const Tensor rows = Tensor::of(ids, {3, 2});
  for (const auto& device : devices_under_test()) {
    const Tensor out(DType::kF32, {3, 2 * kColumns});
    ops::read_table_soon(device->ctx(), {.table = table, .rows = rows});
    ops::table_rows(device->ctx(), {.table = table, .rows = rows, .out = out});
    for (int64_t i = 0; i < 6 * kColumns; ++i) {
      const int64_t row = ids[static_cast<size_t>(i / kColumns)], column = i % kColumns;
      const float code = e4m3_to_f32(static_cast<uint8_t>(codes[static_cast<size_t>(row * kColumns + column)]));
      const auto scale = static_cast<int>(scales[static_cast<size_t>(row * 2 + column / kBlock)]);
      ASSERT_EQ(out.at(i), std::ldexp(code, scale - 127)) << i;
    }
  }
  EXPECT_DEATH(ops::table_rows(plain_device().ctx(), {.table = table,
                                                      .rows = Tensor::of(std::vector<int32_t>{5}, {1, 1}),
                                                      .out = Tensor(DType::kF32, {1, kColumns})}),
               "row 5 of a table of 5");
}

TEST(TableRowsTest, WithoutATableTheyAreZeros) {
  const Tensor out = Tensor::of(std::vector<float>(8, 1.0f), {1, 8});
  const ops::TableRows job{
      .table = {.n_rows = 9, .d = 4, .block = 4}, .rows = Tensor::of(std::vector<int32_t>{3, 8}, {1, 2}), .out = out};
  ops::table_rows(plain_device().ctx(), job);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(out.at(i), 0);
}

// ---- the gate ----------------------------------------------------------------------------------------------------

// In double. Each sum of D products errs by at most D units of the sum of magnitudes, which for these numbers is below 3 times
// its root mean square times D: relative to the gate's argument 1e-4 is generous and far below what a wrong formula does.
TEST(GateStreamsTest, AddTheValueAsFarAsStreamAndKeyAgree) {
  constexpr int64_t kStreams = 3, kWidth = 83, kRows = 4;
  constexpr double kEps = 1e-3;
  Random random(5);
  const Tensor streams = random_tensor(random, {kRows, kStreams, kWidth});
  const Tensor kv = random_tensor(random, {kRows, (kStreams + 1) * kWidth});
  const Tensor weight = random_tensor(random, {kStreams, kWidth});
  const View keys = kv.view().slice_last(0, kStreams * kWidth).split_last(kStreams, kWidth);
  const View value = kv.view().slice_last(kStreams * kWidth, kWidth);
  std::vector<float> first_bits;
  for (const auto& device : devices_under_test()) {
    const Tensor out = Tensor::of(
        std::vector<float>(streams.view().data<float>(), streams.view().data<float>() + kRows * kStreams * kWidth),
        {kRows, kStreams, kWidth});
    ops::gate_streams(
        device->ctx(),
        {.streams = out, .keys = keys, .value = value, .weight = weight, .eps = static_cast<float>(kEps)});
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t k = 0; k < kStreams; ++k) {
        const float *r = streams.view().row<float>(t) + k * kWidth, *key = keys.row<float>(t) + k * kWidth,
                    *w = weight.view().row<float>(k);
        double dot = 0, squares = 0, key_squares = 0;
        for (int64_t i = 0; i < kWidth; ++i) {
          dot += double{r[i]} * w[i] * key[i];
          squares += double{r[i]} * r[i];
          key_squares += double{key[i]} * key[i];
        }
        const double score = dot / std::sqrt(squares / kWidth + kEps) / std::sqrt(key_squares / kWidth + kEps) /
                             std::sqrt(static_cast<double>(kWidth));
        const double gate = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(score), 1e-6)), score)));
        for (int64_t i = 0; i < kWidth; ++i) {
          ASSERT_NEAR(out.view().row<float>(t)[k * kWidth + i], r[i] + gate * value.row<float>(t)[i], 1e-4) << t << k;
        }
      }
    }
    const std::vector<float> bits(out.view().data<float>(), out.view().data<float>() + kRows * kStreams * kWidth);
    if (first_bits.empty()) first_bits = bits;
    EXPECT_EQ(bits, first_bits) << device->name();
  }
}

// ---- two levels of selection -------------------------------------------------------------------------------------

constexpr float kNever = -std::numeric_limits<float>::infinity();

TEST(SelectBlocksTest, TakesTheBestBlocksAndAlwaysTheNewest) {
  //                                block 0      1            2            3            4 (one slot)
  const std::vector<float> score = {1, 9, 1, 2, 2, 2, 8, 8, 8, 3, 3, 3, 0, 99, 99};
  const Tensor scores = Tensor::of(score, {1, 15}), end = Tensor::of(std::vector<int32_t>{13}, {1});
  const auto blocks_of = [&](int64_t n, int32_t visible) {
    const Tensor blocks(DType::kI32, {1, n});
    ops::select_blocks(
        plain_device().ctx(),
        {.score = scores, .end = Tensor::of(std::vector<int32_t>{visible}, {1}), .block = 3, .blocks = blocks});
    return std::vector<int32_t>(blocks.view().data<int32_t>(), blocks.view().data<int32_t>() + n);
  };
  EXPECT_EQ(blocks_of(3, 13), (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(blocks_of(1, 13), (std::vector<int32_t>{4}));
  EXPECT_EQ(blocks_of(6, 13), (std::vector<int32_t>{0, 1, 2, 3, 4, -1}));
  EXPECT_EQ(blocks_of(2, 6), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(blocks_of(2, 0), (std::vector<int32_t>{-1, -1}));
}

TEST(KeepBlocksTest, NothingOutsideThemIsSelected) {
  const Tensor score = Tensor::of(std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {1, 12});
  const Tensor end = Tensor::of(std::vector<int32_t>{10}, {1}), topk(DType::kI32, {1, 4});
  ops::keep_blocks(
      plain_device().ctx(),
      {.blocks = Tensor::of(std::vector<int32_t>{0, 3, -1}, {1, 3}), .block = 3, .end = end, .score = score});
  EXPECT_EQ(std::vector<float>(score.view().data<float>(), score.view().data<float>() + 12),
            (std::vector<float>{0, 1, 2, kNever, kNever, kNever, kNever, kNever, kNever, 9, 10, 11}));
  ops::select_topk(plain_device().ctx(), {.score = score, .begin = {}, .end = end, .topk = topk});
  EXPECT_EQ(std::vector<int32_t>(topk.view().data<int32_t>(), topk.view().data<int32_t>() + 4),
            (std::vector<int32_t>{0, 1, 2, 9}));
}

// ---- roundings ---------------------------------------------------------------------------------------------------

TEST(RoundToFp8Test, GivesEveryGroupItsOwnPowerOfTwo) {
  std::vector<float> x(70);
  Random random(6);
  for (size_t i = 0; i < x.size(); ++i) x[i] = random.normal() * (i < 32 ? 1.0f : i < 64 ? 1000.0f : 0.001f);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Tensor in = Tensor::of(x, {1, 70}), out(type, {1, 70});
    ops::round_to_fp8(plain_device().ctx(), {.x = in, .group = 32, .out = out});
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t begin = i / 32 * 32, end = std::min(x.size(), begin + 32);
      float amax = 1e-4f;
      for (size_t j = begin; j < end; ++j) amax = std::max(amax, std::fabs(x[j]));
      const float scale = std::exp2(std::ceil(std::log2(amax / 448)));
      const float expected = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
      ASSERT_EQ(type == DType::kF32 ? out.at(static_cast<int64_t>(i)) : bf16_to_f32(out.view().data<uint16_t>()[i]),
                expected)
          << i;
    }
  }
}

// The largest value of a group, a sixth of which e4m3 holds, stays; 0.3 of it is between 1.5 and 2 sixths of it.
TEST(RoundToNvfp4Test, HasScalesInE4m3) {
  std::vector<float> x(20, 0.0f);
  x[0] = 6 * 1.125f, x[1] = -1.8f * 1.125f, x[2] = 0.2f * 1.125f;
  x[16] = 1e-9f;  // e4m3's smallest number is the scale at least
  const Tensor out = Tensor::of(x, {1, 20});
  ops::round_to_nvfp4(plain_device().ctx(), {.x = out});
  EXPECT_EQ(out.at(0), 6 * 1.125f);
  EXPECT_EQ(out.at(1), -2 * 1.125f);
  EXPECT_EQ(out.at(2), 0);
  EXPECT_EQ(out.at(16), 0);
  x[0] = 6 * 1.1f;  // not a scale of e4m3: 1.125 is
  const Tensor rounded = Tensor::of(x, {1, 20});
  ops::round_to_nvfp4(plain_device().ctx(), {.x = rounded});
  EXPECT_EQ(rounded.at(0), 6 * 1.125f);
}

}  // namespace
}  // namespace levin::testing
