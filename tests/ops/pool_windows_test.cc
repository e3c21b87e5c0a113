#include "ops/pool_windows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/paged_cache.h"

namespace levin::testing {
namespace {

struct Case {
  int64_t ratio, d;
  bool overlap;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << "ratio " << c.ratio << ", d " << c.d << (c.overlap ? ", overlapping" : "");
}

constexpr int64_t kTokens = 300;
constexpr int64_t kUndone = 6;

// A sequence's tokens, and a way to run them in steps.
struct Problem {
  Case c;
  int64_t n_channels;
  Tensor values, gates, bias;

  explicit Problem(const Case& k)
      : c(k),
        n_channels(k.overlap ? 2 * k.d : k.d),
        values(DType::kF32, {kTokens, n_channels}),
        gates(DType::kF32, {kTokens, n_channels}),
        bias(DType::kF32, {k.ratio, n_channels}) {
    Random random(k.ratio);
    values = random_tensor(random, {kTokens, n_channels});
    gates = random_tensor(random, {kTokens, n_channels}, 3.0f);
    bias = random_tensor(random, {k.ratio, n_channels});
  }

  StateFormat format() const {
    return {.n_channels = n_channels, .n_tokens = (c.overlap ? 2 : 1) * c.ratio, .n_before = c.overlap ? c.ratio : 0};
  }
  int64_t n_entries() const { return kTokens / c.ratio; }
};

// Rings of two sequences, every byte set to ones at first, so that reading what was not written shows.
class Rings {
 public:
  explicit Rings(const Problem& p, const StateRings& ends = {}) : ids_(i32_tensor({1, 0})), rings_(ends) {
    rings_.format = p.format();
    rings_.n_rows = rings_.format.ring_rows(kUndone);
    const int64_t n_rows = rings_.n_rows + rings_.n_ends * rings_.format.n_before;
    memory_.resize(static_cast<size_t>(2 * n_rows * rings_.format.row_bytes() / 4), 0xFFFFFFFF);
    rings_.rings = reinterpret_cast<std::byte*>(memory_.data());
    rings_.ids = ids_;
  }
  const StateRings& get() const { return rings_; }

