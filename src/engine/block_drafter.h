// Drafts by a model's block drafter (DSpark), all of a block from one pass.
//
//   commit    nothing: what the drafter needs of a token are rows that the trunk's own step has written, drafted or not.
//             Rows of rejected drafts are overwritten when their positions are run again, as the trunk's are
//   propose   one pass over [last token, noise ...] of every sequence that is drafted for; then, one draft after another,
//             what the token before says of the next is added to the row's logits
//
// The pass always has the whole block, since its rows see each other: fewer drafts are the first ones of the same block. How
// many are verified is up to the depth of the round and the model's own confidence in each draft.
#pragma once

#include <vector>

#include "engine/drafter.h"

namespace levin {

class BlockDrafter final : public TaplessDrafter {
 public:
  explicit BlockDrafter(Runner& runner) : runner_(runner) {}

  int max_drafts() const override;
  void propose(DraftRound& round) override;

 private:
  // A sequence that is drafted for.
  struct Drafting {
    DraftEntry* entry = nullptr;
    int64_t n_drafts = 0;        // at most
    int64_t first_row = 0;       // of its logits
    double confidence = 1;       // in all drafts so far together
    std::vector<int32_t> block;  // the last token, then noise

    SequenceChunk chunk() const;
  };

  void run_blocks();
  // The drafts at place i, of those that have all before; false: there are none.
  bool choose(const DraftRound& round, int64_t i);

  Runner& runner_;
  std::vector<Drafting> drafting_;  // of the round
  View state_;                      // [sum of n_drafts, D]
  View logits_;                     // [sum of n_drafts, V]
};

}  // namespace levin
