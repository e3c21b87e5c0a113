// Speculation as the loop sees it: a drafter, and how many drafts it is asked for.
//
// The depth is fixed, or adapts to acceptance and to the measured duration of rounds (draft_depth.h). It changes speed and
// never a token. Where drafts are enqueued it is chosen by what was known before the round.
#pragma once

#include <memory>
#include <optional>

#include "engine/draft_depth.h"
#include "engine/drafter.h"
#include "engine/round.h"

namespace levin {

struct SpeculationOptions {
  int max_depth = 0;          // drafts per round of a sequence at most; 0: off
  bool adapt_depth = false;   // fewer of them, or none, where that is faster
  double min_confidence = 0;  // of all drafts of a chain together, for it to get another one
};

class Speculation {
 public:
  Speculation(std::unique_ptr<Drafter> drafter, const SpeculationOptions& options);

  const Drafter& drafter() const { return *drafter_; }
  bool on() const { return options_.max_depth > 0; }
  int max_depth() const { return options_.max_depth; }
  int last_depth() const { return last_depth_; }  // of the drafts that the next round verifies
  const DraftAcceptance& typical() const {
    return typical_;
  }  // of all sequences so far: what a new one is expected to have

  // Before the round runs, of a drafter that enqueues: decides how many drafts it makes, and whether they are enqueued with it.
  void plan(Round& round);
  void give_up(const Round& round);       // one that was planned and does not run: the next has its depth
  CarriedRows carry(const Round& round);  // of a round ahead that enqueues, before its trunk
  void enqueue(const Round& round);       // after its head
  void observe(const Round& round);       // what verification made of the drafts
  void draft(Round& round);               // makes the next ones, for every sequence that continues
  void observe_time(const Round& round, double seconds);  // the round's duration

 private:
  EnqueuedRound enqueued_round(const Round& round) const;
  int choose_depth(const Round& round);

  std::unique_ptr<Drafter> drafter_;
  SpeculationOptions options_;
  DraftDepth depth_;
  DraftAcceptance typical_;
  int last_depth_ = 0;
  int decided_depth_ = 0;              // of the last round for which one was chosen, which may still be under way
  std::optional<int> given_up_depth_;  // chosen, and not used
};

}  // namespace levin
