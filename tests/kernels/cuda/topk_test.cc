// Selection on the device: one set in one order, on easy rows and on rows of ties, alone and after the scores.
#include "kernels/cuda/index/topk.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "index_problem.h"

namespace levin::cuda {
namespace {

struct Rows {
  std::vector<std::vector<float>> score;
  std::vector<int32_t> begin;  // empty: all 0
};

class TopkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
    fault_ = DeviceArray<uint32_t>(*stream_, std::vector<uint32_t>{0});
  }

  // Rows are padded with +inf, which must never be selected.
  std::vector<int32_t> select(const Rows& rows, int n_topk) {
    size_t stride = 1;
    for (const auto& row : rows.score) stride = std::max(stride, row.size());
    stride += 3;  // rows need no alignment
    std::vector<float> dense(stride * rows.score.size(), std::numeric_limits<float>::infinity());
    std::vector<int32_t> lengths;
    for (size_t r = 0; r < rows.score.size(); ++r) {
      std::copy(rows.score[r].begin(), rows.score[r].end(), dense.begin() + static_cast<int64_t>(r * stride));
      lengths.push_back(static_cast<int32_t>(rows.score[r].size()));
    }
    const DeviceArray<float> score(*stream_, dense);
    const DeviceArray<int32_t> lengths_device(*stream_, lengths),
        topk(*stream_, static_cast<int64_t>(lengths.size()) * n_topk);
    DeviceArray<int32_t> begin;
    if (!rows.begin.empty()) begin = DeviceArray<int32_t>(*stream_, rows.begin);
    topk.fill(0x77);
    select_topk({.score = score.data(),
                 .score_stride = static_cast<int64_t>(stride),
                 .begin = begin.data(),
                 .lengths = {lengths_device.data(), 1, 1},
                 .n_rows = static_cast<int64_t>(lengths.size()),
                 .max_length = static_cast<int64_t>(stride),
                 .topk = topk.data(),
                 .n_topk = n_topk,
                 .fault = fault_.data()},
                stream_->handle());
    return topk.host();
  }

  void expect_best(const Rows& rows, int n_topk) {
    const std::vector<int32_t> topk = select(rows, n_topk);
    for (size_t r = 0; r < rows.score.size(); ++r) {
      const int32_t first = rows.begin.empty() ? 0 : rows.begin[r];
      const std::vector<int32_t> got(topk.begin() + static_cast<int64_t>(r) * n_topk,
                                     topk.begin() + static_cast<int64_t>(r + 1) * n_topk);
      ASSERT_EQ(got, best_positions(rows.score[r].data(), first, static_cast<int32_t>(rows.score[r].size()), n_topk))
          << "row " << r << " of " << rows.score[r].size() << ", " << n_topk << " top-k indices";
    }
    EXPECT_EQ(fault_.host()[0], 0u);
  }

  std::optional<Stream> stream_;
  DeviceArray<uint32_t> fault_;
};

std::vector<float> normal_row(size_t n, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(n);
  for (float& v : row) v = normal(generator);
  return row;
}

// Values of a small alphabet, so that most of the row ties.
std::vector<float> tied_row(size_t n, std::vector<float> alphabet, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<float> row(n);
  for (float& v : row) v = alphabet[generator() % alphabet.size()];
  return row;
}

TEST_F(TopkTest, PicksTheBestOfRandomRows) {
  for (const int n_topk : {64, 512, 1984, 2048}) {
    Rows rows;
    for (const int extra : {-n_topk, 1 - n_topk, -1, 0, 1, 77, 5000, 20000})
      rows.score.push_back(normal_row(static_cast<size_t>(n_topk + extra), 40 + rows.score.size()));
    expect_best(rows, n_topk);
  }
}

TEST_F(TopkTest, PicksTheBestWhateverSharesTheDevice) {
  Rows one{{normal_row(65536, 1)}, {}};
  for (const size_t n_rows : {1u, 3u, 16u, 17u, 40u, 140u}) {
    Rows rows;
    for (size_t r = 0; r < n_rows; ++r)
      rows.score.push_back(r == n_rows / 2 ? one.score[0] : normal_row(30000 + 100 * r, r));
    expect_best(rows, 2048);
  }
}

