// The depth of speculation follows acceptance and cost, on made-up times.
#include "engine/draft_depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace levin {
namespace {

// A machine and a text: what a round costs, and how often a draft is right where those before were.
struct World {
  double row_s = 0.1;    // of one more row in a verify pass that takes 1 s with one
  double draft_s = 0.1;  // of a draft
  double right = 0.9;
  double noise = 0;   // of times, relative
  double stalls = 0;  // share of rounds that take three times as long
};

struct Answers {
  int64_t n_sequences = 1;
  int n_tokens = 0;  // of each
};

struct Outcome {
  double tokens_per_s = 0;
  double mean_depth = 0;
};

// Rounds of sequences that all have as many drafts. As on a device the depth of a round is chosen while the one before it
// runs, unless that one verifies drafts and makes none (StepLoop::look_ahead).
class Simulation {
 public:
  explicit Simulation(int max_depth) : depth_(max_depth) {}

  Outcome run(const World& world, int n_rounds, int64_t n_sequences = 1) {
    const auto seconds = [&](int n_verified, int n_made) {
      const double rows = static_cast<double>(n_sequences * (1 + n_verified) - 1);
      const double noise = (1 + world.noise * (unit() - 0.5)) * (unit() < world.stalls ? 3 : 1);
      return (1 + world.row_s * rows + world.draft_s * n_made) * noise;
    };
    begin(n_sequences, verifies_);
    for (int round = 0; round < n_rounds; ++round) step(seconds, [&](int) { return world.right; });
    return outcome();
  }

  // Until every sequence has its tokens, the first drafts being made with the prompts: as a case of `levin bench`.
  template <class Seconds, class Right>
  Outcome run_answers(const Seconds& seconds, const Right& right, const Answers& answers) {
    begin(answers.n_sequences, depth_.first(std::vector<DraftAcceptance>(answers.n_sequences, acceptance_)));
    while (*std::min_element(answers_.begin(), answers_.end()) < answers.n_tokens) step(seconds, right);
    return outcome();
  }

 private:
  void begin(int64_t n_sequences, int n_verified) {
    sequences_.assign(n_sequences, acceptance_);
    answers_.assign(n_sequences, 0);
    verifies_ = n_verified;
    seconds_ = depths_ = n_rounds_ = 0;
    makes_ = depth_.next(sequences_, verifies_);
  }

  template <class Seconds, class Right>
  void step(const Seconds& seconds, const Right& right) {
    const bool looks_ahead = verifies_ == 0 || makes_ > 0;
    int next = looks_ahead ? depth_.next(sequences_, makes_) : 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      int accepted = 0;
      while (accepted < verifies_ && unit() < right(accepted)) ++accepted;
      sequences_[i].observe(verifies_, accepted);
      answers_[i] += 1 + accepted;
    }
    const double took = seconds(verifies_, makes_);
    const auto n = static_cast<int64_t>(sequences_.size());
    depth_.observe({.n_sequences = n, .n_verified = verifies_, .n_made = makes_, .seconds = took});
    if (!looks_ahead) next = depth_.next(sequences_, makes_);
    seconds_ += took;
    depths_ += makes_;
    ++n_rounds_;
    verifies_ = std::exchange(makes_, next);
  }

  Outcome outcome() {
    acceptance_ = sequences_.front();
    return {.tokens_per_s = std::accumulate(answers_.begin(), answers_.end(), 0.0) / seconds_,
            .mean_depth = depths_ / n_rounds_};
  }

  double unit() { return static_cast<double>(random_()) / static_cast<double>(std::mt19937::max()); }

  DraftDepth depth_;
  DraftAcceptance acceptance_;
  std::vector<DraftAcceptance> sequences_;
  std::vector<int> answers_;  // tokens of each
  int verifies_ = 0;          // drafts that the round checks: those made in the one before
  int makes_ = 0;
  double seconds_ = 0, depths_ = 0, n_rounds_ = 0;
  std::mt19937 random_{5};
};

double plain_tokens_per_s(const World& world, int64_t n_sequences = 1) {
  return static_cast<double>(n_sequences) / (1 + world.row_s * static_cast<double>(n_sequences - 1));
}

