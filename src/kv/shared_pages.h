// Cache pages that several sequences share: the device residence of prefixes (kv/prefix_index.h), for models whose
// pages contain everything that is kept of their tokens.
//
// A page is identified by the key of its block, the digest of all tokens up to its end. Only full pages are shared, so
// a shared page is never written again and needs no copy. SharedPages has one reference to each page (kv/page_pool.h),
// and each sequence that uses the page has another.
//
//   find    returns the pages of the longest cached prefix, with references for the caller
//   adopt   enters the full pages of a sequence. If there is already a page with the same key, the sequence gets that
//           page in place of its own; their bytes are the same, because a row depends only on its prefix. So a sequence
//           that has a reference to a page has references to all pages before it.
//   evict   releases pages that no sequence uses, least recently used first. A use counts for a whole path, from its
//           end, so a page is always older than those that precede it and is evicted before them.
//
// With each page is stored what is needed to resume after its last token and is not in the caches (ResumeState).
// Pure host bookkeeping; not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/block_key.h"
#include "kv/page_pool.h"

namespace levin {

// The state of a page's last token that is not in the caches: the target's output there, which the MTP layer pairs with
// the next token. Empty for a model without an MTP layer.
using ResumeState = std::shared_ptr<const std::vector<float>>;

class SharedPages {
 public:
  explicit SharedPages(PagePool& pool) : pool_(&pool) {}
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  struct Match {
    std::vector<int32_t> pages;  // in order of position, each with a reference for the caller
    ResumeState resume;          // of the last of them
  };
  // The longest cached prefix of a path of keys (of pages 0, 1, 2, ...), which becomes the most recently used.
  Match find(std::span<const BlockKey> path);

  // Enters pages `from`, from + 1, ... of a sequence. path[i] is the key of pages[i]; pages before `from` were found or
  // adopted earlier. `resume` has one state for each new page. Replaces pages[i] where a page with its key exists
  // already.
  void adopt(std::span<const BlockKey> path, std::span<int32_t> pages, size_t from,
             std::span<const ResumeState> resume);

  // Evicts up to n_pages pages that no sequence uses; returns how many.
  int32_t evict(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(by_use_.size()); }
  int32_t n_evictable() const;  // that no sequence uses

 private:
  struct Page {
    BlockKey key;
    int32_t page = -1;
    ResumeState resume;
  };
  using Uses = std::list<Page>;

  void use(std::span<const BlockKey> path);

  PagePool* pool_;
  Uses by_use_;  // least recently used first
  std::map<BlockKey, Uses::iterator> by_key_;
};

}  // namespace levin
