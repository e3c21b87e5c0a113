// Cache pages that several sequences read: the device residence of prefixes (kv/prefix_index.h), where a page holds all
// that is kept of its tokens.
//
// A page is named by the key of its block: the digest of all tokens up to its end. Only full pages are here, so a shared
// page is never written again and needs no copy. One reference to each page is held here (kv/page_pool.h), every
// sequence that uses a page has another.
//
//   find    the pages of the longest prefix, with references for the caller
//   adopt   enters the full pages of a sequence. Where a page of that key is here already, the sequence is given it in
//           place of its own: their bytes are the same, since a row depends on its prefix alone. So a sequence that
//           holds a page holds all pages before it.
//   evict   gives back pages that no sequence holds, least recently used first. A use counts for a whole path, end
//           first, so a page is always older than those before it and goes before them.
//
// Beside a page stands what resuming after its last token needs and the caches do not have (ResumeState).
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

// Of a page's last token, what the model carries beside its cache rows: the trunk's output there, which the MTP layer
// pairs with the next token. Empty for a model without one.
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
  // The longest prefix of a path of keys (of pages 0, 1, 2, ...); it is now the most recently used.
  Match find(std::span<const BlockKey> path);

  // Enters pages `from` and on of a sequence; path[i] is the key of pages[i], and those before `from` are here already,
  // found or adopted. `resume` has one state for each new page. Afterwards pages[i] are those that are here.
  void adopt(std::span<const BlockKey> path, std::span<int32_t> pages, size_t from,
             std::span<const ResumeState> resume);

  // Gives back up to n_pages pages that no sequence holds; returns how many.
  int32_t evict(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(by_use_.size()); }
  int32_t n_evictable() const;  // that no sequence holds

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
