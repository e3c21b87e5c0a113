#include "kv/page_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace levin {

PagePool::PagePool(int32_t n_pages) : n_refs_(static_cast<size_t>(n_pages), 0), free_(static_cast<size_t>(n_pages)) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending is already a heap for `greater`
}

int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  n_refs_[page] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  LEVIN_CHECK(page >= 0 && page < n_pages() && n_refs_[page] > 0, "retain of page {} which nobody holds", page);
  ++n_refs_[page];
}

void PagePool::release(int32_t page) {
  LEVIN_CHECK(page >= 0 && page < n_pages() && n_refs_[page] > 0, "release of page {} which nobody holds", page);
  if (--n_refs_[page] > 0) return;
  ++n_freed_;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_), n_ring_pages_(other.n_ring_pages_), pages_(std::exchange(other.pages_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  shorten(0);
  pool_ = other.pool_;
  n_ring_pages_ = other.n_ring_pages_;
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

int64_t BlockTable::n_missing(int64_t n_tokens) const {
  return std::max<int64_t>(0, std::min(pages_for_tokens(n_tokens), n_ring_pages_) - n_held());
}

Status BlockTable::grow(int64_t n_tokens) {
  const int64_t n_needed = n_missing(n_tokens);
  if (n_needed > pool_->n_free()) {
    return Error{ErrorKind::kOutOfMemory, fmt::format("cache full: {} more pages of {} tokens needed, {} free",
                                                      n_needed, kPageTokens, pool_->n_free())};
  }
  for (int64_t i = std::ssize(pages_); i < pages_for_tokens(n_tokens); ++i) {
    pages_.push_back(i < n_ring_pages_ ? pool_->allocate() : pages_[static_cast<size_t>(i - n_ring_pages_)]);
  }
  return {};
}

void BlockTable::begin_with(std::vector<int32_t> pages) {
  LEVIN_CHECK(pages_.empty(), "block table of {} pages cannot begin again", pages_.size());
  pages_ = std::move(pages);
}

void BlockTable::shorten(int64_t n_tokens) {
  const size_t n_kept = static_cast<size_t>(pages_for_tokens(n_tokens));
  while (pages_.size() > n_kept) {
    if (static_cast<int64_t>(pages_.size()) <= n_ring_pages_) pool_->release(pages_.back());
    pages_.pop_back();
  }
}

}  // namespace levin
