// The MTP layer's drafts of a round, enqueued on a device after the trunk and the head that verify the last ones.
//
//   extend   over all rows of the round, of which those that are not accepted become padding (ops::accept_drafts)
//   chain    a head for the first draft, then a step and a head for each further one; a sequence whose chain has ended has
//            padding in it (ops::continue_drafts), and a step that has nothing else does not run
//
// A round ahead verifies the drafts of the round before, whose number and places the device alone knows (ops::carry_drafts).
//
// The host makes every step as if all drafts were accepted and none doubted, for which the scheduler has secured the pages, and
// reads the choices when all is done. Rows of a sequence depend on its own alone, padding between them or not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "ops/draft_steps.h"

namespace levin {

class EnqueuedDrafts {
 public:
  explicit EnqueuedDrafts(Runner& runner) : runner_(runner) {}

  // Whether the pages of a sequence have room for all that its drafts may write.
  bool has_room(const EnqueuedEntry& entry, int depth) const;

  // Of a round that has a rule for every token, and room.
  void start(const EnqueuedRound& round);

  // Whether a round may follow before the results of this one are there: all of its sequences have chains.
  bool is_followed() const { return is_followed_; }
  // Of a round that follows `before`; called before start().
  CarriedRows carry(const EnqueuedRound& round, const EnqueuedDrafts& before);

  // What came of a sequence that gives tokens, once the runner has waited.
  struct Result {
    int64_t n_committed = 0;           // rows that the device found right
    std::vector<ChosenToken> choices;  // [depth]; those after the end of its chain mean nothing
  };
  // nullopt: the sequence had no room for drafts.
  std::optional<Result> result_of(const DraftState& state) const;

 private:
  void describe(const EnqueuedRound& round);
  void extend(const EnqueuedRound& round);
  void continue_chains(const EnqueuedRound& round, int step);
  View rules_of_chains() const { return words_.slice_last(0, kChoiceRuleWords); }
  ops::EditedStep edited(const Step& step) const;

  Runner& runner_;
  bool is_followed_ = false;
  std::vector<EnqueuedEntry> chains_;  // those that drafts are made for
  ops::CarryDrafts carried_;           // of a round ahead, whatever the step
  View rules_;                         // of a round ahead: [rows, kChoiceRuleWords] i32, on the device
  View sequences_;                     // [B, kVerifiedRowsWords] i32, on the device
  View words_;                         // [N, kDraftChainWords] i32, on the device
  View words_on_host_;                 // there once the runner has waited
  ForwardRows rows_;                   // of the last MTP step, [N, ...]
  std::vector<HeadCall> heads_;        // one for each draft
};

}  // namespace levin
