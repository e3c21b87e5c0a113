#include "grammar/constraint.h"

#include <algorithm>
#include <utility>

namespace levin::grammar {

Constraint::Constraint(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), stacks_(grammar_), walk_(stacks_) {}

// A limit that no token can reach is as good as none, so counts far from both are the same.
uint64_t Constraint::key_of(const Place& place) const {
  static_assert(Vocabulary::kMaxTokenBytes < (1 << 15));
  const CountRange& range = grammar_.count_of(place.state);
  const int64_t far = static_cast<int64_t>(vocabulary_->longest_bytes()) + 1;
  const int64_t n_needed = std::clamp<int64_t>(range.min - place.count, 0, far);
  const int64_t n_allowed = std::clamp<int64_t>(range.max - place.count, 0, far);
  return static_cast<uint64_t>(place.state) << 32 | static_cast<uint64_t>(n_needed) << 16 |
         static_cast<uint64_t>(n_allowed);
}

const StateTokens& Constraint::tokens_at(const Place& place) {
  const uint64_t key = key_of(place);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, work_out(place)).first->second;
}

StateTokens Constraint::work_out(const Place& place) {
  StateTokens out;
  out.inside.assign(vocabulary_->n_mask_words(), 0);
  const Place alone{kBottom, place.state, place.count};
  walk_.run(
      vocabulary_->texts(), {&alone, 1},
      [&](const SortedTexts::Entry& entry) {
        out.inside[static_cast<size_t>(entry.token) / 64] |= uint64_t{1} << (entry.token % 64);
      },
      [&](const SortedTexts::Entry& entry, size_t n) { out.rests.add(entry.text.substr(n), entry.token); });
  out.rests.sort();
  return out;
}

}  // namespace levin::grammar
