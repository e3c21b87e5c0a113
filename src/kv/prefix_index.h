// Which prefixes need not be computed again, and where their rows are: one index over blocks (kv/cache.h), named by the
// digest of all tokens up to their end. A block may reside in any of three places, each with its own budget and order of
// use:
//
//   device   as a page of the caches that sequences share (kv/shared_pages.h); only where a block is a page, because
//            all rows are kept. Nothing is copied
//   host     as a record in memory (kv/page_memory.h)
//   disk     as a record in a store that outlives the process (kv/page_store.h). What is read comes into memory too
//
// Wherever a block resides, the blocks before it reside there as well. One thread calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kv/page_memory.h"
#include "kv/page_store.h"
#include "kv/shared_pages.h"

namespace levin {

class PrefixIndex {
 public:
  // pages: null where blocks are not shared as pages. max_host_blocks may be 0 and disk null.
  PrefixIndex(PagePool* pages, int64_t max_host_blocks, std::shared_ptr<PageStore> disk);

  // What the first block of every sequence follows.
  BlockKey first_key() const { return disk_ ? disk_->first_key() : BlockKey{}; }

  bool shares_pages() const { return pages_.has_value(); }
  SharedPages& pages() { return *pages_; }  // with shares_pages() alone
  const SharedPages& pages() const { return *pages_; }

  bool keeps_records() const { return max_host_blocks_ > 0 || disk_ != nullptr; }
  bool has_record(const BlockKey& key) const;  // and find_record() may find it
  struct Found {
    std::shared_ptr<const BlockRecord> record;  // null: there is none
    bool from_disk = false;
  };
  Found find_record(const BlockKey& key, const BlockPlace& place);
  // Keeps a record wherever it is new and there is room. copy() makes it; it is called only where it is wanted.
  void keep_record(const BlockKey& key, const BlockPlace& place, const std::function<BlockRecord()>& copy);
  void use_records(std::span<const BlockKey> path);  // the keys of blocks 0, 1, 2, ...

  const PageMemory& memory() const { return memory_; }
  PageStore* disk() const { return disk_.get(); }

 private:
  std::shared_ptr<PageStore> disk_;
  int64_t max_host_blocks_;
  PageMemory memory_;
  std::optional<SharedPages> pages_;
};

}  // namespace levin
