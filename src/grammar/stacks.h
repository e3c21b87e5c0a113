// Places in a grammar, and what a byte makes of them.
//
// A place is a state with its rule's count, above the places to which the open rules return: a stack, whose tail others
// share. Where a text may be read in several ways there are several places; a text is possible while there is one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/rules.h"
#include "grammar/vocabulary.h"

namespace levin::grammar {

constexpr int32_t kBottom = -1;  // no place below: the rule at the bottom ends the text, or the part that is looked at
constexpr StateId kEnd = -1;     // the state of a place at which it has ended

struct Place {
  int32_t below = kBottom;  // index of a frame
  StateId state = kEnd;
  int64_t count = 0;
};

class Stacks {
 public:
  explicit Stacks(const Grammar& grammar) : grammar_(grammar) {}

  // Adds the place, and all that is reached from it without a byte. Only those from which a byte or token leads on, and
  // the end, are kept.
  void enter(const Place& place, std::vector<Place>& out);
  // Adds where the places are after the byte.
  void read(std::span<const Place> places, uint8_t byte, std::vector<Place>& out);
  void read_token(std::span<const Place> places, int32_t token, std::vector<Place>& out);
  // Adds where a rule that ends above `below` continues.
  void leave(int32_t below, std::vector<Place>& out);

  // Whether an edge of this kind may be taken from the place.
  bool passes(EdgeKind kind, const Place& place) const;

  // While set, this rule's count may pass its maximum.
  void lift_limit(RuleId rule) { lifted_ = rule; }

  size_t n_frames() const { return frames_.size(); }
  void forget_frames(size_t n_kept) { frames_.resize(n_kept); }  // places above them are gone

 private:
  bool same(const Place& a, const Place& b) const;
  void keep(const Place& place, std::vector<Place>& out) const;
  Place after(EdgeKind kind, const Place& place, StateId target) const {
    return {place.below, target, place.count + (kind == EdgeKind::kCounts ? 1 : 0)};
  }

  const Grammar& grammar_;
  std::vector<Place> frames_;
  RuleId lifted_ = -1;
};

inline bool has_ended(std::span<const Place> places) {
  return std::any_of(places.begin(), places.end(), [](const Place& p) { return p.state == kEnd; });
}

// Reads sorted texts from the same places, each byte that neighbours share once.
class TextWalk {
 public:
  explicit TextWalk(Stacks& stacks) : stacks_(stacks) {}

  // possible(entry): the whole text can be read. left(entry, n): the rule at the bottom may end after the first n bytes
  // of it, of which some are left.
  template <class Possible, class Left>
  void run(const SortedTexts& texts, std::span<const Place> start, const Possible& possible, const Left& left) {
    if (places_.empty()) places_.resize(1);
    places_[0].assign(start.begin(), start.end());
    const size_t n_frames = stacks_.n_frames();
    frames_.assign(1, n_frames);
    ends_.clear();
    size_t n_read = 0;   // bytes of the text before that were read
    bool stuck = false;  // its next byte could not be
    for (const SortedTexts::Entry& entry : texts.entries()) {
      if (stuck && entry.n_shared > n_read) {
        for (const size_t end : ends_) left(entry, end);
        continue;
      }
      n_read = std::min(n_read, entry.n_shared);
      while (!ends_.empty() && ends_.back() > n_read) ends_.pop_back();
      stuck = false;
      stacks_.forget_frames(frames_[n_read]);
      frames_.resize(n_read + 1);
      while (n_read < entry.text.size() && !stuck) stuck = !read(entry.text, n_read);
      if (!stuck) possible(entry);
      for (const size_t end : ends_) {
        if (end < entry.text.size()) left(entry, end);
      }
    }
    stacks_.forget_frames(n_frames);
  }

 private:
  bool read(std::string_view text, size_t& n_read) {
    if (places_.size() < n_read + 2) places_.resize(n_read + 2);
    std::vector<Place>& next = places_[n_read + 1];
    next.clear();
    stacks_.read(places_[n_read], static_cast<uint8_t>(text[n_read]), next);
    if (next.empty()) return false;
    ++n_read;
    frames_.push_back(stacks_.n_frames());
    if (has_ended(next)) ends_.push_back(n_read);
    return true;
  }

  Stacks& stacks_;
  std::vector<std::vector<Place>> places_;  // after each number of bytes
  std::vector<size_t> frames_;              // how many there were then
  std::vector<size_t> ends_;                // numbers of bytes after which the rule at the bottom may end
};

}  // namespace levin::grammar
