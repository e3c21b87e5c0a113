#include "kv/prefix_index.h"

#include <utility>

namespace levin {

PrefixIndex::PrefixIndex(PagePool* pages, int64_t max_host_blocks, std::shared_ptr<PageStore> disk)
    : disk_(std::move(disk)), max_host_blocks_(max_host_blocks), memory_(max_host_blocks, first_key()) {
  if (pages != nullptr) pages_.emplace(*pages);
}

PrefixIndex::PrefixIndex(BlockRecords assumed) : PrefixIndex(nullptr, 0, nullptr) { assumed_ = std::move(assumed); }

bool PrefixIndex::has_record(const BlockKey& key) const {
  return !assumed_.empty() || memory_.find(key) != nullptr || (disk_ && disk_->has(key));
}

PrefixIndex::Found PrefixIndex::find_record(const BlockKey& key, const BlockPlace& place) {
  if (!assumed_.empty()) return {.record = assumed_[static_cast<size_t>(key[0]) % assumed_.size()]};
  if (std::shared_ptr<const BlockRecord> record = memory_.find(key)) return {.record = std::move(record)};
  std::optional<BlockRecord> read = disk_ ? disk_->read(key, place) : std::nullopt;
  if (!read) return {};
  auto record = std::make_shared<const BlockRecord>(std::move(*read));
  if (memory_.wants(key, place.before)) memory_.keep(key, place.before, record);
  return {.record = std::move(record), .from_disk = true};
}

void PrefixIndex::keep_record(const BlockKey& key, const BlockPlace& place, const std::function<BlockRecord()>& copy) {
  const bool in_memory = memory_.wants(key, place.before);
  const bool on_disk = disk_ && disk_->wants(key, place.before);
  if (!in_memory && !on_disk) return;
  auto record = std::make_shared<const BlockRecord>(copy());
  if (on_disk) disk_->write(key, place, *record);
  if (in_memory) memory_.keep(key, place.before, std::move(record));
}

void PrefixIndex::use_records(std::span<const BlockKey> path) {
  memory_.use(path);
  if (disk_) disk_->use(path);
}

}  // namespace levin
