// The prefix cache in host memory: the records of blocks, up to a given number, for models whose cache pages cannot be
// shared because they do not contain everything needed to resume after them.
//
// The least recently used pages are evicted first, and a page before those that precede it: a use counts for a whole
// path, from its end, and a new page counts as used just before the one that it follows. So if a page is present, all
// pages before it are. Pure host bookkeeping; not thread-safe.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <span>

#include "kv/page_store.h"

namespace levin {

class PageMemory {
 public:
  PageMemory(int64_t max_pages, const BlockKey& first_key) : max_pages_(max_pages), first_key_(first_key) {}

  std::shared_ptr<const BlockRecord> find(const BlockKey& key) const;  // null: not present
  // Whether keep() accepts the page: it is new, the preceding page is present, and there is room or a page to evict.
  bool wants(const BlockKey& key, const BlockKey& before) const;
  void keep(const BlockKey& key, const BlockKey& before, std::shared_ptr<const BlockRecord> record);  // only if wants()
  void use(std::span<const BlockKey> path);  // marks those of pages 0, 1, 2, ... that are present as recently used

  int64_t n_pages() const { return static_cast<int64_t>(by_key_.size()); }
  int64_t n_bytes() const { return n_bytes_; }  // of their records

 private:
  struct Kept {
    BlockKey key;
    std::shared_ptr<const BlockRecord> record;
  };
  using Uses = std::list<Kept>;

  int64_t max_pages_;
  BlockKey first_key_;
  Uses by_use_;  // least recently used first
  std::map<BlockKey, Uses::iterator> by_key_;
  int64_t n_bytes_ = 0;
};

}  // namespace levin
