// Places in a grammar, and what a byte makes of them.
//
// A place is a state with its rule's count, above the places to which the open rules return. Where a text may be read in
// several ways there are several places; a text is possible while there is one. Rules that call each other in many ways
// make many stacks of few places, n^k at a depth of k, so stacks are a graph: a place stands on a floor, the set of places
// to which its rule returns. All calls of a rule at one point of a text share a floor, and so do equal sets.
//
// Places, steps and floors are bounded by the states of the grammar and the points at which the open rules were called,
// whatever the number of stacks. Steps are counted and may be limited (limit_steps).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "grammar/place_set.h"
#include "grammar/rules.h"
#include "grammar/vocabulary.h"

namespace levin::grammar {

inline bool has_ended(std::span<const Place> places) {
  return std::any_of(places.begin(), places.end(), [](const Place& p) { return p.state == kEnd; });
}

class Stacks {
 public:
  explicit Stacks(const Grammar& grammar);

  // Sets `out` to the place and all that is reached from it without a byte. Only those from which a byte or token leads
  // on, and the end, are kept.
  void enter(const Place& place, std::vector<Place>& out);
  // Sets `out`, which is not `places`, to where they are after the byte.
  void read(std::span<const Place> places, uint8_t byte, std::vector<Place>& out);
  void read_token(std::span<const Place> places, int32_t token, std::vector<Place>& out);
  // Sets `out` to where a rule on this floor continues once it has ended.
  void leave(int32_t below, std::vector<Place>& out);

  // Whether an edge of this kind may be taken from the place.
  bool passes(EdgeKind kind, const Place& place) const;

  // While set, this rule's count may pass its maximum.
  void lift_limit(RuleId rule) { lifted_ = rule; }

  size_t n_floors() const { return floors_.size(); }
  void forget_floors(size_t n_kept);  // places on others are gone

  // Counts from 0. After more steps than that all is left undone: `out` is empty, until the next limit.
  void limit_steps(size_t max_steps) {
    n_steps_ = 0;
    max_steps_ = max_steps;
  }
  void count_steps(size_t n) { n_steps_ += n; }
  size_t n_steps() const { return n_steps_; }
  bool gave_up() const { return n_steps_ > max_steps_; }

 private:
  struct Floor {
    size_t first = 0;  // of its places in returns_; they end where those of the next begin
    size_t hash = 0;
    int32_t next = kBottom;  // in its bucket
    uint64_t left_in = 0;    // the move in which a rule ended on it
  };
  // The calls of a rule in the present move.
  struct Call {
    std::vector<Place> returns;
    bool ended = false;       // without a byte: later calls continue at once
    int32_t floor = kNotYet;  // once the move is over
  };
  struct CallOfRule {
    uint64_t move = 0;
    size_t call = 0;
  };
  static constexpr int32_t kNotYet = std::numeric_limits<int32_t>::min();
  // In the present move, places may stand on a call instead of a floor.
  static constexpr int32_t below_of(size_t call) { return -2 - static_cast<int32_t>(call); }
  static constexpr size_t call_of(int32_t below) { return static_cast<size_t>(-2 - below); }

  void begin();
  void finish(std::vector<Place>& out);
  void expand(const Place& place);
  void take_call(const Place& place, const CallEdge& edge);
  Call& call_of_rule(RuleId rule);
  void end_on(int32_t below);
  bool is_alone(const Place& place) const;
  Place after(EdgeKind kind, const Place& place, StateId target) const {
    return {place.below, target, place.count + (kind == EdgeKind::kCounts ? 1 : 0)};
  }
  int32_t settled(int32_t below);
  int32_t floor_of(std::span<const Place> returns);
  std::span<const Place> returns_to(int32_t floor) const;
  void enlarge_buckets();

  const Grammar& grammar_;
  std::vector<Floor> floors_;
  std::vector<Place> returns_;    // of all floors, one after the other
  std::vector<int32_t> buckets_;  // by hash: the last floor
  RuleId lifted_ = -1;
  size_t n_steps_ = 0, max_steps_ = std::numeric_limits<size_t>::max();

  // Of the present move: a byte, token, or whatever else leads to new places.
  uint64_t move_ = 0;
  PlaceSet reached_, settled_;
  std::vector<Place> kept_;
  std::vector<Call> calls_;  // the first n_calls_; the others are kept for their memory
  size_t n_calls_ = 0;
  std::vector<CallOfRule> call_of_rule_;
};

// Reads sorted texts from the same places, each byte that neighbours share once.
class TextWalk {
 public:
  explicit TextWalk(Stacks& stacks) : stacks_(stacks) {}

  // possible(entry): the whole text can be read. left(entry, n): the rule at the bottom may end after the first n bytes
  // of it, of which some are left. Ends early where the stacks give up.
  template <class Possible, class Left>
  void run(const SortedTexts& texts, std::span<const Place> start, const Possible& possible, const Left& left) {
    if (places_.empty()) places_.resize(1);
    places_[0].assign(start.begin(), start.end());
    const size_t n_floors = stacks_.n_floors();
    floors_.assign(1, n_floors);
    ends_.clear();
    size_t n_read = 0;  // bytes of the text before that were read
    const std::vector<SortedTexts::Entry>& entries = texts.entries();
    for (size_t i = 0; i < entries.size() && !stacks_.gave_up();) {
      const SortedTexts::Entry& entry = entries[i];
      n_read = std::min(n_read, entry.n_shared);
      while (!ends_.empty() && ends_.back() > n_read) ends_.pop_back();
      stacks_.forget_floors(floors_[n_read]);
      floors_.resize(n_read + 1);
      bool stuck = false;
      while (n_read < entry.text.size() && !stuck) stuck = !read(entry.text, n_read);
      if (!stuck) possible(entry);
      const size_t next = stuck ? texts.past(i, n_read) : i + 1;  // those between are stuck at the same byte
      if (ends_.empty()) i = next;
      for (; i < next; ++i) {
        for (const size_t end : ends_) {
          if (end < entries[i].text.size()) left(entries[i], end);
        }
      }
    }
    stacks_.forget_floors(n_floors);
  }

 private:
  bool read(std::string_view text, size_t& n_read) {
    if (places_.size() < n_read + 2) places_.resize(n_read + 2);
    std::vector<Place>& next = places_[n_read + 1];
    stacks_.read(places_[n_read], static_cast<uint8_t>(text[n_read]), next);
    if (next.empty()) return false;
    ++n_read;
    floors_.push_back(stacks_.n_floors());
    if (has_ended(next)) ends_.push_back(n_read);
    return true;
  }

  Stacks& stacks_;
  std::vector<std::vector<Place>> places_;  // after each number of bytes
  std::vector<size_t> floors_;              // how many there were then
  std::vector<size_t> ends_;                // numbers of bytes after which the rule at the bottom may end
};

}  // namespace levin::grammar