TEST_F(TopkTest, TiesGoToTheLowestPositions) {
  const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::infinity();
  Rows rows;
  rows.score = {std::vector<float>(10000, 3.5f),
                std::vector<float>(70000, 0.0f),
                tied_row(9000, {0.0f, -0.0f}, 1),
                tied_row(50000, {0.0f, -0.0f, 1.0f}, 2),
                tied_row(66000, {1.0f, 1.0000001f, 1.0000002f}, 3),
                tied_row(5000, {-1.0f, -2.0f, -3.0f}, 4),
                tied_row(8000, {tiny, -tiny, 0.0f, -0.0f}, 5),
                tied_row(8000, {huge, -huge, 3e38f, -3e38f}, 6),
                tied_row(3000, {-huge, 1.0f}, 7),
                tied_row(30000, {-huge, -huge, -huge, -huge, -huge, -huge, -huge, -huge, -huge, -huge, -3e38f}, 8),
                std::vector<float>(2049, -huge)};
  for (const int n_topk : {64, 2048}) expect_best(rows, n_topk);
}

// All exponents and both signs; the K-th in bins of every kind and at their edges.
TEST_F(TopkTest, PicksTheBestOfAllMagnitudes) {
  Rows rows;
  std::mt19937_64 generator(3);
  rows.score.emplace_back();
  while (rows.score[0].size() < 40000) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (!std::isnan(any)) rows.score[0].push_back(any);
  }
  for (const float scale : {0x1p-130f, 0x1p-27f, 0x1p-26f, 0x1p29f, 0x1p30f, 0x1p120f, -0x1p-30f, -1.0f, -0x1p100f}) {
    rows.score.push_back(normal_row(9000, rows.score.size()));
    for (float& v : rows.score.back()) v = std::abs(v) * scale;
    rows.score.back()[77] = scale;
  }
  for (const int n_topk : {64, 2048}) expect_best(rows, n_topk);
}

// More scores in one bin than lists have room for, a few of them equal.
TEST_F(TopkTest, PicksTheBestOfAlikeScores) {
  Rows rows;
  for (const float middle : {1.0f, -1.0f, 3e-20f}) {
    rows.score.push_back(normal_row(70000, rows.score.size()));
    for (float& v : rows.score.back()) v = middle * (1.01f + v * 0x1p-10f);
  }
  for (const int n_topk : {64, 2048}) expect_best(rows, n_topk);
}

TEST_F(TopkTest, RowsMayBeginAnywhere) {
  Rows rows{{normal_row(5000, 1), normal_row(5000, 2), normal_row(5000, 3), normal_row(5000, 4)}, {1, 3, 2951, 4990}};
  rows.score[0][0] = rows.score[1][2] = std::numeric_limits<float>::infinity();  // before the beginning
  expect_best(rows, 2048);
}

TEST_F(TopkTest, AMillionKeys) {
  expect_best({{normal_row(1 << 20, 9)}, {}}, 2048);
  expect_best({{std::vector<float>(1 << 20, 0.0f), tied_row(1000003, {0.0f, 1e-20f}, 8)}, {}}, 2048);
}

TEST_F(TopkTest, RepeatsItself) {
  const Rows rows{{tied_row(60000, {0.0f, 1.0f, 2.0f, 0.5f}, 1), tied_row(30000, {1.0f, 2.0f}, 2)}, {}};
  const std::vector<int32_t> first = select(rows, 2048);
  for (int i = 0; i < 25; ++i) ASSERT_EQ(select(rows, 2048), first) << "repetition " << i;
}

TEST_F(TopkTest, NaNIsReported) {
  Rows rows{{normal_row(5000, 1)}, {}};
  rows.score[0][4321] = std::nanf("");
  select(rows, 2048);
  EXPECT_EQ(fault_.host()[0], 1u);
}

