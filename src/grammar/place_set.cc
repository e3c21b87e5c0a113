#include "grammar/place_set.h"

namespace levin::grammar {

size_t hash_of(const Place& place) {
  uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(place.below)) << 32 | static_cast<uint32_t>(place.state);
  h = (h ^ static_cast<uint64_t>(place.count) * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  h = (h ^ h >> 32) * 0x94d049bb133111eb;
  return h ^ h >> 29;
}

bool PlaceSet::add(const Place& place) {
  Slot& slot = slot_of(place);
  if (slot.filling == filling_) return false;
  slot = {.filling = filling_, .index = places_.size()};
  places_.push_back(place);
  if (2 * places_.size() > slots_.size()) enlarge();
  return true;
}

void PlaceSet::clear() {
  places_.clear();
  ++filling_;
}

PlaceSet::Slot& PlaceSet::slot_of(const Place& place) {
  size_t i = hash_of(place) & (slots_.size() - 1);
  while (slots_[i].filling == filling_ && places_[slots_[i].index] != place) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

void PlaceSet::enlarge() {
  slots_.assign(2 * slots_.size(), {});
  for (size_t i = 0; i < places_.size(); ++i) slot_of(places_[i]) = {.filling = filling_, .index = i};
}

}  // namespace levin::grammar
