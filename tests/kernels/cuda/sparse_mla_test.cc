// Sparse attention on the device: against double; whole rows against rows in parts, rows in any batch, positions
// against slots, bit for bit.
#include "kernels/cuda/sparse_mla/sparse_mla.h"

#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "mla_problem.h"

namespace levin::cuda {
namespace {

// All but kAuto; first the one that others are compared with.
constexpr MlaSplit kSplits[] = {MlaSplit::kWholeRows,  MlaSplit::kAllHeads,   MlaSplit::kAllHeadsParts,
                                MlaSplit::kClusters,   MlaSplit::kPairs,      MlaSplit::kEightBlocks,
                                MlaSplit::kFourBlocks, MlaSplit::kEightApart, MlaSplit::kEightApartAllHeads};

class SparseMlaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

// A weight is rounded to bf16, 2^-9 of it; scores and sums in f32 add less than as much again.
void expect_close(const MlaProblem& p, const std::vector<float>& out, int head_step) {
  double worst = 0;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    for (int head = 0; head < p.n_heads; head += head_step) {
      const MlaProblem::Exact e = p.exact(row, head);
      for (int d = 0; d < 512; ++d) {
        const double got = out[(row * p.n_heads + head) * 512 + d];
        if (e.magnitude[d] > 0) worst = std::max(worst, std::fabs(got - e.out[d]) / e.magnitude[d]);
        ASSERT_LE(std::fabs(got - e.out[d]), 0x1p-8 * e.magnitude[d])
            << "row " << row << " head " << head << " column " << d << ": " << got << " for " << e.out[d];
      }
    }
  }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (const float v : values) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

void expect_same_bits_in_all_forms(const MlaOnDevice& d, const std::vector<uint32_t>& whole) {
  for (const MlaSplit split : kSplits) EXPECT_EQ(bits(d.run(split)), whole) << "form " << static_cast<int>(split);
}

TEST_F(SparseMlaTest, IsTheSumInDouble) {
  for (const LatentRows format : {LatentRows::kFp8, LatentRows::kBF16}) {
    for (const auto& [n_heads, n_topk] : std::vector<std::pair<int, int>>{
             {1, 64}, {16, 128}, {64, 192}, {65, 512}, {128, 576}, {7, 1024}, {128, 2048}}) {
      SCOPED_TRACE(std::to_string(n_heads) + " heads, " + std::to_string(n_topk) + " top-k indices, format " +
                   std::to_string(static_cast<int>(format)));
      const MlaProblem p({.n_rows = 2,
                          .n_heads = n_heads,
                          .n_topk = n_topk,
                          .format = format,
                          .seed = static_cast<uint64_t>(n_heads + n_topk)});
      const MlaOnDevice d(*stream_, p);
      const std::vector<float> whole = d.run(MlaSplit::kWholeRows);
      expect_close(p, whole, n_heads > 16 ? 31 : 5);
      expect_same_bits_in_all_forms(d, bits(whole));
    }
  }
}

TEST_F(SparseMlaTest, RowsWithFewPicks) {
  const std::vector<int> n_valid = {0, 1, 63, 64, 65, 127, 511, 512, 513, 576, 1023, 1500, 2047, 2048};
  for (const int n_heads : {20, 70}) {
    const MlaProblem p(
        {.n_rows = static_cast<int64_t>(n_valid.size()), .n_heads = n_heads, .n_valid = n_valid, .seed = 3});
    const MlaOnDevice d(*stream_, p);
    const std::vector<float> whole = d.run(MlaSplit::kWholeRows);
    expect_close(p, whole, n_heads > 64 ? 67 : 13);
    SCOPED_TRACE(std::to_string(n_heads) + " heads");
    expect_same_bits_in_all_forms(d, bits(whole));
  }
}

// Scores that rise by hundreds of powers of two from tile to tile, and fall.
TEST_F(SparseMlaTest, LargeScores) {
  for (const float spread : {8.0f, 60.0f, 400.0f}) {
    const MlaProblem p({.n_rows = 3, .n_heads = 96, .spread = spread, .seed = 4});
    const MlaOnDevice d(*stream_, p);
    const std::vector<float> whole = d.run(MlaSplit::kWholeRows);
    for (const float v : whole) ASSERT_TRUE(std::isfinite(v));
    if (spread < 10) expect_close(p, whole, 31);
    SCOPED_TRACE("spread " + std::to_string(spread));
    expect_same_bits_in_all_forms(d, bits(whole));
  }
}

// Values so small or large that products of a weight and a value leave the range of normal numbers, and those at the edge of
// what forms for few rows bring to the maximum of a part at once.
TEST_F(SparseMlaTest, ScalesOfAnySize) {
  for (const auto& [least_scale, spread] : std::vector<std::pair<int, float>>{
           {-130, 1}, {-100, 1}, {-100, 60}, {-60, 30}, {-29, 1}, {-29, 30}, {-29, 100}, {-20, 30}, {2, 1}}) {
    SCOPED_TRACE("scales from 2^" + std::to_string(least_scale) + ", spread " + std::to_string(spread));
    const MlaProblem p({.n_rows = 2, .n_heads = 80, .spread = spread, .least_scale = least_scale, .seed = 14});
    const MlaOnDevice d(*stream_, p);
    const std::vector<uint32_t> whole = bits(d.run(MlaSplit::kWholeRows));
    expect_same_bits_in_all_forms(d, whole);
  }
}

TEST_F(SparseMlaTest, WholeRowsAndPartsGiveTheSameBits) {
  for (const LatentRows format : {LatentRows::kFp8, LatentRows::kBF16}) {
    for (const int n_topk : {512, 576, 1024, 1088, 1536, 2048}) {
      const MlaProblem p(
          {.n_rows = 5, .n_heads = 128, .n_topk = n_topk, .format = format, .seed = static_cast<uint64_t>(n_topk)});
      const MlaOnDevice d(*stream_, p);
      const std::vector<uint32_t> whole = bits(d.run(MlaSplit::kWholeRows));
      SCOPED_TRACE(std::to_string(n_topk));
      expect_same_bits_in_all_forms(d, whole);
    }
  }
}

TEST_F(SparseMlaTest, ARowHasTheSameBitsInAnyBatch) {
  const MlaProblem p({.n_rows = 140, .n_heads = 128, .seed = 6});
  const MlaOnDevice d(*stream_, p);
  const std::vector<uint32_t> all = bits(d.run(MlaSplit::kAuto));
  const int64_t row_values = int64_t{p.n_heads} * 512;
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {77, 1}, {139, 1}, {3, 2}, {10, 8}, {70, 15}, {50, 33}}) {
    const DeviceArray<float> out(*stream_, count * row_values);
    SparseMla a = d.args(out.data(), true);
    a.q_latent = static_cast<const uint16_t*>(a.q_latent) + first * row_values;
    a.q_rope = static_cast<const uint16_t*>(a.q_rope) + first * p.n_heads * 64;
    a.topk += first * p.n_topk;
    a.n_rows = count;
    sparse_mla(a, stream_->handle());
    EXPECT_EQ(bits(out.host()),
              std::vector<uint32_t>(all.begin() + first * row_values, all.begin() + (first + count) * row_values))
        << first << ", " << count;
  }
}

