#include "grammar/matcher.h"

#include <algorithm>

namespace levin::grammar {

Matcher::Matcher(const Structure& structure, std::span<const int32_t> ends)
    : constraint_(structure.constraint),
      begins_after_(structure.begins_after),
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
  stacks_.enter({kBottom, constraint_->grammar().start(), 0}, scratch_);
  add_step(Phase::kInside, scratch_);
}

void Matcher::add_step(Phase phase, std::span<const Place> places) {
  steps_.push_back({phase, places_.size(), stacks_.n_frames()});
  places_.insert(places_.end(), places.begin(), places.end());
}

bool Matcher::is_end(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

std::span<const uint64_t> Matcher::mask() {
  switch (steps_.back().phase) {
    case Phase::kBefore:
      return mask_before_;
    case Phase::kEnded:
      return {};
    case Phase::kInside:
      break;
  }
  std::fill(mask_.begin(), mask_.end(), 0);
  for (const Place& place : places()) add_allowed(place);
  return mask_;
}

void Matcher::add_allowed(const Place& place) {
  if (place.state == kEnd) {
    for (const int32_t end : ends_) add_token(end);
    return;
  }
  for (const TokenEdge& edge : constraint_->grammar().state(place.state).tokens) {
    if (stacks_.passes(edge.kind, place)) add_token(edge.token);
  }
  const StateTokens& tokens = constraint_->tokens_at(place);
  for (size_t i = 0; i < mask_.size(); ++i) mask_[i] |= tokens.inside[i];
  if (tokens.rests.entries().empty() || place.below == kBottom) return;
  const size_t n_frames = stacks_.n_frames();
  scratch_.clear();
  stacks_.leave(place.below, scratch_);
  walk_.run(
      tokens.rests, scratch_, [&](const SortedTexts::Entry& entry) { add_token(entry.token); },
      [](const SortedTexts::Entry&, size_t) {});
  stacks_.forget_frames(n_frames);
}

bool Matcher::push(int32_t token) {
  const Phase phase = steps_.back().phase;
  if (phase == Phase::kEnded) {
    add_step(phase, {});
    return true;
  }
  scratch_.clear();
  if (phase == Phase::kBefore) {
    if (token == begins_after_) {
      stacks_.enter({kBottom, constraint_->grammar().start(), 0}, scratch_);
      add_step(Phase::kInside, scratch_);
    } else {
      add_step(phase, {});
    }
    return true;
  }
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
      scratch2_.clear();
      stacks_.read(scratch_, static_cast<uint8_t>(c), scratch2_);
      scratch_.swap(scratch2_);
    }
  }
  if (scratch_.empty()) {
    stacks_.forget_frames(steps_.back().n_frames);
    return false;
  }
  add_step(Phase::kInside, scratch_);
  return true;
}

void Matcher::pop() {
  if (steps_.size() == 1) return;
  places_.resize(steps_.back().first_place);
  steps_.pop_back();
  stacks_.forget_frames(steps_.back().n_frames);
}

bool Matcher::is_complete() const {
  const auto all = places();
  return steps_.back().phase == Phase::kInside &&
         std::all_of(all.begin(), all.end(), [](const Place& p) { return p.state == kEnd; });
}

}  // namespace levin::grammar
