#include "grammar/stacks.h"

namespace levin::grammar {

Stacks::Stacks(const Grammar& grammar) : grammar_(grammar), buckets_(16, kBottom), call_of_rule_(grammar.n_rules()) {}

bool Stacks::passes(EdgeKind kind, const Place& place) const {
  if (kind == EdgeKind::kPlain) return true;
  const CountRange& range = grammar_.count_of(place.state);
  if (kind == EdgeKind::kGuarded) return place.count >= range.min;
  return place.count < range.max || grammar_.state(place.state).rule == lifted_;
}

void Stacks::begin() {
  ++move_;
  reached_.clear();
  kept_.clear();
  n_calls_ = 0;
}

// Expands what was reached till nothing new is, and puts the places on floors.
void Stacks::finish(std::vector<Place>& out) {
  out.clear();
  for (size_t i = 0; i < reached_.places().size() && !gave_up(); ++i) {
    const Place place = reached_.places()[i];  // a copy: expanding it adds others
    expand(place);
  }
  if (gave_up()) return;
  if (n_calls_ == 0) {
    out.assign(kept_.begin(), kept_.end());
    return;
  }
  settled_.clear();
  for (const Place& place : kept_) settled_.add({settled(place.below), place.state, place.count});
  if (!gave_up()) out.assign(settled_.places().begin(), settled_.places().end());
}

void Stacks::expand(const Place& place) {
  ++n_steps_;
  if (place.state == kEnd) return kept_.push_back(place);
  const State& s = grammar_.state(place.state);
  if (!s.bytes.empty() || !s.tokens.empty()) kept_.push_back(place);
  if (s.is_end && place.count >= grammar_.rule(s.rule).count.min) end_on(place.below);
  n_steps_ += s.calls.size();
  for (const CallEdge& edge : s.calls) {
    if (passes(edge.kind, place)) take_call(place, edge);
  }
}

void Stacks::take_call(const Place& place, const CallEdge& edge) {
  const Place back = after(edge.kind, place, edge.target);
  const StateId start = grammar_.rule(edge.rule).start;
  const State& target = grammar_.state(edge.target);
  const bool only_ends = target.is_end && target.bytes.empty() && target.calls.empty() && target.tokens.empty() &&
                         back.count >= grammar_.rule(target.rule).count.min;
  if (only_ends) {  // a call that comes last returns to where its caller does
    reached_.add({place.below, start, 0});
    return;
  }
  Call& call = call_of_rule(edge.rule);
  call.returns.push_back(back);
  reached_.add({below_of(call_of_rule_[static_cast<size_t>(edge.rule)].call), start, 0});
  if (call.ended) reached_.add(back);
}

Stacks::Call& Stacks::call_of_rule(RuleId rule) {
  CallOfRule& known = call_of_rule_[static_cast<size_t>(rule)];
  if (known.move != move_) {
    known = {.move = move_, .call = n_calls_++};
    if (calls_.size() < n_calls_) calls_.emplace_back();
    Call& fresh = calls_[known.call];
    fresh.returns.clear();
    fresh.ended = false;
    fresh.floor = kNotYet;
  }
  return calls_[known.call];
}

void Stacks::end_on(int32_t below) {
  if (below == kBottom) {
    reached_.add({});
    return;
  }
  if (below < kBottom) {
    Call& call = calls_[call_of(below)];
    call.ended = true;
    n_steps_ += call.returns.size();
    for (const Place& place : call.returns) reached_.add(place);
    return;
  }
  Floor& floor = floors_[static_cast<size_t>(below)];
  if (floor.left_in == move_) return;
  floor.left_in = move_;
  const std::span<const Place> returns = returns_to(below);
  n_steps_ += returns.size();
  for (const Place& place : returns) reached_.add(place);
}

// The floor that the call has become. No rule calls itself before anything was matched (rules.h), so this ends.
int32_t Stacks::settled(int32_t below) {
  if (below >= kBottom) return below;
  Call& call = calls_[call_of(below)];
  if (call.floor != kNotYet) return call.floor;
  for (Place& place : call.returns) place.below = settled(place.below);
  n_steps_ += call.returns.size();
  std::sort(call.returns.begin(), call.returns.end());
  call.returns.erase(std::unique(call.returns.begin(), call.returns.end()), call.returns.end());
  call.floor = floor_of(call.returns);
  return call.floor;
}

std::span<const Place> Stacks::returns_to(int32_t floor) const {
  const auto i = static_cast<size_t>(floor);
  const size_t first = floors_[i].first, end = i + 1 < floors_.size() ? floors_[i + 1].first : returns_.size();
  return std::span(returns_).subspan(first, end - first);
}

// The same for equal sets: else a rule that is called at every byte would have a floor for each.
int32_t Stacks::floor_of(std::span<const Place> returns) {
  size_t hash = returns.size();
  for (const Place& place : returns) hash = hash * 0x9e3779b97f4a7c15 + hash_of(place);
  hash ^= hash >> 32;
  for (int32_t f = buckets_[hash & (buckets_.size() - 1)]; f != kBottom; f = floors_[static_cast<size_t>(f)].next) {
    const std::span<const Place> others = returns_to(f);
    if (floors_[static_cast<size_t>(f)].hash == hash &&
        std::equal(returns.begin(), returns.end(), others.begin(), others.end()))
      return f;
  }
  if (floors_.size() >= buckets_.size()) enlarge_buckets();
  int32_t& last = buckets_[hash & (buckets_.size() - 1)];
  const auto out = static_cast<int32_t>(floors_.size());
  floors_.push_back({.first = returns_.size(), .hash = hash, .next = last});
  last = out;
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  return out;
}

// Each bucket has the latest floor first, so that forgetting the latest takes them from the front.
void Stacks::enlarge_buckets() {
  buckets_.assign(2 * buckets_.size(), kBottom);
  for (size_t i = 0; i < floors_.size(); ++i) {
    int32_t& last = buckets_[floors_[i].hash & (buckets_.size() - 1)];
    floors_[i].next = last;
    last = static_cast<int32_t>(i);
  }
}

void Stacks::forget_floors(size_t n_kept) {
  if (floors_.size() <= n_kept) return;
  for (size_t i = floors_.size(); i-- > n_kept;) {
    buckets_[floors_[i].hash & (buckets_.size() - 1)] = floors_[i].next;
  }
  returns_.resize(floors_[n_kept].first);
  floors_.resize(n_kept);
}

void Stacks::enter(const Place& place, std::vector<Place>& out) {
  begin();
  reached_.add(place);
  finish(out);
}

void Stacks::leave(int32_t below, std::vector<Place>& out) {
  begin();
  end_on(below);
  finish(out);
}

// Nothing else is reached from it without a byte.
bool Stacks::is_alone(const Place& place) const {
  if (place.state == kEnd) return false;
  const State& s = grammar_.state(place.state);
  return s.calls.empty() && !s.is_end && !(s.bytes.empty() && s.tokens.empty());
}

void Stacks::read(std::span<const Place> places, uint8_t byte, std::vector<Place>& out) {
  begin();
  for (const Place& place : places) {
    ++n_steps_;
    if (place.state == kEnd) continue;
    for (const ByteEdge& edge : grammar_.state(place.state).bytes) {
      if (byte < edge.low || byte > edge.high || !passes(edge.kind, place)) continue;
      reached_.add(after(edge.kind, place, edge.target));
    }
  }
  // What nearly all bytes of strings and names come to.
  if (reached_.places().size() == 1 && is_alone(reached_.places()[0]) && !gave_up()) {
    out.assign(1, reached_.places()[0]);
    return;
  }
  finish(out);
}

void Stacks::read_token(std::span<const Place> places, int32_t token, std::vector<Place>& out) {
  begin();
  for (const Place& place : places) {
    ++n_steps_;
    if (place.state == kEnd) continue;
    for (const TokenEdge& edge : grammar_.state(place.state).tokens) {
      if (edge.token == token && passes(edge.kind, place)) reached_.add(after(edge.kind, place, edge.target));
    }
  }
  finish(out);
}

}  // namespace levin::grammar
