// Where pages are kept outside of the caches: in memory (engine/page_memory.h), and behind that on disk
// (engine/page_store.h). Either may be missing. What is read from the disk comes into memory too.
//
// One thread calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "engine/page_memory.h"
#include "engine/page_store.h"

namespace levin {

class PageTiers {
 public:
  // max_memory_pages may be 0 and `disk` null.
  PageTiers(int64_t max_memory_pages, std::unique_ptr<PageStore> disk);

  PageKey first_key() const { return disk_ ? disk_->first_key() : PageKey{}; }
  static PageKey key_after(const PageKey& before, std::span<const int32_t> tokens) {
    return PageStore::key_after(before, tokens);
  }

  bool has(const PageKey& key) const;  // and find() may find it
  struct Found {
    const PageRecord* record = nullptr;  // until the next call of find() or keep(); null: it is nowhere
    bool from_disk = false;
  };
  Found find(const PageKey& key, const PagePlace& place);
  // Keeps a page wherever it is new and there is room. copy() gives its record; it is called only where it is wanted.
  void keep(const PageKey& key, const PagePlace& place, const std::function<PageRecord()>& copy);
  void use(std::span<const PageKey> path);  // the keys of pages 0, 1, 2, ...

  const PageMemory& memory() const { return memory_; }
  PageStore* disk() const { return disk_.get(); }

 private:
  std::unique_ptr<PageStore> disk_;
  PageMemory memory_;
  std::optional<PageRecord> read_;  // the last from the disk, where memory has no place for it
};

}  // namespace levin
