// The pages of one sequence in the caches of a model, of every kind:
//
//   row pages     kPageTokens tokens each, with the latent rows and index keys of every token. With a window, that is,
//                 where attention to tokens is that of a sliding window, they form a ring: page number n is the same
//                 page as n - R, so a row stays until the token R * kPageTokens later is written, and the memory of
//                 rows does not grow with the context
//   entry pages   one row per `ratio` tokens, kPageTokens rows per page, for each ratio that layers have
//   ring          compressor state, one per sequence, of constant size
//
// Tokens are undone by shortening, for all kinds alike. Rows after the last token are overwritten when their positions
// are computed again. Windows and rings have room for CacheLimits::n_undone more tokens than a step reads, so that
// undone tokens never overwrite rows that the next step needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/page_pool.h"

namespace levin {

// The kinds of pages that a model's caches have.
struct PageKinds {
  int64_t n_window = 0;         // 0: rows of all tokens are kept
  std::vector<int64_t> ratios;  // of entries, ascending; if there are any, a sequence also has a ring
  // The MTP layer has entries too. Each is written one slot after the last of its tokens; the first token has no slot.
  bool mtp_entries = false;
};

// The capacity of the caches.
struct CacheLimits {
  int64_t n_tokens = 0;       // cached tokens of all sequences together
  int64_t n_sequences = 1;    // running at a time; used if windows or state are kept per sequence
  int64_t n_step_tokens = 1;  // maximum tokens of one sequence in a step; used if there is a window
  int64_t n_undone = 0;       // maximum tokens of a step, after its first, that may be undone

  // A step may have a page of tokens in addition to its drafts, whatever n_step_tokens is.
  int64_t max_step_tokens() const { return std::max(n_step_tokens, kPageTokens + n_undone); }
  // Pages of a window's ring: when the last token of a step is written, the first must still find its whole window.
  int64_t ring_pages(int64_t n_window) const { return pages_for_tokens(n_window + max_step_tokens() + n_undone); }
  // How many blocks (kv/cache.h) may have rows when the first of them is committed: the drafter's rows lag by at most
  // max_step_tokens(), or one step spans them all.
  int64_t open_blocks(int64_t n_block_tokens) const { return (max_step_tokens() + n_undone) / n_block_tokens + 2; }
};

// The free pages of every kind: pool 0 has row pages, then there is one pool of entry pages per ratio, and the last
// pool has rings.
class SequencePools {
 public:
  SequencePools(const PageKinds& kinds, const CacheLimits& limits);

  const PageKinds& kinds() const { return kinds_; }
  const CacheLimits& limits() const { return limits_; }

  size_t n_pools() const { return pools_.size(); }
  PagePool& pool(size_t i) { return pools_[i]; }
  const PagePool& pool(size_t i) const { return pools_[i]; }
  // The length of a block table of pool i, in its rows, for n_tokens of a sequence; and the maximum number of distinct
  // pages of a sequence.
  int64_t table_tokens(size_t i, int64_t n_tokens) const;
  int64_t ring_pages(size_t i) const;
  // Whether the pool has enough pages for all sequences at any length.
  bool never_short(size_t i) const;
  // Whether a sequence of n_tokens would fit if it were the only one.
  bool could_hold(int64_t n_tokens) const;

  PagePool& rows() { return pools_.front(); }
  PagePool& entries(size_t i) { return pools_[1 + i]; }  // of kinds().ratios[i]
  PagePool& rings() { return pools_.back(); }            // one page per ring; empty without ratios
  const PagePool& rows() const { return pools_.front(); }
  const PagePool& entries(size_t i) const { return pools_[1 + i]; }
  const PagePool& rings() const { return pools_.back(); }

  // No window and no entries. Pages can then be shared, and the three limits below do not apply.
  bool keeps_all_rows() const { return kinds_.n_window == 0 && kinds_.ratios.empty(); }
  int64_t max_step_tokens() const;    // of one sequence
  int64_t max_undone_tokens() const;  // of these, how many may be undone
  int64_t max_sequences() const;      // running at a time

 private:
  PageKinds kinds_;
  CacheLimits limits_;
  std::vector<PagePool> pools_;
};

class SequencePages {
 public:
  explicit SequencePages(SequencePools& pools);

  // Fills the tables, which are empty, with shared row pages; takes over one reference to each.
  void begin_with(std::vector<int32_t> pages);
  // Allocates pages for tokens 0 .. n_tokens-1. On failure nothing changes and the error says which pages are missing.
  Status grow(int64_t n_tokens);
  // Releases the pages that only tokens from n_tokens on need.
  void shorten(int64_t n_tokens);

  int64_t n_tokens() const { return n_tokens_; }  // for which there are pages
  // The number of pages of a pool that grow(n_tokens) would allocate.
  int64_t n_missing(size_t pool, int64_t n_tokens) const;

  const std::vector<int32_t>& pages(size_t pool) const { return tables_[pool].pages(); }
  const std::vector<int32_t>& rows() const { return tables_.front().pages(); }
  const std::vector<int32_t>& entries(size_t i) const { return tables_[1 + i].pages(); }
  int32_t ring() const { return tables_.back().pages().empty() ? -1 : tables_.back().pages().front(); }
  int64_t max_step_tokens() const { return pools_->max_step_tokens(); }

  // The first n row pages, which may be replaced by others with the same rows (kv/shared_pages.h).
  std::span<int32_t> first_rows(size_t n) { return tables_.front().first_pages(n); }

 private:
  SequencePools* pools_;
  int64_t n_tokens_ = 0;
  std::vector<BlockTable> tables_;  // of each pool
};

}  // namespace levin
