#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/device_fault.h"

namespace levin {
namespace {

// Of records that are being copied: from here on the first is waited for.
constexpr int64_t kMostPendingBytes = int64_t{256} << 20;

}  // namespace

PrefixIndex::PrefixIndex(PagePool* pages, int64_t max_host_blocks, std::shared_ptr<PageStore> disk)
    : disk_(std::move(disk)), max_host_blocks_(max_host_blocks), memory_(max_host_blocks, first_key()) {
  if (pages != nullptr) pages_.emplace(*pages);
}

PrefixIndex::PrefixIndex(BlockRecords assumed) : PrefixIndex(nullptr, 0, nullptr) { assumed_ = std::move(assumed); }

PrefixIndex::~PrefixIndex() {
  while (!pending_.empty() && finish_first().ok()) continue;
}

bool PrefixIndex::has_record(const BlockKey& key) const {
  return !assumed_.empty() || memory_.find(key) != nullptr || (disk_ && disk_->has(key));
}

PrefixIndex::Found PrefixIndex::find_record(const BlockKey& key, const BlockPlace& place) {
  if (!assumed_.empty()) return {.record = assumed_[static_cast<size_t>(key[0]) % assumed_.size()]};
  if (std::shared_ptr<const BlockRecord> record = memory_.find(key)) {
    while (is_pending(key)) finish_one();
    return {.record = std::move(record)};
  }
  std::optional<BlockRecord> read = disk_ ? disk_->read(key, place) : std::nullopt;
  if (!read) return {};
  auto record = std::make_shared<const BlockRecord>(std::move(*read));
  if (memory_.wants(key, place.before)) memory_.keep(key, place.before, record);
  return {.record = std::move(record), .from_disk = true};
}

// The place in host memory is given at once, since it decides which record goes for it: nothing that a plan follows from may
// depend on how long a copy takes. A file is written when there is something to write.
void PrefixIndex::keep_record(const BlockKey& key, const BlockPlace& place, const std::function<NewRecord()>& copy) {
  while (!pending_.empty() && pending_.front().copy->is_done()) finish_one();
  const bool in_memory = memory_.wants(key, place.before);
  const bool on_disk =
      disk_ && !is_pending_for_disk(key) && (is_pending_for_disk(place.before) || disk_->wants(key, place.before));
  if (!in_memory && !on_disk) return;
  NewRecord made = copy();
  if (made.copy == nullptr) {
    if (on_disk) disk_->write(key, place, *made.record);
    if (in_memory) memory_.keep(key, place.before, std::move(made.record));
    return;
  }
  pending_.push_back({.key = key,
                      .before = place.before,
                      .tokens = {place.tokens.begin(), place.tokens.end()},
                      .record = made.record,
                      .copy = std::move(made.copy),
                      .on_disk = on_disk});
  n_pending_bytes_ += std::ssize(made.record->rows);
  if (in_memory) memory_.keep(key, place.before, std::move(made.record));  // pending by now: nobody takes it unfilled
  while (n_pending_bytes_ > kMostPendingBytes) finish_one();
}

bool PrefixIndex::is_pending(const BlockKey& key) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& record) { return record.key == key; });
}

bool PrefixIndex::is_pending_for_disk(const BlockKey& key) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const Pending& record) { return record.on_disk && record.key == key; });
}

Status PrefixIndex::finish_first() {
  const Pending first = std::move(pending_.front());
  pending_.pop_front();
  n_pending_bytes_ -= std::ssize(first.record->rows);
  LEVIN_TRY(first.copy->finish());
  if (first.on_disk && disk_->wants(first.key, first.before))
    disk_->write(first.key, {.before = first.before, .tokens = first.tokens}, *first.record);
  if (first.used != nullptr) disk_->use(*first.used);
  return {};
}

void PrefixIndex::finish_one() {
  if (const Status status = finish_first(); !status.ok()) throw DeviceFault(status.error());
}

void PrefixIndex::finish_records() {
  while (!pending_.empty()) finish_one();
}

void PrefixIndex::use_records(std::span<const BlockKey> path) {
  memory_.use(path);
  if (!disk_) return;
  disk_->use(path);
  std::shared_ptr<const std::vector<BlockKey>> used;  // again when what is not on disk yet is
  for (Pending& record : pending_) {
    if (!record.on_disk || std::find(path.rbegin(), path.rend(), record.key) == path.rend()) continue;
    if (used == nullptr) used = std::make_shared<const std::vector<BlockKey>>(path.begin(), path.end());
    record.used = used;
  }
}

}  // namespace levin
