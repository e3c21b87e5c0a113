#include "kv/sequence_pages.h"

#include <algorithm>
#include <limits>

namespace levin {
namespace {

int64_t n_window_pages(const PageKinds& kinds, const CacheLimits& limits) {
  if (kinds.n_window == 0) return 0;
  return std::min(pages_for_tokens(limits.n_tokens), limits.n_sequences * limits.ring_pages(kinds.n_window));
}

// Every sequence may leave its last page partly empty. There is a page even where no entry can be complete, so that the
// arrays are there.
int64_t n_entry_pages(int64_t ratio, const CacheLimits& limits) {
  return std::max<int64_t>(pages_for_tokens(limits.n_tokens / ratio) + limits.n_sequences - 1, 1);
}

}  // namespace

SequencePools::SequencePools(const PageKinds& kinds, const CacheLimits& limits)
    : kinds_(kinds),
      limits_(limits),
      tokens_(static_cast<int32_t>(pages_for_tokens(limits.n_tokens))),
      windows_(static_cast<int32_t>(n_window_pages(kinds, limits))),
      rings_(static_cast<int32_t>(kinds.ratios.empty() ? 0 : limits.n_sequences)) {
  for (const int64_t ratio : kinds.ratios) entries_.emplace_back(static_cast<int32_t>(n_entry_pages(ratio, limits)));
}

int64_t SequencePools::max_step_tokens() const {
  return kinds_.n_window > 0 ? limits_.max_step_tokens() : std::numeric_limits<int64_t>::max();
}

int64_t SequencePools::max_undone_tokens() const {
  return keeps_all_rows() ? std::numeric_limits<int64_t>::max() : limits_.n_undone;
}

int64_t SequencePools::max_sequences() const {
  return keeps_all_rows() ? std::numeric_limits<int64_t>::max() : limits_.n_sequences;
}

SequencePages::SequencePages(SequencePools& pools)
    : pools_(&pools),
      own_(pools.tokens()),
      window_(pools.windows(), pools.limits().ring_pages(pools.kinds().n_window)),
      ring_(pools.rings()) {
  for (size_t i = 0; i < pools.kinds().ratios.size(); ++i) entries_.emplace_back(pools.entries(i));
}

Status SequencePages::fit(int64_t n_tokens) {
  const PageKinds& kinds = pools_->kinds();
  if (kinds.n_window > 0) LEVIN_TRY(window_.grow(n_tokens));
  for (size_t i = 0; i < entries_.size(); ++i) LEVIN_TRY(entries_[i].grow(n_tokens / kinds.ratios[i]));
  if (!entries_.empty()) LEVIN_TRY(ring_.grow(1));
  return {};
}

Status SequencePages::grow(int64_t n_tokens) {
  const int64_t n_before = n_tokens_;
  Status status = own_.grow(n_tokens);
  if (status.ok()) status = fit(n_tokens);
  if (!status.ok()) {
    shorten(n_before);
    return status;
  }
  token_pages_ = own_.pages();
  n_tokens_ = std::max(n_before, n_tokens);
  return {};
}

Status SequencePages::follow(std::span<const int32_t> token_pages) {
  const int64_t n_tokens = std::ssize(token_pages) * kPageTokens;
  if (n_tokens < n_tokens_) shorten(n_tokens);
  LEVIN_TRY(fit(n_tokens));
  token_pages_.assign(token_pages.begin(), token_pages.end());
  n_tokens_ = n_tokens;
  return {};
}

void SequencePages::shorten(int64_t n_tokens) {
  own_.shorten(n_tokens);
  if (const auto n_kept = static_cast<size_t>(pages_for_tokens(n_tokens)); n_kept < token_pages_.size()) {
    token_pages_.resize(n_kept);
  }
  window_.shorten(n_tokens);
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].shorten(n_tokens / pools_->kinds().ratios[i]);
  if (n_tokens == 0) ring_.shorten(0);
  n_tokens_ = std::min(n_tokens_, n_tokens);
}

}  // namespace levin