TEST(DraftDepth, StaysDeepWhereDraftsAreRightAndCheap) {
  const Outcome outcome = Simulation(3).run({.row_s = 0.05, .draft_s = 0.05, .right = 0.95}, 1000);
  EXPECT_GT(outcome.mean_depth, 2.8);
}

TEST(DraftDepth, GoesToZeroWhereDraftsAreWrong) {
  const World world{.right = 0.01};
  const Outcome outcome = Simulation(3).run(world, 2000);
  EXPECT_LT(outcome.mean_depth, 0.1);
  EXPECT_GT(outcome.tokens_per_s, 0.98 * plain_tokens_per_s(world));
}

TEST(DraftDepth, GoesToZeroWhereDraftsAreRightButDear) {
  const World world{.row_s = 0.9, .draft_s = 0.9, .right = 0.9};
  const Outcome outcome = Simulation(3).run(world, 2000);
  EXPECT_LT(outcome.mean_depth, 0.1);
  EXPECT_GT(outcome.tokens_per_s, 0.98 * plain_tokens_per_s(world));
}

TEST(DraftDepth, FindsADepthBetween) {
  // Tokens a second by depth: 1, 1.2, 1.17, 1.07, ...
  const Outcome outcome = Simulation(5).run({.row_s = 0.1, .draft_s = 0.15, .right = 0.5}, 4000);
  EXPECT_GT(outcome.mean_depth, 0.7);
  EXPECT_LT(outcome.mean_depth, 1.8);
}

TEST(DraftDepth, NoticesThatTheTextHasChanged) {
  Simulation simulation(3);
  const World hard{.row_s = 0.05, .draft_s = 0.05, .right = 0.02}, easy{.row_s = 0.05, .draft_s = 0.05, .right = 0.95};
  simulation.run(hard, 500);
  EXPECT_LT(simulation.run(hard, 500).mean_depth, 0.1);
  simulation.run(easy, 4000);
  EXPECT_GT(simulation.run(easy, 500).mean_depth, 2.5);
  simulation.run(hard, 500);
  EXPECT_LT(simulation.run(hard, 500).mean_depth, 0.1);
}

// Over many worlds, with noise, in every other one with stalls: within a few percent of plain decoding at worst.
TEST(DraftDepth, NeverLoses) {
  std::mt19937 random(1);
  const auto unit = [&] { return static_cast<double>(random()) / static_cast<double>(std::mt19937::max()); };
  for (int i = 0; i < 300; ++i) {
    const World world{
        .row_s = unit(), .draft_s = unit(), .right = unit(), .noise = 0.2, .stalls = i % 2 == 0 ? 0.1 : 0};
    const int64_t n_sequences = 1 + i % 4;
    const Outcome outcome = Simulation(1 + i % 6).run(world, 3000, n_sequences);
    const double least = world.stalls > 0 ? 0.92 / (1 + 2 * world.stalls) : 0.95;
    EXPECT_GT(outcome.tokens_per_s, least * plain_tokens_per_s(world, n_sequences))
        << "row " << world.row_s << " draft " << world.draft_s << " right " << world.right << " sequences "
        << n_sequences << " depth " << outcome.mean_depth;
  }
}

TEST(DraftDepth, AllowsNoDrafts) {
  DraftDepth depth(0);
  const std::vector<DraftAcceptance> one(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(depth.next(one, 0), 0);
    depth.observe({.n_sequences = 1, .seconds = 1});
  }
}

// Rounds with 0 and with 3 drafts of each sequence, and which share of what drafts add is verifying them.
struct MeasuredRounds {
  int64_t n_sequences = 1;
  double plain_ms = 0, drafts_ms = 0, verify_share = 0;
  std::array<double, 3> right = {};

  double seconds(int n_verified, int n_made) const {
    const double share = verify_share * n_verified + (1 - verify_share) * n_made;
    return 1e-3 * (plain_ms + share * (drafts_ms - plain_ms) / 3);
  }
  double tokens_per_s(int depth) const {
    double tokens = 1, reached = 1;
    for (int place = 0; place < depth; ++place) tokens += reached *= right[place];
    return static_cast<double>(n_sequences) * tokens / seconds(depth, depth);
  }
  double better_tokens_per_s() const { return std::max(tokens_per_s(0), tokens_per_s(3)); }
};

