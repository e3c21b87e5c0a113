#include "kv/page_memory.h"

#include <utility>

#include "base/check.h"

namespace levin {
namespace {

int64_t bytes_of(const BlockRecord& record) {
  return std::ssize(record.rows) + static_cast<int64_t>(sizeof(float)) * std::ssize(record.state);
}

}  // namespace

std::shared_ptr<const BlockRecord> PageMemory::find(const BlockKey& key) const {
  const auto found = by_key_.find(key);
  return found != by_key_.end() ? found->second->record : nullptr;
}

bool PageMemory::wants(const BlockKey& key, const BlockKey& before) const {
  if (max_pages_ == 0 || by_key_.contains(key)) return false;
  const auto previous = by_key_.find(before);
  if (before != first_key_ && previous == by_key_.end()) return false;
  // the oldest would be the new page itself where it follows the oldest
  return n_pages() < max_pages_ || previous == by_key_.end() || previous->second != by_use_.begin();
}

void PageMemory::keep(const BlockKey& key, const BlockKey& before, std::shared_ptr<const BlockRecord> record) {
  LEVIN_CHECK(wants(key, before), "a page is kept that has no place among {}", max_pages_);
  if (n_pages() == max_pages_) {
    n_bytes_ -= bytes_of(*by_use_.front().record);
    by_key_.erase(by_use_.front().key);
    by_use_.pop_front();
  }
  n_bytes_ += bytes_of(*record);
  const auto previous = by_key_.find(before);
  const auto place = previous != by_key_.end() ? previous->second : by_use_.end();
  by_key_.emplace(key, by_use_.insert(place, {.key = key, .record = std::move(record)}));
}

void PageMemory::use(std::span<const BlockKey> path) {
  for (size_t i = path.size(); i-- > 0;) {
    const auto found = by_key_.find(path[i]);
    if (found != by_key_.end()) by_use_.splice(by_use_.end(), by_use_, found->second);
  }
}

}  // namespace levin
