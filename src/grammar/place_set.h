// A place in a grammar, and sets of them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/rules.h"

namespace levin::grammar {

constexpr int32_t kBottom = -1;  // no place below: the rule at the bottom ends the text, or the part that is looked at
constexpr StateId kEnd = -1;     // the state of a place at which it has ended

struct Place {
  int32_t below = kBottom;  // the floor on which it stands: where its rule returns to (stacks.h)
  StateId state = kEnd;
  int64_t count = 0;
  auto operator<=>(const Place&) const = default;
};

size_t hash_of(const Place& place);

// In the order in which they were added. Emptying it costs nothing, and it keeps its memory.
class PlaceSet {
 public:
  bool add(const Place& place);  // false: it was there
  void clear();
  const std::vector<Place>& places() const { return places_; }

 private:
  struct Slot {
    uint64_t filling = 0;
    size_t index = 0;
  };
  Slot& slot_of(const Place& place);
  void enlarge();

  std::vector<Place> places_;
  std::vector<Slot> slots_ = std::vector<Slot>(16);  // a power of two; of this filling or empty
  uint64_t filling_ = 1;
};

}  // namespace levin::grammar
