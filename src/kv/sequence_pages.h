// All that a sequence holds in the caches of a model, whatever kinds of rows those keep.
//
//   token pages   kPageTokens tokens each. They hold the rows that are kept of every token; where latent rows are a
//                 window they hold nothing, and only count what there is room for
//   window pages  a ring: page number n is the same page as n - R, so that a row lives until the token
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

// The free pages of every kind.
class SequencePools {
 public:
  SequencePools(const PageKinds& kinds, const CacheLimits& limits);

  const PageKinds& kinds() const { return kinds_; }
  const CacheLimits& limits() const { return limits_; }
  PagePool& tokens() { return tokens_; }
  PagePool& windows() { return windows_; }             // none without a window
  PagePool& entries(size_t i) { return entries_[i]; }  // of kinds().ratios[i]
  PagePool& rings() { return rings_; }
  const PagePool& tokens() const { return tokens_; }
  const PagePool& windows() const { return windows_; }
  const PagePool& entries(size_t i) const { return entries_[i]; }
  const PagePool& rings() const { return rings_; }
  // Nothing but rows by token, of every token: then the three below are unlimited.
  bool keeps_all_rows() const { return kinds_.n_window == 0 && kinds_.ratios.empty(); }
  int64_t max_step_tokens() const;    // of one sequence
  int64_t max_undone_tokens() const;  // of those, that a later step may run again
  int64_t max_sequences() const;      // at a time

 private:
  PageKinds kinds_;
  CacheLimits limits_;
  PagePool tokens_;
  PagePool windows_;
  std::vector<PagePool> entries_;
  PagePool rings_;  // a page stands for a ring
};

class SequencePages {
 public:
  explicit SequencePages(SequencePools& pools);

  // Makes room for tokens 0 .. n_tokens-1, token pages included. On failure everything is as before and the error says
  // what was short.
  Status grow(int64_t n_tokens);
  // The same for the tokens of token pages that somebody else holds, in place of those before.
  Status follow(std::span<const int32_t> token_pages);
  // Gives back what tokens from n_tokens on alone would need.
  void shorten(int64_t n_tokens);

  // Pages of rows by token: token pages, or the window's.
  const std::vector<int32_t>& rows() const { return pools_->kinds().n_window > 0 ? window_.pages() : token_pages_; }
  const std::vector<int32_t>& entries(size_t i) const { return entries_[i].pages(); }
  int32_t ring() const { return ring_.pages().empty() ? -1 : ring_.pages().front(); }
  int64_t max_step_tokens() const { return pools_->max_step_tokens(); }

 private:
  Status fit(int64_t n_tokens);  // everything but token pages

  SequencePools* pools_;
  int64_t n_tokens_ = 0;  // there is room for
  BlockTable own_;        // token pages that are held here
  std::vector<int32_t> token_pages_;
  BlockTable window_;
  std::vector<BlockTable> entries_;
  BlockTable ring_;
};

}  // namespace levin
