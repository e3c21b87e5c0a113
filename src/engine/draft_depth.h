// How many tokens to draft before a verify pass, so that speculation never costs more than it brings.
//
// A round of depth S verifies S drafts of every sequence and makes S new ones. It keeps 1 + p_1 + p_1 p_2 + ... tokens
// a sequence, p_i being how often the draft at place i is accepted when those before it were, and takes t(S) seconds.
// The depth chosen has the most tokens a second; 0 is plain decoding. Acceptance is learnt from every verify pass.
// Times are measured in place, for each number of sequences apart: of the deepest first, of plain decoding after a few
// rounds or as soon as drafts fail, of those between on the line until measured. Now and then another depth is tried
// for a few rounds, so that a change of text or context is noticed; the longer nothing changes, the less often.
//
// Only speed depends on a depth, never a token (step_loop.h). Pure bookkeeping: no clock, no tensors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace levin {

constexpr int kMaxSpecSteps = 16;

// Drafts that get another behind them are this likely to be kept together, by the MTP layer's own word. Rounds of three
// drafts of demo-v32, replayed with every bound, were 6 to 9% faster from 0.5 to 0.9 than with none.
constexpr double kDefaultMinConfidence = 0.7;

// How often drafts are accepted, by place, the recent ones counting more.
class DraftAcceptance {
 public:
  DraftAcceptance();

  void observe(int n_drafted, int n_accepted);  // of one verify pass
  double expected_tokens(int depth) const;      // that a pass with so many drafts keeps, the target's own included

 private:
  std::array<double, kMaxSpecSteps> rates_;  // of place i, where the places before it were accepted
};

class DraftDepth {
 public:
  explicit DraftDepth(int max_depth);  // 0 .. kMaxSpecSteps

  // The depth of the next round of sequences that accept drafts like these; not empty.
  int next(std::span<const DraftAcceptance> sequences);

  // A round of n_sequences that verified `depth` drafts of each and made as many took so long.
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
