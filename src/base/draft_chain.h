// How a chain of drafts takes its next one, and what the next round has of it (ops/draft_steps.h), for the CPU and for kernels,
// whose records of the same words are types of their own.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace levin {

// Adds a draft. Whether the chain continues after it.
template <class ChosenToken, class DraftChain>
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
template <class DraftChain>
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
template <class DraftChain>
LEVIN_HOST_DEVICE inline int32_t n_carried(const DraftChain& chain) {
  return chain.n_committed <= 0 || chain.room < 0 ? 0 : 1 + chain.n_drafts;
}

// The token that row i of them computes from; of the one after the last: 0.
template <class DraftChain>
LEVIN_HOST_DEVICE inline int32_t carried_token(const DraftChain& chain, int32_t i) {
  if (i == 0) return chain.next_token;
  return i <= chain.n_drafts ? chain.drafts[i - 1] : 0;
}

// The rule of the token that the first of them gives, which the chain has advanced with every step since.
template <class DraftChain>
LEVIN_HOST_DEVICE inline auto first_rule(const DraftChain& chain) {
  auto rule = chain.rule;
  rule.position -= static_cast<uint32_t>(chain.position + 1 - chain.next_position);
  return rule;
}

}  // namespace levin
