#include "kv/sequence_pages.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace levin {
namespace {

int64_t n_window_pages(const PageKinds& kinds, const CacheLimits& limits) {
  if (kinds.n_window == 0) return 0;
  return std::min(pages_for_tokens(limits.n_tokens), limits.n_sequences * limits.ring_pages(kinds.n_window));
}

// Every sequence may leave its last page partly empty. There is a page even where no entry can be complete, so that the
// arrays are there.
int64_t n_entry_pages(int64_t n_entries, const CacheLimits& limits) {
  return std::max<int64_t>(pages_for_tokens(n_entries) + limits.n_sequences - 1, 1);
}

// That n_tokens of a sequence may have; of the MTP layer, whose entry of slots 1 .. ratio stands in row 1, one more.
int64_t n_entries(const PageKinds& kinds, int64_t ratio, int64_t n_tokens) {
  return kinds.mtp_entries ? (n_tokens + ratio - 1) / ratio : n_tokens / ratio;
}

}  // namespace

SequencePools::SequencePools(const PageKinds& kinds, const CacheLimits& limits) : kinds_(kinds), limits_(limits) {
  const int64_t n_rows = kinds.n_window > 0 ? n_window_pages(kinds, limits) : pages_for_tokens(limits.n_tokens);
  pools_.emplace_back(static_cast<int32_t>(n_rows));
  for (const int64_t ratio : kinds.ratios) {
    const int64_t n = n_entries(kinds, ratio, limits.n_tokens) + (kinds.mtp_entries ? limits.n_sequences : 0);
    pools_.emplace_back(static_cast<int32_t>(n_entry_pages(n, limits)));
  }
  pools_.emplace_back(static_cast<int32_t>(kinds.ratios.empty() ? 0 : limits.n_sequences));
}

int64_t SequencePools::table_tokens(size_t i, int64_t n_tokens) const {
  if (i == 0) return n_tokens;
  if (i + 1 < pools_.size()) return n_entries(kinds_, kinds_.ratios[i - 1], n_tokens);
  return kinds_.ratios.empty() ? 0 : std::min<int64_t>(n_tokens, 1);
}

int64_t SequencePools::ring_pages(size_t i) const {
  return i == 0 && kinds_.n_window > 0 ? limits_.ring_pages(kinds_.n_window) : BlockTable::kNoRing;
}

bool SequencePools::never_short(size_t i) const {
  if (i + 1 == pools_.size()) return true;
  return i == 0 && kinds_.n_window > 0 && pools_[0].n_pages() == limits_.n_sequences * ring_pages(0);
}

bool SequencePools::could_hold(int64_t n_tokens) const {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (std::min(pages_for_tokens(table_tokens(i, n_tokens)), ring_pages(i)) > pools_[i].n_pages()) return false;
  }
  return true;
}

int64_t SequencePools::max_step_tokens() const {
  return keeps_all_rows() ? std::numeric_limits<int64_t>::max() : limits_.max_step_tokens();
}

int64_t SequencePools::max_undone_tokens() const {
  return keeps_all_rows() ? std::numeric_limits<int64_t>::max() : limits_.n_undone;
}

int64_t SequencePools::max_sequences() const {
  return keeps_all_rows() ? std::numeric_limits<int64_t>::max() : limits_.n_sequences;
}

SequencePages::SequencePages(SequencePools& pools) : pools_(&pools) {
  for (size_t i = 0; i < pools.n_pools(); ++i) tables_.emplace_back(pools.pool(i), pools.ring_pages(i));
}

void SequencePages::begin_with(std::vector<int32_t> pages) {
  n_tokens_ = std::ssize(pages) * kPageTokens;
  tables_.front().begin_with(std::move(pages));
}

int64_t SequencePages::n_missing(size_t pool, int64_t n_tokens) const {
  return tables_[pool].n_missing(pools_->table_tokens(pool, n_tokens));
}

Status SequencePages::grow(int64_t n_tokens) {
  const int64_t n_before = n_tokens_;
  for (size_t i = 0; i < tables_.size(); ++i) {
    const Status status = tables_[i].grow(pools_->table_tokens(i, n_tokens));
    if (status.ok()) continue;
    shorten(n_before);
    return status;
  }
  n_tokens_ = std::max(n_before, n_tokens);
  return {};
}

void SequencePages::shorten(int64_t n_tokens) {
  for (size_t i = 0; i < tables_.size(); ++i) tables_[i].shorten(pools_->table_tokens(i, n_tokens));
  n_tokens_ = std::min(n_tokens_, n_tokens);
}

}  // namespace levin
