#include "grammar/matcher.h"

#include <fmt/core.h>

#include <algorithm>

namespace levin::grammar {
namespace {

// More places than this are first tried together: what they have in common is then read once, but nothing of it can be
// kept for other masks.
constexpr size_t kFewPlaces = 8;
constexpr size_t kShareTogether = 10;  // for which one step of so many may go
constexpr size_t kOredPerStep = 64;    // words of a mask

}  // namespace

Error too_many_steps() {
  return {
      ErrorKind::kUsage,
      fmt::format("the structure can be read in too many ways at once: finding the tokens that may be next needs more "
                  "than {} steps. Use fewer alternatives, or let them begin differently",
                  kMaxSteps)};
}

Matcher::Matcher(const Structure& structure, std::span<const int32_t> ends, size_t max_steps)
    : constraint_(structure.constraint),
      begins_after_(structure.begins_after),
      max_steps_(max_steps),
      mask_(constraint_->vocabulary().n_mask_words(), 0),
      stacks_(constraint_->grammar()),
      walk_(stacks_) {
  for (const int32_t end : ends) {
    if (constraint_->vocabulary().text(end).empty()) ends_.push_back(end);
  }
  if (begins_after_ >= 0) {
    mask_before_.assign(mask_.size(), ~uint64_t{0});
    const auto shut_out = [&](int32_t token) {
      mask_before_[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
    };
    for (const int32_t token : ends) shut_out(token);
    for (const int32_t token : structure.not_before) shut_out(token);
    add_step(Phase::kBefore, {});
    return;
  }
  if (!begin()) add_step(Phase::kInside, {});  // nothing may follow
}

// False, and nothing done: over the limit.
bool Matcher::begin() {
  stacks_.limit_steps(max_steps_);
  stacks_.enter({kBottom, constraint_->grammar().start(), 0}, scratch_);
  over_limit_ = stacks_.gave_up();
  if (!over_limit_) add_step(Phase::kInside, scratch_);
  return !over_limit_;
}

void Matcher::add_step(Phase phase, std::span<const Place> places) {
  steps_.push_back({phase, places_.size(), stacks_.n_floors()});
  places_.insert(places_.end(), places.begin(), places.end());
}

bool Matcher::is_end(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

std::span<const uint64_t> Matcher::mask() {
  over_limit_ = false;
  stacks_.limit_steps(max_steps_);
  switch (steps_.back().phase) {
    case Phase::kBefore:
      return mask_before_;
    case Phase::kEnded:
      return {};
    case Phase::kInside:
      break;
  }
  std::fill(mask_.begin(), mask_.end(), 0);
  if (!add_together()) add_one_by_one();
  for (const Place& place : places()) add_marks(place);
  over_limit_ = stacks_.gave_up() || places().empty();
  if (over_limit_) std::fill(mask_.begin(), mask_.end(), 0);
  return mask_;
}

// What is no text.
void Matcher::add_marks(const Place& place) {
  if (place.state == kEnd) {
    for (const int32_t end : ends_) add_token(end);
    return;
  }
  for (const TokenEdge& edge : constraint_->grammar().state(place.state).tokens) {
    if (stacks_.passes(edge.kind, place)) add_token(edge.token);
  }
}

// Walks over the vocabulary from all places at once, which alternatives that share much need, since each alone would do
// nearly all of it again. False, and nothing done: a few places, or known, or such that share too little.
bool Matcher::add_together() {
  const std::span<const Place> all = places();
  if (all.size() <= kFewPlaces) return false;
  const auto known = [&](const Place& place) { return place.state == kEnd || constraint_->knows(place); };
  if (std::all_of(all.begin(), all.end(), known)) return false;
  stacks_.limit_steps(max_steps_ / kShareTogether);
  walk_.run(
      constraint_->vocabulary().texts(), all, [&](const SortedTexts::Entry& entry) { add_token(entry.token); },
      [](const SortedTexts::Entry&, size_t) {});
  if (!stacks_.gave_up()) return true;
  std::fill(mask_.begin(), mask_.end(), 0);
  stacks_.limit_steps(max_steps_);
  return false;
}

// Many places differ only in what is read much later: those that allow the same on the same floor count once.
void Matcher::add_one_by_one() {
  allowed_.clear();
  for (const Place& place : places()) {
    if (place.state == kEnd) continue;
    if (stacks_.gave_up()) return;
    const StateTokens* tokens = constraint_->tokens_at(place, max_steps_ - stacks_.n_steps());
    stacks_.count_steps(1 + constraint_->n_steps());
    if (tokens == nullptr) return;
    allowed_.emplace_back(place.below, tokens);
  }
  std::sort(allowed_.begin(), allowed_.end());
  allowed_.erase(std::unique(allowed_.begin(), allowed_.end()), allowed_.end());
  for (const auto& [below, tokens] : allowed_) add_allowed(below, *tokens);
}

void Matcher::add_allowed(int32_t below, const StateTokens& tokens) {
  if (stacks_.gave_up()) return;
  stacks_.count_steps(mask_.size() / kOredPerStep);
  for (size_t i = 0; i < mask_.size(); ++i) mask_[i] |= tokens.inside[i];
  if (tokens.rests.entries().empty() || below == kBottom) return;
  const size_t n_floors = stacks_.n_floors();
  stacks_.leave(below, scratch_);
  walk_.run(
      tokens.rests, scratch_, [&](const SortedTexts::Entry& entry) { add_token(entry.token); },
      [](const SortedTexts::Entry&, size_t) {});
  stacks_.forget_floors(n_floors);
}

bool Matcher::push(int32_t token) {
  over_limit_ = false;
  stacks_.limit_steps(max_steps_);
  const Phase phase = steps_.back().phase;
  if (phase == Phase::kInside) return push_inside(token);
  if (phase == Phase::kBefore && token == begins_after_) return begin();
  add_step(phase, {});
  return true;
}

bool Matcher::push_inside(int32_t token) {
  const std::string_view text = constraint_->vocabulary().text(token);
  if (text.empty()) {
    if (is_end(token) && has_ended(places())) {
      add_step(Phase::kEnded, {});
      return true;
    }
    stacks_.read_token(places(), token, scratch_);
  } else {
    scratch_.assign(places().begin(), places().end());
    for (const char c : text) {
      stacks_.read(scratch_, static_cast<uint8_t>(c), scratch2_);
      scratch_.swap(scratch2_);
    }
  }
  over_limit_ = stacks_.gave_up();
  if (over_limit_ || scratch_.empty()) {
    stacks_.forget_floors(steps_.back().n_floors);
    return false;
  }
  add_step(Phase::kInside, scratch_);
  return true;
}

void Matcher::pop() {
  if (steps_.size() == 1) return;
  places_.resize(steps_.back().first_place);
  steps_.pop_back();
  stacks_.forget_floors(steps_.back().n_floors);
}

bool Matcher::is_complete() const {
  const auto all = places();
  return steps_.back().phase == Phase::kInside && !all.empty() &&
         std::all_of(all.begin(), all.end(), [](const Place& p) { return p.state == kEnd; });
}

}  // namespace levin::grammar
