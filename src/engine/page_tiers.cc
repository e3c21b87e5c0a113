#include "engine/page_tiers.h"

#include <utility>

namespace levin {

PageTiers::PageTiers(int64_t max_memory_pages, std::unique_ptr<PageStore> disk)
    : disk_(std::move(disk)), memory_(max_memory_pages, first_key()) {}

bool PageTiers::has(const PageKey& key) const { return memory_.find(key) != nullptr || (disk_ && disk_->has(key)); }

PageTiers::Found PageTiers::find(const PageKey& key, const PagePlace& place) {
  if (const PageRecord* record = memory_.find(key)) return {.record = record};
  read_ = disk_ ? disk_->read(key, place) : std::nullopt;
  if (!read_) return {};
  const bool stays = memory_.wants(key, place.before);
  return {.record = stays ? &memory_.keep(key, place.before, std::move(*read_)) : &*read_, .from_disk = true};
}

void PageTiers::keep(const PageKey& key, const PagePlace& place, const std::function<PageRecord()>& copy) {
  const bool in_memory = memory_.wants(key, place.before);
  const bool on_disk = disk_ && disk_->wants(key, place.before);
  if (!in_memory && !on_disk) return;
  PageRecord record = copy();
  if (on_disk) disk_->write(key, place, record);
  if (in_memory) memory_.keep(key, place.before, std::move(record));
}

void PageTiers::use(std::span<const PageKey> path) {
  memory_.use(path);
  if (disk_) disk_->use(path);
}

}  // namespace levin