// More rows than the device has SMs, so that blocks go from row to row, with any number of tiles in each.
TEST_F(SparseMlaTest, RaggedRowsOneAfterAnother) {
  constexpr int kRows = 700;
  for (const auto& [format, n_heads] :
       std::vector<std::pair<LatentRows, int>>{{LatentRows::kFp8, 8}, {LatentRows::kFp8, 66}, {LatentRows::kBF16, 8}}) {
    std::vector<int> n_valid;
    uint32_t state = 1;
    for (int row = 0; row < kRows; ++row) {
      state = state * 1664525u + 1013904223u;
      n_valid.push_back(row % 5 == 0 ? static_cast<int>(state >> 30) : static_cast<int>(state >> 8) % 1089);
    }
    const MlaProblem p(
        {.n_rows = kRows, .n_heads = n_heads, .n_topk = 1088, .format = format, .n_valid = n_valid, .seed = 10});
    const MlaOnDevice d(*stream_, p);
    const std::vector<uint32_t> whole = bits(d.run(MlaSplit::kWholeRows));
    SCOPED_TRACE(std::to_string(n_heads) + " heads");
    expect_same_bits_in_all_forms(d, whole);
  }
}

// The row between is padding: no row of the tables is its own.
TEST_F(SparseMlaTest, PositionsThroughATableEqualSlots) {
  constexpr int kHeads = 80;
  const MlaProblem p({.n_rows = 3, .n_heads = kHeads, .n_topk = 1600, .seed = 7});
  const MlaOnDevice d(*stream_, p);
  std::vector<int32_t> table(3 * 128, 0x1FFFFFF);  // of rows -1, 0 and 1, in which position page 127 - i is page i
  for (int i = 0; i < 128; ++i) table[2 * 128 + i] = 127 - i;
  std::vector<int32_t> positions = p.topk, slots = p.topk;
  for (int32_t& slot : slots) slot = (127 - slot / 64) * 64 + slot % 64;
  std::fill_n(&slots[static_cast<size_t>(p.n_topk)], p.n_topk, -1);
  const DeviceArray<int32_t> table_device(*stream_, table), positions_device(*stream_, positions),
      slots_device(*stream_, slots), rows(*stream_, std::vector<int32_t>{1, -1, 1});
  const DeviceArray<float> by_slot(*stream_, 3 * kHeads * 512), by_position(*stream_, 3 * kHeads * 512);
  for (const MlaSplit split : kSplits) {
    SparseMla a = d.args(by_slot.data(), true);
    a.topk = slots_device.data();
    sparse_mla(a, stream_->handle(), split);
    a.out = by_position.data();
    a.topk = positions_device.data();
    a.tables = {.data = table_device.data() + 128, .stride = 128};
    a.table_row = rows.data();
    sparse_mla(a, stream_->handle(), split);
    EXPECT_EQ(bits(by_position.host()), bits(by_slot.host()));
  }
}