// Three layers of DeepSeek-V3.2 on an H100, where drafts do not pay, by three guesses of what their rounds consist of; twelve
// of them on an H200, where it is nearly the same; then made up ones where drafts pay.
const MeasuredRounds kMeasuredRounds[] = {
    {.n_sequences = 1, .plain_ms = 1.776, .drafts_ms = 6.53, .verify_share = 0.5, .right = {0.8, 0.7, 0.6}},
    {.n_sequences = 8, .plain_ms = 3.51, .drafts_ms = 15.08, .verify_share = 0.5, .right = {0.75, 0.65, 0.5}},
    {.n_sequences = 32, .plain_ms = 8.08, .drafts_ms = 33.07, .verify_share = 0.5, .right = {0.75, 0.65, 0.5}},
    {.n_sequences = 8, .plain_ms = 3.51, .drafts_ms = 15.08, .verify_share = 0.8, .right = {0.75, 0.65, 0.5}},
    {.n_sequences = 32, .plain_ms = 8.08, .drafts_ms = 33.07, .verify_share = 0.2, .right = {0.75, 0.65, 0.5}},
    {.n_sequences = 1, .plain_ms = 3.385, .drafts_ms = 9.279, .verify_share = 0.7, .right = {0.79, 0.74, 0.69}},
    {.n_sequences = 8, .plain_ms = 8.305, .drafts_ms = 26.68, .verify_share = 0.7, .right = {0.82, 0.77, 0.73}},
    {.n_sequences = 32, .plain_ms = 17.72, .drafts_ms = 53.04, .verify_share = 0.7, .right = {0.82, 0.78, 0.74}},
    {.n_sequences = 1, .plain_ms = 2.6, .drafts_ms = 5.4, .verify_share = 0.6, .right = {0.85, 0.75, 0.65}},
    {.n_sequences = 8, .plain_ms = 8, .drafts_ms = 16, .verify_share = 0.7, .right = {0.85, 0.75, 0.65}},
    {.n_sequences = 32, .plain_ms = 18, .drafts_ms = 40, .verify_share = 0.8, .right = {0.85, 0.75, 0.65}}};

// From the first round on, when nothing is known.
TEST(DraftDepth, ComesCloseToTheBetterOfNoneAndAll) {
  for (const MeasuredRounds& m : kMeasuredRounds) {
    for (const int n_tokens : {64, 256, 1024}) {
      const Outcome outcome = Simulation(3).run_answers([&](int i, int j) { return m.seconds(i, j); },
                                                        [&](int place) { return m.right[place]; },
                                                        {.n_sequences = m.n_sequences, .n_tokens = n_tokens});
      EXPECT_GT(outcome.tokens_per_s, (n_tokens < 256 ? 0.95 : 0.98) * m.better_tokens_per_s())
          << m.n_sequences << " sequences, " << m.plain_ms << " and " << m.drafts_ms << " ms, " << n_tokens
          << " tokens, mean depth " << outcome.mean_depth;
    }
  }
}

// What eight sequences have taught is used for six.
TEST(DraftDepth, LearnsFromOtherNumbersOfSequences) {
  const World dear{.row_s = 0.2, .draft_s = 0.9, .right = 0.5}, cheap{.row_s = 0.02, .draft_s = 0.02, .right = 0.95};
  Simulation plain(3), deep(3);
  plain.run(dear, 100, 8);
  EXPECT_EQ(plain.run(dear, 10, 6).mean_depth, 0);
  deep.run(cheap, 100, 8);
  EXPECT_EQ(deep.run(cheap, 10, 6).mean_depth, 3);
}

TEST(DraftDepth, BoundsWhatTrialsLose) {
  const World world{.row_s = 0.5, .draft_s = 0.5, .right = 0.6};
  EXPECT_GT(Simulation(3).run(world, 10000).tokens_per_s, 0.989 * plain_tokens_per_s(world));
}

}  // namespace
}  // namespace levin
