// Index scores on the device: against double, native tokens against one at a time, any schedule, any layout of lengths,
// padding.
#include "kernels/cuda/index/index_scores.h"

#include <gtest/gtest.h>

#include <bit>
#include <climits>
#include <string>
#include <vector>

#include "index_problem.h"

namespace levin::cuda {
namespace {

class IndexScoresTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

std::vector<int32_t> random_lengths(int n_requests, int n_tokens, int longest, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> lengths;
  for (int b = 0; b < n_requests; ++b) {
    const int32_t last = static_cast<int32_t>(generator() % static_cast<uint64_t>(longest)) + 1;
    for (int t = 0; t < n_tokens; ++t) lengths.push_back(std::max(0, last - (n_tokens - 1 - t)));
  }
  return lengths;
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (const float v : values) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

// The unit sums 32 products with about 13 bits below the largest of them; a bound on that, over all heads, is 2^-9 of
// the magnitude.
void expect_close(const IndexProblem& p, const std::vector<float>& score, int64_t stride, int64_t step) {
  double worst = 0;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    for (int64_t s = 0; s < stride; ++s) {
      const float got = score[row * stride + s];
      if (s >= p.length(row)) {
        ASSERT_EQ(std::bit_cast<uint32_t>(got), 0xFFFFFFFFu)
            << "row " << row << " wrote key " << s << " of " << p.length(row);
      } else if ((row * stride + s) % step == 0) {
        const IndexProblem::Exact e = p.exact(row, s);
        worst = std::max(worst, std::fabs(got - e.score) / e.magnitude);
        ASSERT_LE(std::fabs(got - e.score), 0x1p-9 * e.magnitude)
            << "row " << row << " key " << s << ": " << got << " for " << e.score;
      }
    }
  }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_F(IndexScoresTest, AreTheSumsInDouble) {
  for (const int n_heads : {16, 32, 64}) {
    for (int n_tokens = 1; n_tokens <= 8; ++n_tokens) {
      SCOPED_TRACE("heads " + std::to_string(n_heads) + " tokens " + std::to_string(n_tokens));
      const IndexProblem p({.n_heads = n_heads,
                            .n_tokens = n_tokens,
                            .lengths = random_lengths(5, n_tokens, 700, 10 + n_tokens),
                            .seed = static_cast<uint64_t>(n_heads + n_tokens)});
      IndexOnDevice d(*stream_, p);
      expect_close(p, d.scores(), d.score_stride(), 7);
      EXPECT_EQ(d.fault(), 0u);
    }
  }
}

// Each row as a request of its own: block tables repeated, one token each.
IndexProblem flattened(const IndexProblem& p) {
  IndexProblem flat = p;
  flat.n_requests = static_cast<int>(p.n_rows);
  flat.n_tokens = 1;
  flat.tables.clear();
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const auto begin = p.tables.begin() + row / p.n_tokens * p.table_width;
    flat.tables.insert(flat.tables.end(), begin, begin + p.table_width);
  }
  return flat;
}

TEST_F(IndexScoresTest, TokensOfARequestTogetherEqualEachAlone) {
  for (const int n_heads : {16, 32, 64}) {
    for (int n_tokens = 2; n_tokens <= 8; ++n_tokens) {
      const IndexProblem p({.n_heads = n_heads,
                            .n_tokens = n_tokens,
                            .lengths = random_lengths(9, n_tokens, 3000, 100 + n_tokens),
                            .seed = 5});
      const IndexProblem flat = flattened(p);
      IndexOnDevice native(*stream_, p), alone(*stream_, flat);
      EXPECT_EQ(bits(native.scores()), bits(alone.scores())) << n_heads << " heads, " << n_tokens << " tokens";
    }
  }
}

// Rows whose sequences have any number of rows next to each other, cut into requests by the plan.
TEST_F(IndexScoresTest, RowsOfSequencesTogetherEqualEachAlone) {
  const std::vector<int> rows_of_sequence = {1, 3, 8, 2, 17, 1, 1, 5, 1100, 4, 30, 9};
  std::vector<int32_t> lengths, sequence;
  for (size_t s = 0; s < rows_of_sequence.size(); ++s) {
    for (int i = 0; i < rows_of_sequence[s]; ++i) {
      lengths.push_back(s == 5 ? 0 : 40 * static_cast<int32_t>(s) + i);
      sequence.push_back(static_cast<int32_t>(s));
    }
  }
  for (const int n_heads : {16, 32, 64}) {
    const IndexProblem p({.n_heads = n_heads, .n_tokens = 1, .lengths = lengths, .seed = 31});
    IndexProblem alone = p;       // a row has the block table of its sequence, which is that of the last row
    std::vector<int32_t> tables;  // of sequences
    for (size_t row = 0; row < lengths.size(); ++row) {
      const bool is_last = row + 1 == lengths.size() || sequence[row + 1] != sequence[row];
      const auto of_row = p.tables.begin() + static_cast<int64_t>(row) * p.table_width;
      if (is_last) tables.insert(tables.end(), of_row, of_row + p.table_width);
    }
    for (size_t row = 0; row < lengths.size(); ++row) {
      std::copy_n(tables.begin() + sequence[row] * p.table_width, p.table_width,
                  alone.tables.begin() + static_cast<int64_t>(row) * p.table_width);
    }
    IndexOnDevice expected(*stream_, alone);
    const std::vector<float> score_alone = expected.scores(132, true);
    const std::vector<uint32_t> bits_alone = bits(score_alone), counts_alone = expected.histogram().host();
    const DeviceArray<int32_t> device_sequence(*stream_, sequence), device_tables(*stream_, tables);
    for (int n_tokens = 1; n_tokens <= 8; ++n_tokens) {
      SCOPED_TRACE(std::to_string(n_heads) + " heads, " + std::to_string(n_tokens) + " tokens");
      IndexOnDevice d(*stream_, alone);
      const IndexShape shape{static_cast<int>(p.n_rows), n_tokens, 132, p.max_length};
      const DeviceArray<uint8_t> memory(*stream_, index_plan_bytes(shape));
      const RowLengths dense{d.device_lengths().data(), n_tokens, 1};
      const IndexPlan plan = build_index_plan({.lengths = dense,
                                               .sequence = device_sequence.data(),
                                               .n_rows = p.n_rows,
                                               .shape = shape,
                                               .memory = reinterpret_cast<std::byte*>(memory.data())},
                                              stream_->handle());
      const DeviceArray<float> score(*stream_, p.n_rows * d.score_stride());
      score.fill(0xFF);
      IndexScoreInputs in = d.inputs();
      in.lengths = dense;
      in.tables.data = device_tables.data();
      index_scores({.in = in,
                    .score = score.data(),
                    .score_stride = d.score_stride(),
                    .histogram = d.histogram().data(),
                    .fault = plan.fault()},
                   plan, shape, stream_->handle());
      EXPECT_EQ(bits(score.host()), bits_alone);
      EXPECT_EQ(d.histogram().host(), counts_alone);
    }
  }
}

TEST_F(IndexScoresTest, AnyNumberOfBlocksGivesTheSameBits) {
  const IndexProblem p({.n_heads = 64, .n_tokens = 2, .lengths = random_lengths(13, 2, 2000, 3), .seed = 3});
  IndexOnDevice d(*stream_, p);
  const std::vector<uint32_t> expected = bits(d.scores(132));
  for (const int n_blocks : {1, 2, 7, 66, 264, 1000})
    EXPECT_EQ(bits(d.scores(n_blocks)), expected) << n_blocks << " blocks";
}

TEST_F(IndexScoresTest, LengthsInAnyLayoutGiveTheSameBits) {
  const std::vector<int32_t> lengths = random_lengths(6, 2, 900, 4);
  const IndexProblem p({.n_heads = 32, .n_tokens = 2, .lengths = lengths, .seed = 4});
  IndexOnDevice d(*stream_, p);
  const std::vector<uint32_t> expected = bits(d.scores());
  std::vector<int32_t> wide(6 * 10, INT_MIN), column_major(12);
  for (int b = 0; b < 6; ++b) {
    for (int t = 0; t < 2; ++t) wide[b * 10 + t * 3] = column_major[t * 6 + b] = lengths[b * 2 + t];
  }
  const DeviceArray<int32_t> wide_device(*stream_, wide), column_device(*stream_, column_major);
  for (const RowLengths& layout : {RowLengths{wide_device.data(), 10, 3}, RowLengths{column_device.data(), 1, 6}}) {
    const DeviceArray<float> score(*stream_, p.n_rows * d.score_stride());
    score.fill(0xFF);
    const DeviceArray<uint8_t> memory(*stream_, index_plan_bytes(d.shape()));
    const IndexPlan plan = build_index_plan({.lengths = layout,
                                             .n_rows = p.n_rows,
                                             .shape = d.shape(),
                                             .memory = reinterpret_cast<std::byte*>(memory.data())},
                                            stream_->handle());
    IndexScoreInputs in = d.inputs();
    in.lengths = layout;
    index_scores({.in = in, .score = score.data(), .score_stride = d.score_stride()}, plan, d.shape(),
                 stream_->handle());
    EXPECT_EQ(bits(score.host()), expected);
  }
}

TEST_F(IndexScoresTest, PaddingIsNeverTouched) {
  const std::vector<int32_t> lengths = {0, 0, 65, 66,  -1, -7, INT_MIN,
                                        0, 0, 1,  128, 0,  0,  0};  // rows of length 0 inside requests too
  const IndexProblem p({.n_heads = 64, .n_tokens = 2, .lengths = lengths, .seed = 6});
  IndexOnDevice d(*stream_, p);
  expect_close(p, d.scores(), d.score_stride(), 1);
  const IndexProblem none({.n_heads = 64, .n_tokens = 4, .lengths = std::vector<int32_t>(8, 0), .seed = 6});
  IndexOnDevice nothing(*stream_, none);
  expect_close(none, nothing.scores(), nothing.score_stride(), 1);
}

TEST_F(IndexScoresTest, LengthsBeyondTheTableAreCut) {
  const IndexProblem p({.n_heads = 32, .n_tokens = 1, .lengths = {INT_MAX, 100}, .seed = 8, .max_length = 256});
  IndexOnDevice d(*stream_, p);
  expect_close(p, d.scores(), d.score_stride(), 1);
}

// Bins as tiles/score_key.cuh has them.
uint32_t bin_of(float score) {
  const uint32_t word = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t key = word ^ (word >> 31 ? 0xFFFFFFFFu : 0x80000000u);
  return (key >> 24) + static_cast<uint32_t>(std::clamp(static_cast<int>(key >> 18) - 178 * 64, 0, 28 * 64));
}

TEST_F(IndexScoresTest, CountsScoresOfEveryRowInBins) {
  const IndexProblem p({.n_heads = 64, .n_tokens = 3, .lengths = random_lengths(7, 3, 1500, 12), .seed = 12});
  IndexOnDevice d(*stream_, p);
  const std::vector<float> score = d.scores(132, true);
  std::vector<uint32_t> expected(static_cast<size_t>(p.n_rows) * 2048);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    for (int64_t s = 0; s < p.length(row); ++s) ++expected[row * 2048 + bin_of(score[row * d.score_stride() + s])];
  }
  EXPECT_EQ(d.histogram().host(), expected);
}

TEST_F(IndexScoresTest, ManyRequestsAndFewPages) {
  std::vector<int32_t> lengths = random_lengths(3000, 1, 130, 20);
  for (size_t i = 0; i < lengths.size(); i += 3) lengths[i] = 0;
  const IndexProblem p({.n_heads = 16, .n_tokens = 1, .lengths = lengths, .seed = 20});
  IndexOnDevice d(*stream_, p);
  expect_close(p, d.scores(), d.score_stride(), 11);
}

TEST_F(IndexScoresTest, NaNIsReported) {
  IndexProblem p({.n_heads = 64, .n_tokens = 1, .lengths = {100}, .seed = 9});
  p.w[5] = std::nanf("");
  IndexOnDevice d(*stream_, p);
  d.scores(132, true);
  EXPECT_EQ(d.fault(), 1u);
}

// Slots are columns or rows of the products' accumulators; the relu of each must keep a NaN.
TEST_F(IndexScoresTest, NaNOfAKeyIsReportedInEverySlot) {
  constexpr uint8_t kNaN = 0x7F;
  for (const int n_heads : {16, 32, 64}) {
    const IndexProblem whole({.n_heads = n_heads, .n_tokens = 2, .lengths = {64, 64}, .seed = 30});
    for (int slot = 0; slot < 64; ++slot) {
      IndexProblem p = whole;
      p.pages[int64_t{p.tables[0]} * kTestPageBytes + slot * 128 + slot] = kNaN;
      IndexOnDevice d(*stream_, p);
      const std::vector<float> score = d.scores();
      EXPECT_TRUE(std::isnan(score[slot]) && std::isnan(score[64 + slot])) << n_heads << " heads, slot " << slot;
      d.scores(132, true);
      EXPECT_EQ(d.fault(), 1u) << n_heads << " heads, slot " << slot;
    }
  }
}

TEST(IndexPlanTest, BelongsToOneShape) {
  const IndexShape built{4, 2, 132, 1024};
  std::byte memory;
  const IndexPlan plan{built, 0, &memory};
  EXPECT_EQ(plan_mismatch(plan, built), "");
  EXPECT_NE(plan_mismatch(plan, {4, 1, 132, 1024}), "");
  EXPECT_NE(plan_mismatch(plan, {8, 2, 132, 1024}), "");
  EXPECT_NE(plan_mismatch(plan, {4, 2, 66, 1024}), "");
  EXPECT_NE(plan_mismatch(plan, {4, 2, 132, 2048}), "");
  EXPECT_NE(plan_mismatch({}, built), "");
  EXPECT_DEATH(index_scores({}, plan, {4, 1, 132, 1024}, nullptr), "built for 4 requests of 2 tokens");
}

TEST(IndexPlanTest, RefusesOtherShapesByName) {
  EXPECT_EQ(index_support({.n_heads = 64, .n_tokens = 8}), "");
  EXPECT_NE(index_support({.n_heads = 48}).find("48"), std::string::npos);
  EXPECT_NE(index_support({.n_heads = 32, .d_index = 64}).find("64"), std::string::npos);
  EXPECT_NE(index_support({.n_heads = 64, .n_tokens = 9}).find("9"), std::string::npos);
  EXPECT_EQ(topk_support(2048), "");
  EXPECT_NE(topk_support(100).find("100"), std::string::npos);
  EXPECT_NE(topk_support(4096).find("4096"), std::string::npos);
}

}  // namespace
}  // namespace levin::cuda
