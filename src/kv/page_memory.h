// Pages in memory, as many as are asked for: prefixes of models whose cache pages cannot be shared, because they do not
// hold all that going on behind them needs.
//
// What was used least recently goes first, and the pages after one before it: a use counts for a whole path, end first,
// and a new page counts as used just before the one that it follows. So if a page is here, all pages before it are.
// Pure host bookkeeping; not thread-safe.
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

  std::shared_ptr<const BlockRecord> find(const BlockKey& key) const;  // null: it is not here
  // Whether there is a place for the page: it is new, the one before it is here, and something else can go for it.
  bool wants(const BlockKey& key, const BlockKey& before) const;
  void keep(const BlockKey& key, const BlockKey& before, std::shared_ptr<const BlockRecord> record);  // wants() said so
  void use(std::span<const BlockKey> path);  // the keys of pages 0, 1, 2, ...; those that are here count

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
