#include "grammar/constraint.h"

#include <algorithm>
#include <utility>

namespace levin::grammar {

Constraint::Constraint(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), stacks_(grammar_), walk_(stacks_) {}

Constraint::Nearness Constraint::nearness_of(const Place& place) const {
  const CountRange& range = grammar_.count_of(place.state);
  return {.n_needed = std::clamp<int64_t>(range.min - place.count, 0, far()),
          .n_allowed = std::clamp<int64_t>(range.max - place.count, 0, far())};
}

namespace {

uint64_t key_of(StateId state, int64_t n_needed, int64_t n_allowed) {
  static_assert(Vocabulary::kMaxTokenBytes < (1 << 15));
  return static_cast<uint64_t>(state) << 32 | static_cast<uint64_t>(n_needed) << 16 | static_cast<uint64_t>(n_allowed);
}

}  // namespace

const StateTokens& Constraint::tokens_at(const Place& place) {
  const Nearness near = nearness_of(place);
  if (near.n_allowed == far()) return far_from_limit(place);
  const uint64_t key = key_of(place.state, near.n_needed, near.n_allowed);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, near_limit(place, static_cast<size_t>(near.n_allowed))).first->second;
}

const StateTokens& Constraint::far_from_limit(const Place& place) {
  const uint64_t key = key_of(place.state, nearness_of(place).n_needed, far());
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  StateTokens out;
  out.inside.assign(vocabulary_->n_mask_words(), 0);
  stacks_.lift_limit(grammar_.state(place.state).rule);
  add_walked(vocabulary_->texts(), place, &out);
  stacks_.lift_limit(-1);
  out.rests.sort();
  return known_.emplace(key, std::move(out)).first->second;
}

// A token counts at most once a byte, so one of no more bytes than may be counted does what it does without a limit. That
// holds for calls of the rule inside it too, which have all of the count before them.
StateTokens Constraint::near_limit(const Place& place, size_t n_allowed) {
  const StateTokens& free = far_from_limit(place);
  StateTokens out{.inside = free.inside, .rests = {}};
  const SortedTexts longer = vocabulary_->texts().longer_than(n_allowed);
  for (const SortedTexts::Entry& entry : longer.entries()) {
    out.inside[static_cast<size_t>(entry.token) / 64] &= ~(uint64_t{1} << (entry.token % 64));
  }
  for (const SortedTexts::Entry& rest : free.rests.entries()) {
    if (vocabulary_->text(rest.token).size() <= n_allowed) out.rests.add(rest.text, rest.token);
  }
  add_walked(longer, place, &out);
  out.rests.sort();
  return out;
}

void Constraint::add_walked(const SortedTexts& texts, const Place& place, StateTokens* out) {
  const Place alone{kBottom, place.state, place.count};
  walk_.run(
      texts, {&alone, 1},
      [&](const SortedTexts::Entry& entry) {
        out->inside[static_cast<size_t>(entry.token) / 64] |= uint64_t{1} << (entry.token % 64);
      },
      [&](const SortedTexts::Entry& entry, size_t n) { out->rests.add(entry.text.substr(n), entry.token); });
}

}  // namespace levin::grammar
