// Between the passes of a round that verifies drafts and makes the next ones: what was accepted, how the steps of the draft layer
// continue from there, and where the next round begins. As ops they run where the tokens are chosen, so no pass waits for a host
// that reads them.
//
// The host makes the steps as if every draft were accepted and none doubted, since pages and shapes follow from that. These
// ops then edit the steps: tokens and positions become those that were chosen, and rows that are not to run become padding,
// as engine/build_step.h makes it: token and position 0, seq and slot -1, visible and window first_slot.
//
//   accept_drafts     after the target's choices, before the draft layer's step over the pairs (row, next token)
//   continue_drafts   after the choice of drafts, before the draft layer's step over (its own row, draft)
//   carry_drafts      after the choice of the last drafts, before the target's step of the next round, which verifies them; and
//                     again before accept_drafts of that round, for the draft layer's step over the same rows
//
// A sequence's rows depend on the sequence's own words alone. No sums.
#pragma once

#include <cstdint>

#include "base/draft_chain.h"
#include "ops/context.h"
#include "ops/logits.h"
#include "tensor/view.h"

namespace levin::ops {

// What is edited of a step of the draft layer (model/step.h): all [T] i32.
struct EditedStep {
  View tokens;
  View positions;
  View seq;
  View slot;     // position + first_slot
  View visible;  // slot + 1
  View window;   // max(first_slot, visible - n_window); empty: the model has none
  int32_t first_slot = 0;
  int64_t n_window = 0;
};

// Row by row of a sequence, from n_known on: the row is right, and so is the next one if the chosen token is what that one
// computed from, tokens[row] as it comes in. From the first row on that is not right rows become padding; the others get
// their chosen tokens. A row that is reached and has a fault, or whose choice is not sound, ends the sequence: all of its rows
// become padding. A chain gets the rule, the position and the row where it starts: wanted[chain], any row of a sequence that
// ends; and as many drafts as there is room for, none if the sequence ends. Its next_token is read only where one was chosen.
struct AcceptDrafts {
  View chosen;     // [M, kChosenTokenWords] i32: of ChosenToken
  View faults;     // [T] i32, row status of the target's step
  View sequences;  // [B, kVerifiedRowsWords] i32: of VerifiedRows
  View chains;     // [N, kDraftChainWords] i32: of DraftChain
  EditedStep step;
  View wanted;  // [W >= N] i32: the first N are written
};
void accept_drafts(OpContext& ctx, const AcceptDrafts& a);

// Chain n takes chosen[n] as its next draft, and row n of the step runs it. The chain ends, and the row becomes padding, if
// the choice is not sound, if it has all drafts that are wanted, or if confidence, which the draft's probability is multiplied
// to unless it is the last one, falls below min_confidence.
struct ContinueDrafts {
  View chosen;      // [N, kChosenTokenWords] i32: of ChosenToken
  View chains;      // [N, kDraftChainWords] i32: of DraftChain
  EditedStep step;  // T >= N
  double min_confidence = 0;
};
void continue_drafts(OpContext& ctx, const ContinueDrafts& a);

// Of sequence i the rows i * R + j, j < R, of a step: row j < n has the token j + shift of a list, and the position
// next_position + j; the others become padding. The list is chain which[i]'s next_token and its drafts, with chosen[which[i]] as
// the last if it is one that continue_drafts would take; then 0. n: next_token and the drafts; 0 if the sequence has ended, by
// n_committed 0 or room below 0.
// For row j rules[i * R + j] becomes the chain's with the position of the token after next_token and j drafts.
// Of the next round `sequences` gets n as n_rows, `next` a chain's rule, room and position as accept_drafts takes them.
struct CarryDrafts {
  View chosen;            // [N, kChosenTokenWords] i32: of ChosenToken
  View chains;            // [N, kDraftChainWords] i32: of DraftChain, as the last continue_drafts left them
  View which;             // [B] i32, below N
  EditedStep step;        // T >= B * rows_each
  int32_t rows_each = 1;  // R
  int32_t shift = 0;      // 0: what the rows compute from; 1: what follows it, as the draft layer takes it
  View rules = {};        // [B * R, kChoiceRuleWords] i32: of ChoiceRule
  View sequences = {};    // [B, kVerifiedRowsWords] i32: of VerifiedRows
  View next = {};         // [B, kDraftChainWords] i32: of DraftChain; these three may be empty, all together
};
void carry_drafts(OpContext& ctx, const CarryDrafts& a);

}  // namespace levin::ops
