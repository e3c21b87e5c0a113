// All that a sequence holds in the caches of a model, whatever kinds of rows those keep.
//
//   row pages     kPageTokens tokens each, with the rows that are kept of every token. Where latent rows are a window
//                 they are a ring: page number n is the same page as n - R, so that a row lives until the token
//                 R * kPageTokens later is written
//   entry pages   a row per `ratio` tokens, kPageTokens rows a page, for each ratio that layers have
//   ring          one per sequence, of compressor state; it does not grow
//
// Undoing tokens is shortening, in every kind alike. What is behind the last token is overwritten when its position is
// run again; windows and rings have room for CacheLimits::n_undone tokens more than a step reads back, so that nothing
// the next step needs is gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/page_pool.h"

namespace levin {

// Which kinds of pages a model's caches have.
struct PageKinds {
  int64_t n_window = 0;         // 0: token pages of all tokens
  std::vector<int64_t> ratios;  // of entries, ascending; with any, a sequence has a ring too
  // Entries of the MTP layer too. They are written one slot after the last of their tokens, and the first has none.
  bool mtp_entries = false;
};

// How much there is to be room for.
struct CacheLimits {
  int64_t n_tokens = 0;       // cached tokens of all sequences together
  int64_t n_sequences = 1;    // at a time; counts where something is kept per sequence
  int64_t n_step_tokens = 1;  // of one sequence in a step, at most; counts where there is a window
  int64_t n_undone = 0;       // tokens behind a step's first that a later step may run again, at most

  // A step may have a page of tokens beside its drafts, whatever n_step_tokens.
  int64_t max_step_tokens() const { return std::max(n_step_tokens, kPageTokens + n_undone); }
  // Pages of a window's ring: while the last token of a step is written, the first still reads its whole window.
  int64_t ring_pages(int64_t n_window) const { return pages_for_tokens(n_window + max_step_tokens() + n_undone); }
  // Blocks (kv/cache.h) of which rows are written by the time that the first of them is settled: the draft layer follows
  // the trunk within max_step_tokens(), or a step passes them all.
  int64_t open_blocks(int64_t n_block_tokens) const { return (max_step_tokens() + n_undone) / n_block_tokens + 2; }
};

// The free pages of every kind. Pool 0 is of row pages, then one for each ratio's entries, the last of rings.
class SequencePools {
 public:
  SequencePools(const PageKinds& kinds, const CacheLimits& limits);

  const PageKinds& kinds() const { return kinds_; }
  const CacheLimits& limits() const { return limits_; }

  size_t n_pools() const { return pools_.size(); }
  PagePool& pool(size_t i) { return pools_[i]; }
  const PagePool& pool(size_t i) const { return pools_[i]; }
  // Tokens of a pool's table that n_tokens of a sequence come to, and the distinct pages that a sequence has at most.
  int64_t table_tokens(size_t i, int64_t n_tokens) const;
  int64_t ring_pages(size_t i) const;
  // Every sequence can have all that it will ever need of this pool.
  bool never_short(size_t i) const;
  // Whether a sequence of n_tokens would fit if it were alone.
  bool could_hold(int64_t n_tokens) const;

  PagePool& rows() { return pools_.front(); }
  PagePool& entries(size_t i) { return pools_[1 + i]; }  // of kinds().ratios[i]
  PagePool& rings() { return pools_.back(); }            // a page stands for a ring; none without ratios
  const PagePool& rows() const { return pools_.front(); }
  const PagePool& entries(size_t i) const { return pools_[1 + i]; }
  const PagePool& rings() const { return pools_.back(); }

  // Nothing but rows by token, of every token: then a page can be shared, and the three below are unlimited.
  bool keeps_all_rows() const { return kinds_.n_window == 0 && kinds_.ratios.empty(); }
  int64_t max_step_tokens() const;    // of one sequence
  int64_t max_undone_tokens() const;  // of those, that a later step may run again
  int64_t max_sequences() const;      // at a time

 private:
  PageKinds kinds_;
  CacheLimits limits_;
  std::vector<PagePool> pools_;
};

class SequencePages {
 public:
  explicit SequencePages(SequencePools& pools);

  // Begins, empty until now, with row pages that are shared with others; takes over a reference to each.
  void begin_with(std::vector<int32_t> pages);
  // Makes room for tokens 0 .. n_tokens-1. On failure everything is as before and the error says what was short.
  Status grow(int64_t n_tokens);
  // Gives back what tokens from n_tokens on alone would need.
  void shorten(int64_t n_tokens);

  int64_t n_tokens() const { return n_tokens_; }  // that there is room for
  // Pages that grow(n_tokens) would take of a pool.
  int64_t n_missing(size_t pool, int64_t n_tokens) const;

  const std::vector<int32_t>& rows() const { return tables_.front().pages(); }
  const std::vector<int32_t>& entries(size_t i) const { return tables_[1 + i].pages(); }
  int32_t ring() const { return tables_.back().pages().empty() ? -1 : tables_.back().pages().front(); }
  int64_t max_step_tokens() const { return pools_->max_step_tokens(); }

  // The first n row pages, for their holder to put others with the same rows in their place (kv/shared_pages.h).
  std::span<int32_t> first_rows(size_t n) { return tables_.front().first_pages(n); }

 private:
  SequencePools* pools_;
  int64_t n_tokens_ = 0;
  std::vector<BlockTable> tables_;  // of each pool
};

}  // namespace levin