TEST_F(TopkTest, ARowWithNanTakesItsFirstCandidatesAndNoOtherChanges) {
  constexpr int kTopk = 128;
  Rows rows{{normal_row(5000, 1), normal_row(5000, 2), normal_row(100, 3), normal_row(5000, 4)}, {3, 7, 0, 0}};
  const std::vector<int32_t> healthy = select(rows, kTopk);
  rows.score[1][4321] = rows.score[2][50] = rows.score[3][2] = std::nanf("");  // rows that take all have no scores
  rows.begin[3] = 3;                                                           // and no candidate before the first
  const std::vector<float> dense = [&] {
    std::vector<float> out(4 * 5000);
    for (size_t r = 0; r < 4; ++r) std::copy(rows.score[r].begin(), rows.score[r].end(), out.begin() + r * 5000);
    return out;
  }();
  const DeviceArray<float> score(*stream_, dense);
  const DeviceArray<int32_t> lengths(*stream_, std::vector<int32_t>{5000, 5000, 100, 5000}),
      begin(*stream_, rows.begin), topk(*stream_, 4 * kTopk), fault(*stream_, std::vector<int32_t>{0, 2, 0, 0});
  const RowLengths of{lengths.data(), 1, 1};
  select_topk({.score = score.data(),
               .score_stride = 5000,
               .begin = begin.data(),
               .lengths = of,
               .n_rows = 4,
               .max_length = 5000,
               .topk = topk.data(),
               .n_topk = kTopk,
               .fault = fault_.data()},
              stream_->handle());
  settle_nan_rows({.any = fault_.data(),
                   .score = score.data(),
                   .score_stride = 5000,
                   .begin = begin.data(),
                   .lengths = of,
                   .n_rows = 4,
                   .max_length = 5000,
                   .topk = topk.data(),
                   .n_topk = kTopk,
                   .fault = fault.data()},
                  stream_->handle());
  EXPECT_EQ(fault.host(), (std::vector<int32_t>{0, 3, 0, 0}));
  const std::vector<int32_t> got = topk.host();
  for (int i = 0; i < kTopk; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)], healthy[static_cast<size_t>(i)]);
    EXPECT_EQ(got[static_cast<size_t>(kTopk + i)], 7 + i);
    EXPECT_EQ(got[static_cast<size_t>(2 * kTopk + i)], healthy[static_cast<size_t>(2 * kTopk + i)]);
  }
  EXPECT_EQ(std::vector<int32_t>(got.begin() + 3 * kTopk, got.end()),
            best_positions(rows.score[3].data(), 3, 5000, kTopk));
}

// The top-k indices after the scores are the best of those scores, as positions and as slots; rows of few keys take all.
TEST_F(TopkTest, BehindTheScores) {
  for (const int n_tokens : {1, 2, 4, 7}) {
    std::vector<int32_t> lengths;
    for (const int last : {0, 1, 64, 2047, 2048, 2049, 2051, 9000, 33333}) {
      for (int t = 0; t < n_tokens; ++t) lengths.push_back(std::max(0, last - (n_tokens - 1 - t)));
    }
    const IndexProblem p(
        {.n_heads = 64, .n_tokens = n_tokens, .lengths = lengths, .seed = static_cast<uint64_t>(n_tokens)});
    IndexOnDevice d(*stream_, p);
    const std::vector<float> score = d.scores();
    for (int repetition = 0; repetition < 2; ++repetition) {  // the second run finds the counts cleared
      const std::vector<int32_t> positions = d.topk(2048, false), slots = d.topk(2048, true);
      for (int64_t row = 0; row < p.n_rows; ++row) {
        const std::vector<int32_t> best = best_positions(score.data() + row * d.score_stride(), 0, p.length(row), 2048);
        for (int i = 0; i < 2048; ++i) {
          ASSERT_EQ(positions[row * 2048 + i], best[i]) << "row " << row << " of " << p.length(row) << " index " << i;
          const int32_t slot =
              best[i] < 0 ? -1 : p.tables[row / n_tokens * p.table_width + best[i] / 64] * 64 + best[i] % 64;
          ASSERT_EQ(slots[row * 2048 + i], slot);
        }
      }
    }
    EXPECT_EQ(d.fault(), 0u);
  }
}

