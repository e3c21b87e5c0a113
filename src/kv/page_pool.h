// Reference counts of cache pages, and the block tables of sequences. Pure host bookkeeping: a page is an integer, the
// same in every layer's array.
//
// A sequence's BlockTable lists its pages in order of position: token p is in page pages()[p / kPageTokens], row p
// mod kPageTokens. Tokens are undone by shortening the table; nothing is copied. A table may be a ring: then page
// number n is the same page as n - R, and new rows overwrite old ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/formats.h"

namespace levin {

inline int64_t pages_for_tokens(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(n_refs_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }

  // The free page with the lowest number, with one reference; -1 if none is free.
  int32_t allocate();
  void retain(int32_t page);                    // adds a reference; the page must be in use
  void release(int32_t page);                   // removes a reference; the page is free when none is left
  int64_t n_freed() const { return n_freed_; }  // pages that became free, so far
  int32_t n_references(int32_t page) const { return n_refs_[page]; }

 private:
  std::vector<int32_t> n_refs_;  // per page; 0: free
  std::vector<int32_t> free_;    // a heap, lowest page on top
  int64_t n_freed_ = 0;
};

class BlockTable {
 public:
  static constexpr int64_t kNoRing = INT64_MAX;
  explicit BlockTable(PagePool& pool, int64_t n_ring_pages = kNoRing) : pool_(&pool), n_ring_pages_(n_ring_pages) {}
  ~BlockTable() { shorten(0); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  // Allocates pages for tokens 0 .. n_tokens-1. If the pool has too few, the table is unchanged and the error says how
  // many are missing.
  Status grow(int64_t n_tokens);
  // Releases the pages after that of token n_tokens-1.
  void shorten(int64_t n_tokens);

  const std::vector<int32_t>& pages() const { return pages_; }  // by page number; in a ring, pages repeat
  int64_t n_held() const { return std::min(std::ssize(pages_), n_ring_pages_); }  // distinct pages
  // The number of pages that grow(n_tokens) would allocate.
  int64_t n_missing(int64_t n_tokens) const;

  // Fills an empty table with shared pages; the table takes over one reference to each.
  void begin_with(std::vector<int32_t> pages);
  // The first n pages, which may be replaced by others with the same rows (kv/shared_pages.h).
  std::span<int32_t> first_pages(size_t n) { return std::span(pages_).first(n); }

 private:
  PagePool* pool_;
  int64_t n_ring_pages_;        // R: maximum number of distinct pages
  std::vector<int32_t> pages_;  // by page number
};

}  // namespace levin
