// A chain of drafts and the rows that verify it, as records of words that the host, the ops (ops/draft_steps.h) and their kernels
// share: how a chain takes its next draft, and what the next round has of it.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/token_choice.h"

namespace levin {

// The rows of one sequence in the target's step, and in the draft layer's step over the same rows. Eight words.
struct VerifiedRows {
  int32_t first_row = 0;
  int32_t n_rows = 0;
  int32_t n_known = 0;       // of the rows: the first ones, whose next tokens are a prompt's. All are right
  int32_t first_chosen = 0;  // in `chosen`: the token that follows the first of the others
  int32_t chain = -1;        // the chain of drafts that starts at the last right row; -1: none
  int32_t unused[3] = {};
};
constexpr int64_t kVerifiedRowsWords = sizeof(VerifiedRows) / 4;

constexpr int32_t kMostChainDrafts = 16;

// The drafts of one sequence in the making. Forty words.
struct DraftChain {
  ChoiceRule rule;            // of the next draft. The host's: of the first token that the target chooses
  double confidence = 1;      // of all drafts so far together
  int32_t n_wanted = 0;       // drafts, with those that there are; as many as there are: the chain has ended
  int32_t room = 0;           // one less than the tokens that may still follow, and so drafts; below 0: none may
  int32_t n_drafts = 0;       // that there are
  int32_t position = 0;       // of the row that the next draft is chosen from. The host's: of the row before the first
  int32_t n_committed = -1;   // rows of the sequence that are right; 0: it ends, since a row is at fault
  int32_t next_token = 0;     // the last that the target chose
  int32_t next_position = 0;  // its position: where the next round begins
  int32_t unused[7] = {};
  int32_t drafts[kMostChainDrafts] = {};  // those that there are
};
constexpr int64_t kDraftChainWords = sizeof(DraftChain) / 4;

// Adds a draft. Whether the chain continues after it.
LEVIN_HOST_DEVICE inline bool take_draft(const ChosenToken& chosen, double min_confidence, DraftChain& chain) {
  if (chain.n_drafts >= chain.n_wanted) return false;
  if (chosen.sound != 0) chain.drafts[chain.n_drafts++] = chosen.token;
  const bool wants_more = chosen.sound != 0 && chain.n_drafts < chain.n_wanted;
  if (wants_more) chain.confidence *= static_cast<double>(chosen.probability);
  if (wants_more && chain.confidence >= min_confidence) return true;
  chain.n_wanted = chain.n_drafts;
  return false;
}

// The target found the first n_right of the rows right, of which the first n_known have a prompt's tokens after them. Returns how
// many tokens it chose.
LEVIN_HOST_DEVICE inline int32_t start_chain(DraftChain& chain, int32_t n_known, int32_t n_right) {
  const int32_t n_chosen = n_right > n_known ? n_right - n_known : 0;
  chain.n_committed = n_right;
  chain.position += n_right;
  chain.rule.position += static_cast<uint32_t>(n_chosen);
  chain.room -= n_chosen;
  const int32_t room = n_right > 0 && chain.room > 0 ? chain.room : 0;
  chain.n_wanted = chain.n_wanted < room ? chain.n_wanted : room;
  chain.next_position = chain.position + 1;
  return n_chosen;
}

// How many rows the next round has: of the last chosen token and of the drafts; 0: the sequence has ended.
LEVIN_HOST_DEVICE inline int32_t n_carried(const DraftChain& chain) {
  return chain.n_committed <= 0 || chain.room < 0 ? 0 : 1 + chain.n_drafts;
}

// The token that row i of them computes from; of the one after the last: 0.
LEVIN_HOST_DEVICE inline int32_t carried_token(const DraftChain& chain, int32_t i) {
  if (i == 0) return chain.next_token;
  return i <= chain.n_drafts ? chain.drafts[i - 1] : 0;
}

// The rule of the token that the first of them gives, which the chain has advanced with every step since.
LEVIN_HOST_DEVICE inline ChoiceRule first_rule(const DraftChain& chain) {
  ChoiceRule rule = chain.rule;
  rule.position -= static_cast<uint32_t>(chain.position + 1 - chain.next_position);
  return rule;
}

}  // namespace levin