// Rows of one block and of several; a row of few keys takes all. The second run finds the counts cleared, and no row with a NaN
// but the word that says so.
TEST_F(TopkTest, BehindTheScoresARowWithNanTakesItsFirstKeysAndNoOtherChanges) {
  constexpr int kTopk = 512;
  const IndexProblem healthy({.n_heads = 64, .lengths = {5000, 5000, 33333, 33333, 400}, .seed = 5});
  IndexProblem sick = healthy;
  for (const size_t row : {1, 3, 4}) sick.w[row * 64 + 9] = std::nanf("");
  IndexOnDevice good(*stream_, healthy), bad(*stream_, sick);
  const std::vector<int32_t> want = good.topk(kTopk, false);
  const DeviceArray<float> score(*stream_, sick.n_rows * bad.score_stride());
  const DeviceArray<int32_t> topk(*stream_, sick.n_rows * kTopk),
      row_fault(*stream_, std::vector<int32_t>{0, 2, 0, 0, 0});
  for (const IndexOnDevice* d : {&bad, &good}) {
    const IndexPlan plan = bad.plan(bad.shape(), kTopk);
    const uint32_t one = 1;
    copy_to_device(*stream_, reinterpret_cast<std::byte*>(bad.fault_word()), &one, 4);
    must(stream_->synchronize());
    index_topk({.in = d->inputs(),
                .score = score.data(),
                .score_stride = bad.score_stride(),
                .histogram = bad.histogram().data(),
                .topk = topk.data(),
                .n_topk = kTopk,
                .fault = bad.fault_word(),
                .settles_nan_rows = true,
                .row_fault = row_fault.data(),
                .row_fault_bit = 1},
               plan, bad.shape(), stream_->handle());
    const std::vector<int32_t> got = topk.host();
    for (int64_t row = 0; row < sick.n_rows; ++row) {
      const bool takes_first = d == &bad && (row == 1 || row == 3);
      for (int i = 0; i < kTopk; ++i)
        ASSERT_EQ(got[row * kTopk + i], takes_first ? i : want[row * kTopk + i]) << "row " << row << ", index " << i;
    }
    EXPECT_EQ(row_fault.host(), (std::vector<int32_t>{0, 3, 0, 1, 0}));
  }
}

// A captured step replayed with ten times the keys selects what an eager step does.
TEST_F(TopkTest, ReplaysWithLongerRows) {
  constexpr int kTopk = 512;
  std::vector<int32_t> longer = {6000, 6001, 30000, 30001, 0, 0, 11000, 11001}, shorter;
  for (const int32_t n : longer) shorter.push_back(n / 10);
  const IndexProblem p({.n_heads = 32, .n_tokens = 2, .lengths = longer, .seed = 2});
  IndexOnDevice d(*stream_, p);
  const std::vector<int32_t> eager = d.topk(kTopk, true);

  const DeviceArray<float> score(*stream_, p.n_rows * d.score_stride());
  const DeviceArray<int32_t> topk(*stream_, p.n_rows * kTopk);
  const DeviceArray<uint8_t> memory(*stream_, index_plan_bytes(d.shape()));
  copy_to_device(*stream_, reinterpret_cast<std::byte*>(d.device_lengths().data()), shorter.data(),
                 d.device_lengths().n_bytes());
  must(stream_->synchronize());
  const Graph graph = must(Graph::capture(*stream_, [&] {
    const IndexPlan plan = build_index_plan({.lengths = d.lengths(),
                                             .n_rows = p.n_rows,
                                             .shape = d.shape(),
                                             .skip_length = kTopk,
                                             .memory = reinterpret_cast<std::byte*>(memory.data())},
                                            stream_->handle());
    index_topk({.in = d.inputs(),
                .physical = true,
                .score = score.data(),
                .score_stride = d.score_stride(),
                .histogram = d.histogram().data(),
                .topk = topk.data(),
                .n_topk = kTopk,
                .fault = d.fault_word()},
               plan, d.shape(), stream_->handle());
  }));
  graph.launch(*stream_);
  must(stream_->synchronize());
  copy_to_device(*stream_, reinterpret_cast<std::byte*>(d.device_lengths().data()), longer.data(),
                 d.device_lengths().n_bytes());
  must(stream_->synchronize());
  graph.launch(*stream_);
  EXPECT_EQ(topk.host(), eager);
}

}  // namespace
}  // namespace levin::cuda
