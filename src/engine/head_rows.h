// Rows on their way through the head: what goes in, and what a token is chosen from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops/logits.h"

namespace levin {

// A row of hidden states, and how its token is chosen.
struct HeadRow {
  int32_t number = 0;  // among the hidden states
  // How, if logits and position alone decide. A device then chooses; the CPU leaves it to the caller, who has the logits.
  std::optional<ChoiceRule> rule;
};

// Its logits [V], or its token if that was chosen where the logits are.
struct HeadResult {
  std::span<const float> logits;
  std::optional<ChosenToken> chosen;
};

}  // namespace levin
