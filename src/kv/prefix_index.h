// The prefix index (a radix cache elsewhere): which prefixes are cached, and where. It indexes blocks (kv/cache.h) by the
// digest of all tokens up to their end. A block may reside in three places, each with its own budget and LRU order:
//
//   device   as a page of the caches that sequences share (kv/shared_pages.h); only where a block is a page, because
//            all rows are kept. A hit copies nothing
//   host     as a record in host memory (kv/page_memory.h)
//   disk     as a record in a store that outlives the process (kv/page_store.h); records read from it are also kept in
//            host memory
//
// In each place the blocks before a resident block are resident as well. One thread calls.
//
// A record that a device is still copying (kv/block_copies.h) has its place in host memory from the start, and who looks for it
// waits for it: what is present there does not depend on how fast copies are. It is written to disk when it is complete.
//
// For measurements blocks can be assumed: every block then counts as one with a record, which is one of a few that the index
// is given. Nothing else is kept in host memory or on disk then.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_copies.h"
#include "kv/page_memory.h"
#include "kv/page_store.h"
#include "kv/shared_pages.h"

namespace levin {

using BlockRecords = std::vector<std::shared_ptr<const BlockRecord>>;

class PrefixIndex {
 public:
  // pages: null if blocks are not shared as pages. max_host_blocks: capacity in host memory, may be 0. disk: may be
  // null.
  PrefixIndex(PagePool* pages, int64_t max_host_blocks, std::shared_ptr<PageStore> disk);
  explicit PrefixIndex(BlockRecords assumed);  // at least one
  ~PrefixIndex();                              // finishes its records, unless the device has failed

  // The key from which the keys of all first blocks are derived: the fingerprint if there is a disk.
  BlockKey first_key() const { return disk_ ? disk_->first_key() : BlockKey{}; }

  bool shares_pages() const { return pages_.has_value(); }
  SharedPages& pages() { return *pages_; }  // only if shares_pages()
  const SharedPages& pages() const { return *pages_; }

  bool keeps_records() const { return max_host_blocks_ > 0 || disk_ != nullptr || !assumed_.empty(); }
  bool has_record(const BlockKey& key) const;  // if so, find_record() may still fail to read it from disk
  struct Found {
    std::shared_ptr<const BlockRecord> record;  // null: there is none
    bool from_disk = false;
  };
  Found find_record(const BlockKey& key, const BlockPlace& place);
  // Stores a record in host memory and on disk, where it is missing and there is room. copy() makes the record; it is
  // called only if needed.
  struct NewRecord {
    std::shared_ptr<BlockRecord> record;
    std::unique_ptr<BlockCopy> copy;  // to it; null: it is there
  };
  void keep_record(const BlockKey& key, const BlockPlace& place, const std::function<NewRecord()>& copy);
  void finish_records();                             // waits; throws a DeviceFault
  void use_records(std::span<const BlockKey> path);  // marks blocks 0, 1, 2, ... as the most recently used

  const PageMemory& memory() const { return memory_; }
  PageStore* disk() const { return disk_.get(); }

 private:
  struct Pending {
    BlockKey key, before;
    std::vector<int32_t> tokens;
    std::shared_ptr<const BlockRecord> record;  // whose rows `copy` fills
    std::unique_ptr<BlockCopy> copy;
    bool on_disk = false;                               // is to be
    std::shared_ptr<const std::vector<BlockKey>> used;  // the path that was used meanwhile; null: none
  };
  bool is_pending(const BlockKey& key) const;
  bool is_pending_for_disk(const BlockKey& key) const;
  Status finish_first();
  void finish_one();  // the same; throws a DeviceFault

  std::shared_ptr<PageStore> disk_;
  int64_t max_host_blocks_;
  PageMemory memory_;
  std::optional<SharedPages> pages_;
  BlockRecords assumed_;
  std::deque<Pending> pending_;
  int64_t n_pending_bytes_ = 0;
};

}  // namespace levin
