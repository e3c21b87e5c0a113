#include "engine/toy_drafter.h"

#include <algorithm>

namespace levin::test {

std::vector<int32_t> looked_up(std::span<const int32_t> tokens, int64_t n) {
  constexpr size_t kLength = 2;
  if (tokens.size() <= kLength) return {};
  const std::span<const int32_t> end = tokens.last(kLength), before = tokens.first(tokens.size() - 1);
  const auto found = std::find_end(before.begin(), before.end(), end.begin(), end.end());
  if (found == before.end()) return {};
  const auto first = tokens.begin() + (found - before.begin()) + kLength;
  return {first, first + std::min<int64_t>(n, tokens.end() - first)};
}

void LookupDrafter::propose(DraftRound& round) {
  for (DraftEntry& entry : round.entries) {
    if (entry.n_wanted > 0) entry.drafts = looked_up(entry.tokens, std::min<int64_t>(entry.n_wanted, round.depth));
  }
}

}  // namespace levin::test
