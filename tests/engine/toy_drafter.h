// A drafter made by following docs/adding_a_drafter.md: it looks the last two tokens up in what the sequence has said so far
// and proposes what followed them. It has no caches, no weights and no taps.
#pragma once

#include "engine/drafter.h"

namespace levin::test {

class LookupDrafter final : public TaplessDrafter {
 public:
  int max_drafts() const override { return 4; }
  void propose(DraftRound& round) override;
};

// What followed the last earlier occurrence of the last two tokens, at most n of them.
std::vector<int32_t> looked_up(std::span<const int32_t> tokens, int64_t n);

}  // namespace levin::test
