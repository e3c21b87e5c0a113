#include "grammar/stacks.h"

namespace levin::grammar {

// Two stacks may have come to the same frames by different ways.
bool Stacks::same(const Place& a, const Place& b) const {
  const Place* x = &a;
  const Place* y = &b;
  while (true) {
    if (x->state != y->state || x->count != y->count) return false;
    if (x->below == y->below) return true;
    if (x->below == kBottom || y->below == kBottom) return false;
    x = &frames_[static_cast<size_t>(x->below)];
    y = &frames_[static_cast<size_t>(y->below)];
  }
}

void Stacks::keep(const Place& place, std::vector<Place>& out) const {
  for (const Place& other : out) {
    if (same(place, other)) return;
  }
  out.push_back(place);
}

bool Stacks::passes(EdgeKind kind, const Place& place) const {
  if (kind == EdgeKind::kPlain) return true;
  const CountRange& range = grammar_.count_of(place.state);
  if (kind == EdgeKind::kGuarded) return place.count >= range.min;
  return place.count < range.max || grammar_.state(place.state).rule == lifted_;
}

void Stacks::enter(const Place& place, std::vector<Place>& out) {
  if (place.state == kEnd) return keep(place, out);
  const State& s = grammar_.state(place.state);
  if (!s.bytes.empty() || !s.tokens.empty()) keep(place, out);
  if (s.is_end && place.count >= grammar_.rule(s.rule).count.min) leave(place.below, out);
  for (const CallEdge& edge : s.calls) {
    if (!passes(edge.kind, place)) continue;
    const Place back = after(edge.kind, place, edge.target);
    const State& target = grammar_.state(edge.target);
    const bool only_ends = target.is_end && target.bytes.empty() && target.calls.empty() && target.tokens.empty() &&
                           back.count >= grammar_.rule(target.rule).count.min;
    int32_t below = place.below;
    if (!only_ends) {  // a call that comes last returns to where its caller does
      frames_.push_back(back);
      below = static_cast<int32_t>(frames_.size()) - 1;
    }
    enter({below, grammar_.rule(edge.rule).start, 0}, out);
  }
}

void Stacks::leave(int32_t below, std::vector<Place>& out) {
  if (below == kBottom) return keep({}, out);
  const Place frame = frames_[static_cast<size_t>(below)];
  enter(frame, out);
}

void Stacks::read(std::span<const Place> places, uint8_t byte, std::vector<Place>& out) {
  for (const Place& place : places) {
    if (place.state == kEnd) continue;
    for (const ByteEdge& edge : grammar_.state(place.state).bytes) {
      if (byte < edge.low || byte > edge.high || !passes(edge.kind, place)) continue;
      enter(after(edge.kind, place, edge.target), out);
    }
  }
}

void Stacks::read_token(std::span<const Place> places, int32_t token, std::vector<Place>& out) {
  for (const Place& place : places) {
    if (place.state == kEnd) continue;
    for (const TokenEdge& edge : grammar_.state(place.state).tokens) {
      if (edge.token == token && passes(edge.kind, place)) enter(after(edge.kind, place, edge.target), out);
    }
  }
}

}  // namespace levin::grammar
