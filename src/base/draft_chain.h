// How a chain of drafts takes its next one (ops/draft_steps.h), for the CPU and for kernels, whose records of the same words are
// types of their own.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace levin {

// Adds a draft. Whether the chain continues after it.
template <class ChosenToken, class DraftChain>
LEVIN_HOST_DEVICE inline bool take_draft(const ChosenToken& chosen, double min_confidence, DraftChain& chain) {
  if (chain.n_drafts >= chain.n_wanted) return false;
  if (chosen.sound != 0) ++chain.n_drafts;
  const bool wants_more = chosen.sound != 0 && chain.n_drafts < chain.n_wanted;
  if (wants_more) chain.confidence *= static_cast<double>(chosen.probability);
  if (wants_more && chain.confidence >= min_confidence) return true;
  chain.n_wanted = chain.n_drafts;
  return false;
}

// The target found the first n_right of the rows right, of which the first n_known have a prompt's tokens after them.
template <class DraftChain>
LEVIN_HOST_DEVICE inline void start_chain(DraftChain& chain, int32_t n_known, int32_t n_right) {
  const int32_t n_chosen = n_right > n_known ? n_right - n_known : 0;
  chain.n_committed = n_right;
  chain.position += n_right;
  chain.rule.position += static_cast<uint32_t>(n_chosen);
  chain.room -= n_chosen;
  const int32_t room = n_right > 0 && chain.room > 0 ? chain.room : 0;
  chain.n_wanted = chain.n_wanted < room ? chain.n_wanted : room;
}

}  // namespace levin