 private:
  std::vector<uint32_t> memory_;
  Tensor ids_;
  StateRings rings_;
};

// Runs tokens [begin, end) of both sequences, the second one `lag` tokens later, and puts the entries that they
// complete into entries[seq]. The sequences have the same tokens.
void run_step(TestDevice& device, const Problem& p, const Rings& rings, int64_t begin, int64_t end,
              Tensor (&entries)[2]) {
  const int64_t n = end - begin;
  Tensor values(DType::kF32, {2 * n, p.n_channels}), gates(DType::kF32, {2 * n, p.n_channels});
  for (int64_t s = 0; s < 2; ++s) {
    std::copy_n(p.values.view().row<float>(begin), n * p.n_channels, values.view().row<float>(s * n));
    std::copy_n(p.gates.view().row<float>(begin), n * p.n_channels, gates.view().row<float>(s * n));
  }
  std::vector<int32_t> seq, slot;
  for (int32_t s = 0; s < 2; ++s) {
    for (int64_t t = begin; t < end; ++t) {
      if ((t + 1) % p.c.ratio != 0) continue;
      seq.push_back(s);
      slot.push_back(static_cast<int32_t>((t + 1) / p.c.ratio - 1));
    }
  }
  std::vector<int32_t> row_seq(static_cast<size_t>(n), 0);
  row_seq.resize(static_cast<size_t>(2 * n), 1);
  const Tensor seq_of_row = i32_tensor(row_seq), first_row = i32_tensor({0, static_cast<int32_t>(n)}),
               end_row = i32_tensor({static_cast<int32_t>(n), static_cast<int32_t>(2 * n)});
  const Tensor first_position = i32_tensor({static_cast<int32_t>(begin), static_cast<int32_t>(begin)});
  const ops::WindowTokens tokens{.values = values,
                                 .gates = gates,
                                 .seq = seq_of_row,
                                 .first_row = first_row,
                                 .end_row = end_row,
                                 .first_position = first_position,
                                 .state = rings.get()};
  Tensor out(DType::kF32, {std::ssize(seq), p.c.d});
  ops::pool_windows(device.ctx(), {.tokens = tokens,
                                   .bias = p.bias,
                                   .overlap = p.c.overlap,
                                   .seq = i32_tensor(seq),
                                   .slot = i32_tensor(slot),
                                   .out = out});
  ops::keep_state(device.ctx(), tokens);
  for (size_t i = 0; i < seq.size(); ++i) {
    std::copy_n(out.view().row<float>(static_cast<int64_t>(i)), p.c.d, entries[seq[i]].view().row<float>(slot[i]));
  }
}

using StepSizes = std::vector<int64_t>;

// All entries, the tokens cut into steps of these sizes over and over.
Tensor run_all(TestDevice& device, const Problem& p, const StepSizes& sizes) {
  const Rings rings(p);
  Tensor entries[2] = {Tensor(DType::kF32, {p.n_entries(), p.c.d}), Tensor(DType::kF32, {p.n_entries(), p.c.d})};
  int64_t begin = 0;
  for (size_t i = 0; begin < kTokens; ++i) {
    const int64_t end = std::min(kTokens, begin + sizes[i % sizes.size()]);
    run_step(device, p, rings, begin, end, entries);
    begin = end;
  }
  EXPECT_TRUE(same_bits(entries[0], entries[1]));
  return std::move(entries[0]);
}

class PoolWindowsTest : public ::testing::TestWithParam<Case> {};

// However long the steps, the rows that the block after them looks back at stay until n_ends blocks are through.
TEST_P(PoolWindowsTest, KeepsTheEndsOfBlocks) {
  constexpr int64_t kBlock = 128, kEnds = 3;
  const Problem p(GetParam());
  for (const int64_t n_step : {1, 7, 100, 200}) {
    const Rings rings(p, {.n_ends = kEnds, .n_block_tokens = kBlock});
    Tensor entries[2] = {Tensor(DType::kF32, {p.n_entries(), p.c.d}), Tensor(DType::kF32, {p.n_entries(), p.c.d})};
    for (int64_t begin = 0; begin < kTokens; begin += n_step) {
      const int64_t n_run = std::min(begin + n_step, kTokens);
      run_step(plain_device(), p, rings, begin, n_run, entries);
      for (int64_t position = 0; position < n_run / kBlock * kBlock; ++position) {
        const float* row = rings.get().end_row(1, position);
        ASSERT_EQ(row != nullptr, position % kBlock >= kBlock - p.format().n_before) << position;
        if (row == nullptr) continue;
        EXPECT_TRUE(std::equal(row, row + p.n_channels, p.values.view().row<float>(position))) << position;
        EXPECT_TRUE(std::equal(row + p.n_channels, row + 2 * p.n_channels, p.gates.view().row<float>(position)));
      }
    }
    for (int64_t i = 0; i < p.n_entries(); ++i) {
      ASSERT_EQ(entries[0].view().row<float>(i)[0], entries[1].view().row<float>(i)[0]);  // the ring is not disturbed
    }
  }
}

// A logit has one rounding, the difference one more; exp turns them into relative errors and adds two units; both sums
// add one rounding per slot, quotient and product one.
TEST_P(PoolWindowsTest, IsNearTheOracle) {
  const Problem p(GetParam());
  const Tensor entries = run_all(plain_device(), p, {kTokens});
  const int64_t ratio = p.c.ratio, d = p.c.d;
  for (int64_t w = 0; w < p.n_entries(); ++w) {
    for (int64_t channel = 0; channel < d; ++channel) {
      std::vector<std::pair<double, double>> slots;  // logit, value
      const auto add = [&](int64_t first, int64_t column) {
        for (int64_t i = 0; i < ratio; ++i) {
          slots.emplace_back(
              double{p.gates.at((first + i) * p.n_channels + column)} + p.bias.at(i * p.n_channels + column),
              p.values.at((first + i) * p.n_channels + column));
        }
      };
      if (p.c.overlap && w > 0) add((w - 1) * ratio, channel);
      add(w * ratio, p.c.overlap ? d + channel : channel);
      double largest = -1e300, weights = 0, total = 0, size = 0, largest_logit = 0;
      for (const auto& [logit, value] : slots) {
        largest = std::max(largest, logit);
        largest_logit = std::max(largest_logit, std::abs(logit));
      }
      for (const auto& [logit, value] : slots) weights += std::exp(logit - largest);
      for (const auto& [logit, value] : slots) {
        total += std::exp(logit - largest) / weights * value;
        size += std::exp(logit - largest) / weights * std::abs(value);
      }
      const double relative = (2 * (4 * largest_logit + 4) + 2.0 * static_cast<double>(slots.size()) + 4) * 0x1p-24;
      ASSERT_NEAR(entries.at(w * d + channel), total, relative * size) << w << ", " << channel;
    }
  }
}

// Whatever the steps, threads and kernels: the same bits.
TEST_P(PoolWindowsTest, BitsDependOnTheTokensAlone) {
  const Problem p(GetParam());
  const Tensor want = run_all(plain_device(), p, {kTokens});
  for (const auto& device : devices_under_test()) {
    for (const StepSizes& sizes : {StepSizes{kTokens}, {1}, {7}, {64}, {1, 5, 130, 2}}) {
      ASSERT_TRUE(same_bits(run_all(*device, p, sizes), want)) << device->name() << ", steps of " << sizes[0];
    }
  }
}

// Steps that are partly run again at other tokens, as drafts that were rejected: nothing of them stays.
TEST_P(PoolWindowsTest, TokensThatAreRunAgainLeaveNoTrace) {
  const Problem p(GetParam());
  Problem drafts(GetParam());
  Random random(77);
  drafts.values = random_tensor(random, {kTokens, p.n_channels});
  const Tensor want = run_all(plain_device(), p, {kTokens});
  const Rings rings(p);
  Tensor entries[2] = {Tensor(DType::kF32, {p.n_entries(), p.c.d}), Tensor(DType::kF32, {p.n_entries(), p.c.d})};
  for (int64_t begin = 0; begin < kTokens;) {
    const int64_t end = std::min(kTokens, begin + 1 + random.below(kUndone + 1));
    const int64_t kept = begin + 1 + random.below(end - begin);
    // The step has the right tokens up to `kept`, others after it.
    Problem mixed(GetParam());
    std::copy_n(drafts.values.view().row<float>(kept % kTokens), kept < kTokens ? (kTokens - kept) * p.n_channels : 0,
                mixed.values.view().row<float>(kept % kTokens));
    run_step(plain_device(), mixed, rings, begin, end, entries);
    begin = kept;
  }
  EXPECT_TRUE(same_bits(entries[0], want));
}

INSTANTIATE_TEST_SUITE_P(Ratios, PoolWindowsTest,
                         ::testing::Values(Case{4, 32, true}, Case{128, 48, false}, Case{3, 17, true},
                                           Case{1, 20, false}, Case{5, 33, false}));

// Entries that begin elsewhere than at multiples of the ratio: those of tokens one later are those of the tokens moved.
TEST(PoolWindowsAnywhere, EntryZeroMayBeginBeforeTheFirstToken) {
  const Problem p({4, 16, false});
  Problem moved({4, 16, false});
  for (Tensor Problem::* rows : {&Problem::values, &Problem::gates}) {
    std::copy_n((p.*rows).view().data<float>(), (kTokens - 1) * 16, (moved.*rows).view().row<float>(1));
  }
  const Tensor want = run_all(plain_device(), p, {kTokens});
  const Rings rings(moved);
  const Tensor seq = i32_tensor({0}), slot = i32_tensor({3}), first = i32_tensor({0, 0}), none = i32_tensor({0, 0});
  const Tensor end_row = i32_tensor({static_cast<int32_t>(kTokens), 0});
  const Tensor row_seq = i32_tensor(std::vector<int32_t>(kTokens, 0));
  Tensor out(DType::kF32, {1, 16});
  ops::pool_windows(plain_device().ctx(), {.tokens = {.values = moved.values,
                                                      .gates = moved.gates,
                                                      .seq = row_seq,
                                                      .first_row = none,
                                                      .end_row = end_row,
                                                      .first_position = first,
                                                      .state = rings.get()},
                                           .bias = p.bias,
                                           .first_token = -3,  // entry 3 is tokens 9 to 12, which were 8 to 11
                                           .seq = seq,
                                           .slot = slot,
                                           .out = out});
  EXPECT_TRUE(same_bits(out, want.view().slice_first(2, 1)));
}

TEST(PoolWindowsDeathTest, NamesTheArgument) {
  const Problem p({4, 16, true});
  const Rings rings(p);
  Tensor entries[2] = {Tensor(DType::kF32, {1, 15}), Tensor(DType::kF32, {1, 15})};
  const Problem narrow({4, 15, true});
  EXPECT_DEATH(run_step(plain_device(), narrow, rings, 0, 4, entries),
               "pool_windows: state has rings of .* of 32 channels");
}

}  // namespace
}  // namespace levin::testing
