#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/device_fault.h"

namespace levin {
namespace {

constexpr int64_t kMostComingBytes = int64_t{256}
                                     << 20;  // of records that are being copied: then the first is waited for

}  // namespace

PrefixIndex::PrefixIndex(PagePool* pages, int64_t max_host_blocks, std::shared_ptr<PageStore> disk)
    : disk_(std::move(disk)), max_host_blocks_(max_host_blocks), memory_(max_host_blocks, first_key()) {
  if (pages != nullptr) pages_.emplace(*pages);
}

PrefixIndex::PrefixIndex(BlockRecords assumed) : PrefixIndex(nullptr, 0, nullptr) { assumed_ = std::move(assumed); }

PrefixIndex::~PrefixIndex() {
  while (!coming_.empty() && finish_first().ok()) continue;
}

bool PrefixIndex::has_record(const BlockKey& key) const {
  return !assumed_.empty() || is_coming(key) || memory_.find(key) != nullptr || (disk_ && disk_->has(key));
}

PrefixIndex::Found PrefixIndex::find_record(const BlockKey& key, const BlockPlace& place) {
  if (!assumed_.empty()) return {.record = assumed_[static_cast<size_t>(key[0]) % assumed_.size()]};
  while (is_coming(key)) finish_one();
  if (std::shared_ptr<const BlockRecord> record = memory_.find(key)) return {.record = std::move(record)};
  std::optional<BlockRecord> read = disk_ ? disk_->read(key, place) : std::nullopt;
  if (!read) return {};
  auto record = std::make_shared<const BlockRecord>(std::move(*read));
  if (memory_.wants(key, place.before)) memory_.keep(key, place.before, record);
  return {.record = std::move(record), .from_disk = true};
}

// Whether a block after one that is coming has a place is known only when that one has its own.
void PrefixIndex::keep_record(const BlockKey& key, const BlockPlace& place, const std::function<NewRecord()>& copy) {
  while (!coming_.empty() && (coming_.front().made.copy == nullptr || coming_.front().made.copy->is_there()))
    finish_one();
  if (is_coming(key)) return;
  if (!is_coming(place.before)) {
    const bool in_memory = memory_.wants(key, place.before);
    if (!in_memory && !(disk_ && disk_->wants(key, place.before))) return;
  }
  NewRecord made = copy();
  if (made.copy == nullptr && coming_.empty()) return enter(key, place, std::move(made.record));
  n_coming_bytes_ += std::ssize(made.record->rows);
  coming_.push_back({.key = key,
                     .before = place.before,
                     .tokens = {place.tokens.begin(), place.tokens.end()},
                     .made = std::move(made)});
  while (n_coming_bytes_ > kMostComingBytes) finish_one();
}

void PrefixIndex::enter(const BlockKey& key, const BlockPlace& place, std::shared_ptr<const BlockRecord> record) {
  if (disk_ && disk_->wants(key, place.before)) disk_->write(key, place, *record);
  if (memory_.wants(key, place.before)) memory_.keep(key, place.before, std::move(record));
}

bool PrefixIndex::is_coming(const BlockKey& key) const {
  return std::any_of(coming_.begin(), coming_.end(), [&](const Coming& record) { return record.key == key; });
}

Status PrefixIndex::finish_first() {
  Coming first = std::move(coming_.front());
  coming_.pop_front();
  n_coming_bytes_ -= std::ssize(first.made.record->rows);
  if (first.made.copy != nullptr) LEVIN_TRY(first.made.copy->finish());
  enter(first.key, {.before = first.before, .tokens = first.tokens}, std::move(first.made.record));
  return {};
}

void PrefixIndex::finish_one() {
  if (const Status status = finish_first(); !status.ok()) throw DeviceFault(status.error());
}

void PrefixIndex::finish_records() {
  while (!coming_.empty()) finish_one();
}

void PrefixIndex::use_records(std::span<const BlockKey> path) {
  memory_.use(path);
  if (disk_) disk_->use(path);
}

}  // namespace levin
