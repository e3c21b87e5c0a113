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

uint64_t Constraint::key_at(const Place& place) const {
  const Nearness near = nearness_of(place);
  return key_of(place.state, near.n_needed, near.n_allowed);
}

const StateTokens* Constraint::found(uint64_t key) const {
  const auto found = known_.find(key);
  return found != known_.end() ? found->second : nullptr;
}

namespace {

// Looked at in the time of a step.
constexpr size_t kWordsPerStep = 16, kTextsPerStep = 16;

size_t hash_of(const StateTokens& tokens) {
  uint64_t hash = tokens.rests.entries().size();
  const auto add = [&](uint64_t value) { hash = (hash ^ hash >> 29 ^ value) * 0x9e3779b97f4a7c15; };
  for (const uint64_t word : tokens.inside) add(word);
  for (const SortedTexts::Entry& rest : tokens.rests.entries()) {
    add(static_cast<uint64_t>(rest.token) << 32 | rest.text.size());
  }
  return hash ^ hash >> 32;
}

bool same(const StateTokens& a, const StateTokens& b) {
  const auto& x = a.rests.entries();
  const auto& y = b.rests.entries();
  return a.inside == b.inside && std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const auto& r, const auto& s) {
           return r.token == s.token && r.text == s.text;
         });
}

}  // namespace

// Null: they were not all found.
const StateTokens* Constraint::keep(uint64_t key, StateTokens tokens) {
  stacks_.count_steps(tokens.inside.size() / kWordsPerStep);
  if (stacks_.gave_up()) return nullptr;
  tokens.rests.sort();
  const size_t hash = hash_of(tokens);
  const auto [first, end] = kept_.equal_range(hash);
  auto kept = std::find_if(first, end, [&](const auto& other) { return same(other.second, tokens); });
  if (kept == end) kept = kept_.emplace(hash, std::move(tokens));
  return known_.emplace(key, &kept->second).first->second;
}

bool Constraint::knows(const Place& place) const { return found(key_at(place)) != nullptr; }

const StateTokens* Constraint::tokens_at(const Place& place, size_t max_steps) {
  stacks_.limit_steps(max_steps);
  if (const StateTokens* known = found(key_at(place))) return known;
  const int64_t n_allowed = nearness_of(place).n_allowed;
  return n_allowed == far() ? far_from_limit(place) : near_limit(place, static_cast<size_t>(n_allowed));
}

const StateTokens* Constraint::far_from_limit(const Place& place) {
  const uint64_t key = key_of(place.state, nearness_of(place).n_needed, far());
  if (const StateTokens* known = found(key)) return known;
  StateTokens out;
  out.inside.assign(vocabulary_->n_mask_words(), 0);
  stacks_.lift_limit(grammar_.state(place.state).rule);
  add_walked(vocabulary_->texts(), place, &out);
  stacks_.lift_limit(-1);
  return keep(key, std::move(out));
}

// A token counts at most once a byte, so one of no more bytes than may be counted does what it does without a limit. That
// holds for calls of the rule inside it too, which have all of the count before them.
const StateTokens* Constraint::near_limit(const Place& place, size_t n_allowed) {
  const StateTokens* free = far_from_limit(place);
  if (free == nullptr) return nullptr;
  StateTokens out{.inside = free->inside, .rests = {}};
  const SortedTexts longer = vocabulary_->texts().longer_than(n_allowed);
  stacks_.count_steps(vocabulary_->texts().entries().size() / kTextsPerStep);
  for (const SortedTexts::Entry& entry : longer.entries()) {
    out.inside[static_cast<size_t>(entry.token) / 64] &= ~(uint64_t{1} << (entry.token % 64));
  }
  for (const SortedTexts::Entry& rest : free->rests.entries()) {
    if (vocabulary_->text(rest.token).size() <= n_allowed) out.rests.add(rest.text, rest.token);
  }
  add_walked(longer, place, &out);
  return keep(key_at(place), std::move(out));
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
