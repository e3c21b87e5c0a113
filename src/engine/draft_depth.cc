#include "engine/draft_depth.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace levin {
namespace {

constexpr double kFirstRate = 0.75;         // until something is known: worth trying
constexpr double kFirstWeight = 0.25;       // of the first pass, of the next ones less and less
constexpr double kAcceptanceWeight = 0.05;  // down to this
constexpr double kTimeWeight = 0.25;        // of the newest round
constexpr double kOutlier = 1.25;           // a round is counted as at most this many times what was expected
constexpr double kLeastDraftShare = 0.05;   // of plain decoding, that a draft is taken to cost until one was made
constexpr double kLeastGain = 1.02;      // of drafts over none: with them the answers of a batch end at different times
constexpr double kClearlyFaster = 1.01;  // than the depth in use, for another to take its place
constexpr double kSwitchShare = 0.05;    // of a round, that leaving a depth and coming back is taken to cost
constexpr double kTrialShare = 0.005;
constexpr int kTrialRounds = 2;        // the first changes over, the second tells what the depth costs
constexpr int kShortestInterval = 16;  // rounds between trials
constexpr int kLongestInterval = 256;
constexpr int kFirstRounds = 8;  // of a class: times above the usual are more frequent than below, so the least count
constexpr int kMostUnknownRounds = 16;  // then the rounds of this class are taken to tell nothing

// The sequences of a step are padded to one of these on a device: 1, 2, 3, 4, 6, 8, 12, 16, 24 ...
int64_t cost_class(int64_t n_sequences) {
  int64_t power = 1;
  while (2 * power <= n_sequences) power *= 2;
  if (n_sequences == power) return power;
  return 2 * n_sequences <= 3 * power ? 3 * power / 2 : 2 * power;
}

}  // namespace

DraftAcceptance::DraftAcceptance() {
  rates_.fill(kFirstRate);
  weights_.fill(kFirstWeight);
}

void DraftAcceptance::observe(int n_drafted, int n_accepted) {
  for (int place = 0; place < std::min(n_drafted, n_accepted + 1); ++place) {
    const double accepted = place < n_accepted ? 1 : 0;
    rates_[place] += weights_[place] * (accepted - rates_[place]);
    weights_[place] = std::max(weights_[place] / (1 + weights_[place]), kAcceptanceWeight);
  }
}

double DraftAcceptance::expected_tokens(int depth) const {
  double tokens = 1, reached = 1;
  for (int place = 0; place < depth; ++place) {
    reached *= rates_[place];
    tokens += reached;
  }
  return tokens;
}

DraftDepth::DraftDepth(int max_depth) : max_depth_(max_depth) {
  LEVIN_CHECK(max_depth >= 0 && max_depth <= kMaxSpecSteps, "draft depth {} of at most {}", max_depth, kMaxSpecSteps);
}

// ---- what rounds cost ----------------------------------------------------------------------------------------------

DraftDepth::Costs& DraftDepth::costs_of(int64_t n_sequences) {
  const int64_t wanted = cost_class(n_sequences);
  const auto found = costs_.find(wanted);
  if (found != costs_.end()) return found->second;
  const Costs* nearest = nullptr;
  double least = 0;
  for (const auto& [of, costs] : costs_) {
    const double apart = std::abs(std::log(static_cast<double>(of) / static_cast<double>(wanted)));
    if (!are_known(costs) || (nearest != nullptr && apart >= least)) continue;
    nearest = &costs;
    least = apart;
  }
  Costs costs;
  if (nearest != nullptr) costs = {.verify = nearest->verify, .draft = nearest->draft, .is_neighbours = true};
  return costs_.emplace(wanted, costs).first->second;
}

bool DraftDepth::are_known(const Costs& costs) const { return costs.verify[0] > 0 && costs.verify[max_depth_] > 0; }

double DraftDepth::verify_s(const Costs& costs, int depth) const {
  int below = depth, above = depth;
  while (costs.verify[below] == 0) --below;
  while (costs.verify[above] == 0) ++above;
  if (below == above) return costs.verify[depth];
  const double share = static_cast<double>(depth - below) / (above - below);
  return costs.verify[below] + share * (costs.verify[above] - costs.verify[below]);
}

double DraftDepth::draft_s(const Costs& costs, int depth) const {
  int below = depth, above = depth;
  while (below > 0 && costs.draft[below] == 0) --below;
  while (above < max_depth_ && costs.draft[above] == 0) ++above;
  if (below == depth) return costs.draft[depth];  // 0 of no drafts
  if (costs.draft[above] > 0) {
    const double share = static_cast<double>(depth - below) / (above - below);
    return costs.draft[below] + share * (costs.draft[above] - costs.draft[below]);
  }
  if (below > 0) return costs.draft[below] * depth / below;
  return kLeastDraftShare * costs.verify[0] * depth;
}

// Rounds without drafts to make tell what verifying costs, and those with all drafts then what making them does.
void DraftDepth::observe_first(Costs& costs, const TimedRound& round) const {
  const auto least = [&](double known) { return known == 0 ? round.seconds : std::min(known, round.seconds); };
  double& verify = costs.verify[round.n_verified];
  if (round.n_made == 0) verify = least(verify);
  if (round.n_made == max_depth_ && round.n_verified == max_depth_) costs.full_round_s = least(costs.full_round_s);
  if (!are_known(costs) || costs.full_round_s == 0) return;
  const double drafts_s = costs.full_round_s - costs.verify[max_depth_];
  costs.draft[max_depth_] = std::max(drafts_s, kLeastDraftShare * costs.verify[0] * max_depth_);
}

