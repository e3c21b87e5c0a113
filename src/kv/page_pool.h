// Who owns which cache page. Pure host bookkeeping: a page is an integer, the same in every layer's array.
//
// A sequence's BlockTable lists its pages in order of position: token p lives in page pages()[p / kPageTokens], row p
// mod kPageTokens. Undoing tokens is shortening the table; nothing is copied. A table may be a ring: then page number n
// is the same page as n - R, and old rows give way to new ones.
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

  // A page with one reference, or -1 when none is free. The lowest free page is given first.
  int32_t allocate();
  void retain(int32_t page);   // one more reference; the page must be in use
  void release(int32_t page);  // one less; at zero it is free again
  int32_t n_references(int32_t page) const { return n_refs_[page]; }

 private:
  std::vector<int32_t> n_refs_;  // per page, 0 = free
  std::vector<int32_t> free_;    // a heap, lowest page on top
};

class BlockTable {
 public:
  static constexpr int64_t kNoRing = INT64_MAX;
  explicit BlockTable(PagePool& pool, int64_t n_ring_pages = kNoRing) : pool_(&pool), n_ring_pages_(n_ring_pages) {}
  ~BlockTable() { shorten(0); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  // Makes room for tokens 0 .. n_tokens-1. On failure (pool empty) the table is as before and the error says how many
  // pages were short.
  Status grow(int64_t n_tokens);
  // Gives back the pages beyond the one that holds token n_tokens-1.
  void shorten(int64_t n_tokens);

  const std::vector<int32_t>& pages() const { return pages_; }  // by page number; a ring's come round again
  int64_t n_held() const { return std::min(std::ssize(pages_), n_ring_pages_); }  // distinct pages
  // Pages that grow(n_tokens) would take of the pool.
  int64_t n_missing(int64_t n_tokens) const;

  // Begins an empty table with pages that are shared with others; takes over a reference to each.
  void begin_with(std::vector<int32_t> pages);
  // The first n pages, for their holder to put others with the same rows in their place (kv/shared_pages.h).
  std::span<int32_t> first_pages(size_t n) { return std::span(pages_).first(n); }

 private:
  PagePool* pool_;
  int64_t n_ring_pages_;        // R: distinct pages at most
  std::vector<int32_t> pages_;  // by page number
};

}  // namespace levin
