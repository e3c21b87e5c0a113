// Chooses the number of drafts per round, so that speculation never costs more than it gains.
//
// A round verifies i drafts of every sequence and makes j new ones. It commits 1 + p_1 + p_1 p_2 + ... + p_1 .. p_i tokens
// per sequence, where p_k is the probability that draft k is accepted if those before it were, and takes V_i + D_j seconds,
// D_0 = 0. The chosen depth S maximises the tokens per second of rounds that verify and make S drafts; depth 0 is plain
// decoding. p_k is estimated from all verification passes.
//
// Costs       V and D are fitted to the durations of rounds, so that a single round of plain decoding between two of drafts
//             tells what it costs. What was never measured lies on a line between what was. Numbers of sequences that a step
//             pads to the same rows (cost_class()) have costs of their own; a class that is new takes those of the nearest
//             one, scaled by its first rounds
// Beginning   of a class without a neighbour: a round of all drafts, one that only verifies them, then plain ones until one of
//             them is measured. So all is known, at the price of two or three rounds at the wrong depth, whichever it is
// Trials      now and then another depth runs for two rounds, to notice changes of text and context; the longer nothing
//             changes, the more rarely. What trials are expected to lose stays below kTrialShare of all the time
//
// A depth changes only speed, never a token (step_loop.h). Pure bookkeeping: no clock, no tensors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>

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
  std::array<double, kMaxSpecSteps> rates_;    // of position i, given that those before it were accepted
  std::array<double, kMaxSpecSteps> weights_;  // of the next pass that gets there
};

// A round of nothing but decoding, whose sequences all have as many drafts.
struct TimedRound {
  int64_t n_sequences = 0;
  int n_verified = 0;  // drafts of each sequence
  int n_made = 0;      // likewise
  double seconds = 0;
};

class DraftDepth {
 public:
  explicit DraftDepth(int max_depth);  // 0 .. kMaxSpecSteps

  // How many drafts the next round makes, given the acceptance rates of its sequences, at least one, and how many drafts of
  // each it verifies. To be called once for each round, which may be before the round before it was observed.
  int next(std::span<const DraftAcceptance> sequences, int n_verified);
  // Of the first drafts of answers, which tell nothing of rounds.
  int first(std::span<const DraftAcceptance> sequences);
  void observe(const TimedRound& round);

 private:
  using Acceptance = std::span<const DraftAcceptance>;
  struct Costs {
    std::array<double, kMaxSpecSteps + 1> verify = {};  // V, seconds; 0: not measured
    std::array<double, kMaxSpecSteps + 1> draft = {};   // D of 1 and more drafts; likewise
    bool is_neighbours = false;
    double full_round_s = 0;   // of the first round of all drafts
    int n_rounds = 0;          // observed
    int n_unknown_rounds = 0;  // decided before costs were known
    int best = -1;
    int trial = -1;  // the depth being tried
    int n_trial_rounds_left = 0;
    size_t n_trials = 0;
    int rounds_to_trial = 0;
    int trial_interval = 0;
  };

  Costs& costs_of(int64_t n_sequences);
  bool are_known(const Costs& costs) const;
  void observe_first(Costs& costs, const TimedRound& round) const;
  int next_unknown(Costs& costs, int n_verified) const;
  double verify_s(const Costs& costs, int depth) const;
  double draft_s(const Costs& costs, int depth) const;
  double round_s(const Costs& costs, int depth) const { return verify_s(costs, depth) + draft_s(costs, depth); }
  double tokens_per_s(const Costs& costs, Acceptance sequences, int depth) const;
  int fastest(const Costs& costs, Acceptance sequences) const;
  int next_trial(Costs& costs, Acceptance sequences) const;
  double trial_loss_s(const Costs& costs, Acceptance sequences, int trial) const;

  int max_depth_;
  std::map<int64_t, Costs> costs_;  // by cost_class()
  double seconds_ = 0;              // of all rounds
  double trial_loss_s_ = 0;         // expected of all trials
};

}  // namespace levin