void DraftDepth::observe(const TimedRound& round) {
  if (max_depth_ == 0) return;
  Costs& costs = costs_of(round.n_sequences);
  double &verify = costs.verify[round.n_verified], &draft = costs.draft[round.n_made];
  seconds_ += round.seconds;
  ++costs.n_rounds;
  if (!are_known(costs)) return observe_first(costs, round);
  const bool draft_known = round.n_made == 0 || draft > 0;
  const double ratio = round.seconds / (verify_s(costs, round.n_verified) + draft_s(costs, round.n_made));
  const bool is_new = costs.n_rounds <= kFirstRounds;
  if (costs.is_neighbours && is_new) {
    const double scale = costs.n_rounds == 1 ? ratio : std::min(ratio, 1.0);
    for (double& s : costs.verify) s *= scale;
    for (double& s : costs.draft) s *= scale;
  } else if (verify > 0 && !draft_known) {
    draft = std::max(round.seconds - verify, kLeastDraftShare * costs.verify[0]);
  } else {
    const bool replaces = verify == 0 || !draft_known || (is_new && ratio < 1);
    const double factor = 1 + (replaces ? 1 : kTimeWeight) * (std::min(ratio, kOutlier) - 1);
    verify = factor * verify_s(costs, round.n_verified);
    if (round.n_made > 0) draft = factor * draft_s(costs, round.n_made);
  }
}

// ---- the depth -----------------------------------------------------------------------------------------------------

int DraftDepth::next(Acceptance sequences, int n_verified) {
  if (max_depth_ == 0) return 0;
  Costs& costs = costs_of(std::ssize(sequences));
  if (!are_known(costs)) return next_unknown(costs, n_verified);
  if (costs.n_trial_rounds_left > 0) {
    --costs.n_trial_rounds_left;
    return costs.trial;
  }
  const bool drafts_known = std::any_of(costs.draft.begin(), costs.draft.end(), [](double s) { return s > 0; });
  if (!drafts_known && n_verified > 0) return 0;
  const int best = fastest(costs, sequences);
  if (std::exchange(costs.best, best) != best) costs.rounds_to_trial = costs.trial_interval = kShortestInterval;
  if (--costs.rounds_to_trial > 0) return best;
  costs.rounds_to_trial = costs.trial_interval;
  costs.trial = next_trial(costs, sequences);
  if (costs.trial == best) return best;
  costs.rounds_to_trial = costs.trial_interval = std::min(2 * costs.trial_interval, kLongestInterval);
  trial_loss_s_ += trial_loss_s(costs, sequences, costs.trial);
  costs.n_trial_rounds_left = kTrialRounds - 1;
  return costs.trial;
}

int DraftDepth::first(Acceptance sequences) {
  const Costs& costs = costs_of(std::ssize(sequences));
  return max_depth_ > 0 && are_known(costs) ? fastest(costs, sequences) : max_depth_;
}

// All drafts, a round that only verifies them, plain ones until one is measured.
int DraftDepth::next_unknown(Costs& costs, int n_verified) const {
  if (++costs.n_unknown_rounds == 1 || costs.n_unknown_rounds > kMostUnknownRounds) return max_depth_;
  const bool verifies_or_did = n_verified == max_depth_ || costs.verify[max_depth_] > 0;
  return verifies_or_did ? 0 : max_depth_;
}

double DraftDepth::tokens_per_s(const Costs& costs, Acceptance sequences, int depth) const {
  double tokens = 0;
  for (const DraftAcceptance& s : sequences) tokens += s.expected_tokens(depth);
  return tokens / round_s(costs, depth) / (depth > 0 ? kLeastGain : 1);
}

int DraftDepth::fastest(const Costs& costs, Acceptance sequences) const {
  int best = 0;
  for (int depth = 1; depth <= max_depth_; ++depth) {
    if (tokens_per_s(costs, sequences, depth) > tokens_per_s(costs, sequences, best)) best = depth;
  }
  if (costs.best < 0) return best;
  const double in_use = tokens_per_s(costs, sequences, costs.best);
  return tokens_per_s(costs, sequences, best) > kClearlyFaster * in_use ? best : costs.best;
}

// One deeper, one shallower and plain decoding in turn; the best itself where no other would pay were every draft right, or
// where it would lose more than there is for trials.
int DraftDepth::next_trial(Costs& costs, Acceptance sequences) const {
  const double best = tokens_per_s(costs, sequences, costs.best);
  const int choices[] = {costs.best + 1, costs.best - 1, 0};
  for (size_t i = 0; i < std::size(choices); ++i) {
    const int trial = choices[costs.n_trials++ % std::size(choices)];
    if (trial < 0 || trial > max_depth_ || trial == costs.best) continue;
    const double most_tokens = static_cast<double>(sequences.size()) * (1 + trial);
    if (most_tokens / round_s(costs, trial) <= best) continue;
    if (trial_loss_s_ + trial_loss_s(costs, sequences, trial) <= kTrialShare * seconds_) return trial;
  }
  return costs.best;
}

// Of its rounds and the one that changes back, against the same tokens at the depth in use.
double DraftDepth::trial_loss_s(const Costs& costs, Acceptance sequences, int trial) const {
  const double pace = tokens_per_s(costs, sequences, trial) / tokens_per_s(costs, sequences, costs.best);
  const double of_rounds = kTrialRounds * round_s(costs, trial) * std::max(1 - pace, 0.0);
  return of_rounds + kSwitchShare * round_s(costs, costs.best);
}

}  // namespace levin
