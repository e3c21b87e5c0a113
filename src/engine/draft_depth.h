// Chooses the number of drafts per round, so that speculation never costs more than it gains.
//
// A round of depth S verifies S drafts of every sequence and makes S new ones. It commits 1 + p_1 + p_1 p_2 + ...
// tokens per sequence, where p_i is the probability that draft i is accepted if those before it were, and takes t(S)
// seconds. The chosen depth maximises tokens per second; depth 0 is plain decoding. p_i is estimated from all
// verification passes. t(S) is measured during the rounds, separately for each number of sequences: first for the
// deepest S, then for S = 0, after a few rounds or as soon as drafts fail; depths between them are interpolated until
// they are measured. Occasionally another depth is tried for a few rounds, to notice changes of text or context; the
// longer nothing changes, the more rarely.
//
// A depth changes only speed, never a token (step_loop.h). Pure bookkeeping: no clock, no tensors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace levin {

constexpr int kMaxSpecSteps = 16;

// A chain of drafts continues while the product of the MTP layer's probabilities for them is at least this. Rounds of
// three drafts of demo-v32, replayed with different bounds, were 6 to 9% faster with bounds from 0.5 to 0.9 than
// without one.
constexpr double kDefaultMinConfidence = 0.7;

// Acceptance rates of drafts by position, weighted towards recent passes.
class DraftAcceptance {
 public:
  DraftAcceptance();

  void observe(int n_drafted, int n_accepted);  // of one verification pass
  double expected_tokens(int depth) const;      // committed by a pass with this many drafts, including the target's own

 private:
  std::array<double, kMaxSpecSteps> rates_;  // of position i, given that those before it were accepted
};

class DraftDepth {
 public:
  explicit DraftDepth(int max_depth);  // 0 .. kMaxSpecSteps

  // The depth of the next round, given the acceptance rates of its sequences; at least one.
  int next(std::span<const DraftAcceptance> sequences);

  // Reports the duration of a round that verified and made `depth` drafts for each of n_sequences.
  void observe(int64_t n_sequences, int depth, double seconds);

 private:
  struct Times {
    std::vector<double> seconds;  // [max_depth + 1] of a round; 0: not measured
    int n_rounds = 0;
    int best = -1;
    int trial = -1;  // the depth being tried
    int n_trial_rounds_left = 0;
    size_t n_trials = 0;
    int rounds_to_trial = 0;
    int trial_interval = 0;
  };

  Times& times_of(int64_t n_sequences);
  double seconds_at(const Times& times, int depth) const;
  bool too_early_to_compare(const Times& times, std::span<const DraftAcceptance> sequences) const;
  double tokens_per_s(const Times& times, std::span<const DraftAcceptance> sequences, int depth) const;
  int fastest(const Times& times, std::span<const DraftAcceptance> sequences) const;
  int next_trial(Times& times, std::span<const DraftAcceptance> sequences) const;

  int max_depth_;
  std::map<int64_t, Times> times_;  // by number of sequences
};

}  // namespace levin