TEST_F(SparseMlaTest, BF16OutputIsTheRoundedOne) {
  for (const int n_heads : {33, 97}) {
    const MlaProblem p({.n_rows = 2, .n_heads = n_heads, .n_topk = 1664, .seed = 8});
    const MlaOnDevice d(*stream_, p);
    for (const MlaSplit split : kSplits) {
      const std::vector<float> exact = d.run(split);
      const DeviceArray<uint16_t> out(*stream_, static_cast<int64_t>(exact.size()));
      sparse_mla(d.args(out.data(), false), stream_->handle(), split);
      const std::vector<uint16_t> rounded = out.host();
      for (size_t i = 0; i < exact.size(); ++i) ASSERT_EQ(rounded[i], f32_to_bf16(exact[i])) << i;
    }
  }
}

// Rows of a few requests by position, in FP8 and converted: pages in any order, entries after a request's last page that must
// not be read, any number of top-k indices, scores of any spread.
class ConvertedRowsTest : public SparseMlaTest {
 protected:
  static constexpr int kPages = static_cast<int>(MlaProblem::kSlots / 64), kStride = 160, kTables = 3;

  // Row r belongs to request r % 2, whose pages are those of the cache from the back or from the front, and to table row 2
  // or 0; table row 1 is nobody's.
  void expect_bits_of_fp8_rows(const MlaProblem& p) {
    const MlaOnDevice d(*stream_, p);
    std::vector<int32_t> table(kTables * kStride, 0x3FFFFFFF), rows;
    for (int i = 0; i < kPages; ++i) {
      table[i] = i;
      table[2 * kStride + i] = kPages - 1 - i;
    }
    for (int64_t row = 0; row < p.n_rows; ++row) rows.push_back(row % 2 == 0 ? 2 : 0);
    const DeviceArray<int32_t> table_device(*stream_, table), rows_device(*stream_, rows);
    const int64_t n = p.n_rows * p.n_heads * 512;
    const DeviceArray<float> expected(*stream_, n), out(*stream_, n);
    SparseMla a = d.args(expected.data(), true);
    a.tables = {.data = table_device.data(), .stride = kStride};
    a.table_row = rows_device.data();
    sparse_mla(a, stream_->handle(), MlaSplit::kWholeRows);
    const std::vector<uint32_t> whole = bits(expected.host());
    const DeviceArray<uint8_t> workspace(*stream_, converted_latent_bytes(a.tables, kTables));
    workspace.fill(0xFF);
    SparseMla converted =
        convert_latent_rows(a, kTables, reinterpret_cast<std::byte*>(workspace.data()), stream_->handle());
    converted.out = out.data();
    out.fill(0xFF);
    sparse_mla(converted, stream_->handle());
    EXPECT_EQ(bits(out.host()), whole);
    const DeviceArray<uint16_t> rounded(*stream_, n);
    converted.out = rounded.data();
    converted.out_f32 = false;
    sparse_mla(converted, stream_->handle());
    const std::vector<uint16_t> got = rounded.host();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], f32_to_bf16(std::bit_cast<float>(whole[i]))) << i;
  }
};

TEST_F(ConvertedRowsTest, HaveTheBitsOfFp8Rows) {
  for (const auto& [n_heads, n_topk] : std::vector<std::pair<int, int>>{
           {1, 64}, {16, 128}, {64, 192}, {65, 512}, {128, 1024}, {128, 1088}, {7, 1152}, {128, 2048}}) {
    SCOPED_TRACE(std::to_string(n_heads) + " heads, " + std::to_string(n_topk) + " top-k indices");
    expect_bits_of_fp8_rows(
        MlaProblem({.n_rows = 5, .n_heads = n_heads, .n_topk = n_topk, .seed = static_cast<uint64_t>(n_topk)}));
  }
}

TEST_F(ConvertedRowsTest, RaggedRowsOneAfterAnother) {
  std::vector<int> n_valid = {0,   1,    63,   64,   65,   127,  511,  512,  513,
                              576, 1023, 1024, 1025, 1088, 1089, 1500, 2047, 2048};
  uint32_t state = 1;
  while (n_valid.size() < 400) {
    state = state * 1664525u + 1013904223u;
    n_valid.push_back(n_valid.size() % 5 == 0 ? static_cast<int>(state >> 30) : static_cast<int>(state >> 8) % 2049);
  }
  for (const int n_heads : {20, 70})
    expect_bits_of_fp8_rows(MlaProblem(
        {.n_rows = static_cast<int64_t>(n_valid.size()), .n_heads = n_heads, .n_valid = n_valid, .seed = 12}));
}

// Scores that rise by hundreds of powers of two from tile to tile, and fall.
TEST_F(ConvertedRowsTest, LargeScores) {
  for (const float spread : {8.0f, 60.0f, 400.0f})
    expect_bits_of_fp8_rows(MlaProblem({.n_rows = 3, .n_heads = 96, .spread = spread, .seed = 4}));
}

TEST_F(ConvertedRowsTest, FullRowsOneAfterAnother) {
  expect_bits_of_fp8_rows(MlaProblem({.n_rows = 300, .n_heads = 128, .seed = 13}));
}

// Slots of rows that nobody selected hold NaN codes; a repeated run must not change a bit.
TEST_F(SparseMlaTest, RepeatsItself) {
  const MlaProblem p({.n_rows = 40, .n_heads = 128, .seed = 9});
  const MlaOnDevice d(*stream_, p);
  const std::vector<uint32_t> first = bits(d.run(MlaSplit::kWholeRows));
  for (int i = 0; i < 3; ++i)
    for (const MlaSplit split : kSplits) ASSERT_EQ(bits(d.run(split)), first);
}

// Little enough for racecheck to follow a form within a minute.
class SparseMlaFormTest : public SparseMlaTest, public ::testing::WithParamInterface<MlaSplit> {};

TEST_P(SparseMlaFormTest, ARowOfTwoParts) {
  for (const LatentRows format : {LatentRows::kFp8, LatentRows::kBF16}) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
    const MlaProblem p({.n_rows = 1, .n_heads = 66, .n_topk = 1088, .format = format, .seed = 16});
    const MlaOnDevice d(*stream_, p);
    EXPECT_EQ(bits(d.run(GetParam())), bits(d.run(MlaSplit::kWholeRows)));
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SparseMlaFormTest, ::testing::ValuesIn(kSplits));

// Blocks of some forms wait for each other: launches on two streams must not keep each other's blocks off the device.
TEST_F(SparseMlaTest, TwoStreamsAtTheSameTime) {
  const Stream other = must(Stream::create());
  const MlaProblem p({.n_rows = 8, .n_heads = 128, .seed = 15});
  const MlaOnDevice d(*stream_, p), e(other, p);
  const std::vector<uint32_t> whole = bits(d.run(MlaSplit::kWholeRows));
  const int64_t n = p.n_rows * p.n_heads * 512;
  const DeviceArray<float> out(*stream_, n), other_out(other, n);
  for (const MlaSplit split : kSplits) {
    out.fill(0xFF);
    other_out.fill(0xFF);
    for (int i = 0; i < 200; ++i) {
      sparse_mla(d.args(out.data(), true), stream_->handle(), split);
      sparse_mla(e.args(other_out.data(), true), other.handle(), split);
    }
    EXPECT_EQ(bits(out.host()), whole) << static_cast<int>(split);
    EXPECT_EQ(bits(other_out.host()), whole) << static_cast<int>(split);
  }
}

TEST(ConversionTest, IsForManyRowsOfFewTokens) {
  const int32_t table = 0;
  const auto worth = [&](int64_t n_rows, int64_t pages, int64_t n_tables) {
    return is_worth_converting({.tables = {.data = &table, .stride = pages}, .n_rows = n_rows}, n_tables);
  };
  EXPECT_TRUE(worth(4096, 1024, 1));
  EXPECT_TRUE(worth(512, 16, 32));
  EXPECT_FALSE(worth(511, 16, 1));     // decode
  EXPECT_FALSE(worth(4096, 1024, 5));  // 80 tokens a row
  EXPECT_FALSE(is_worth_converting({.n_rows = 4096}, 1)) << "slots are not converted";
}

TEST(SparseMlaSupportTest, RefusesOtherShapesByName) {
  EXPECT_EQ(sparse_mla_support({.n_heads = 128, .n_topk = 2048}), "");
  EXPECT_EQ(sparse_mla_support({.n_heads = 1, .n_topk = 64}), "");
  EXPECT_NE(sparse_mla_support({.n_heads = 129, .n_topk = 2048}).find("129"), std::string::npos);
  EXPECT_NE(sparse_mla_support({.n_heads = 64, .d_latent = 448, .n_topk = 2048}).find("448"), std::string::npos);
  EXPECT_NE(sparse_mla_support({.n_heads = 64, .n_topk = 100}).find("100"), std::string::npos);
}

}  // namespace
}  // namespace levin::cuda
