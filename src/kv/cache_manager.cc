#include "kv/cache_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace levin {

namespace {

PrefixIndex index_of(SequencePools& pools, const CacheOptions& options) {
  if (!options.assumed.empty()) return PrefixIndex(options.assumed);
  if (!options.share_prefixes) return {nullptr, 0, nullptr};
  return {pools.keeps_all_rows() ? &pools.rows() : nullptr, options.max_host_blocks, options.disk};
}

}  // namespace

CacheManager::CacheManager(SequencePools& pools, CacheOptions options)
    : pools_(&pools), options_(std::move(options)), index_(index_of(pools, options_)) {
  LEVIN_CHECK(!index_.shares_pages() || options_.n_block_tokens == kPageTokens,
              "blocks of {} tokens cannot be shared as pages of {}", options_.n_block_tokens, kPageTokens);
  LEVIN_CHECK(!index_.keeps_records() || options_.copy_block, "records of blocks are kept and nothing copies them");
}

// ---- sequences -----------------------------------------------------------------------------------------------------

PrefixHit CacheManager::begin(SequenceCache& s, std::span<const int32_t> tokens) {
  if (!index_.shares_pages()) return {};
  const int64_t n_blocks = n_restorable_blocks(tokens);
  SharedPages::Match match = index_.pages().find(keys(s, tokens, n_blocks));
  s.n_committed_blocks_ = std::ssize(match.pages);
  s.pages_.begin_with(std::move(match.pages));
  if (index_.keeps_records()) index_.use_records(keys(s, tokens, s.n_committed_blocks_));
  return {.n_tokens = s.n_committed_blocks_ * options_.n_block_tokens, .resume = std::move(match.resume)};
}

void CacheManager::release(SequenceCache& s) {
  s.pages_.shorten(0);
  s.n_committed_blocks_ = 0;
}

// The pages of a pool for n_tokens of a sequence and for one more page of tokens in each of the others.
int64_t CacheManager::n_needed(size_t pool, const SequenceCache& s, int64_t n_tokens,
                               std::span<const SequenceCache* const> others) {
  int64_t n = s.pages_.n_missing(pool, n_tokens);
  for (const SequenceCache* other : others) n += other->pages_.n_missing(pool, other->pages_.n_tokens() + kPageTokens);
  return n;
}

bool CacheManager::has_room(const SequenceCache& s, int64_t n_tokens,
                            std::span<const SequenceCache* const> others) const {
  for (size_t i = 0; i < pools_->n_pools(); ++i) {
    if (pools_->never_short(i)) continue;
    const int64_t n = n_needed(i, s, n_tokens, others);
    if (n <= pools_->pool(i).n_free()) continue;  // counting the others takes longer
    const int64_t n_evictable = i == 0 && index_.shares_pages() ? index_.pages().n_evictable() : 0;
    if (n > pools_->pool(i).n_free() + n_evictable) return false;
  }
  return true;
}

// Pages that several have count once, and what the prefix index alone refers to can be evicted.
bool CacheManager::would_have_room(const SequenceCache& s, int64_t n_tokens,
                                   std::span<const SequenceCache* const> others) const {
  for (size_t i = 0; i < pools_->n_pools(); ++i) {
    if (pools_->never_short(i)) continue;
    std::vector<bool> is_held(static_cast<size_t>(pools_->pool(i).n_pages()), false);
    const auto hold = [&](const SequenceCache& holder) {
      for (const int32_t page : holder.pages_.pages(i)) is_held[static_cast<size_t>(page)] = true;
    };
    hold(s);
    for (const SequenceCache* other : others) hold(*other);
    if (n_needed(i, s, n_tokens, others) > std::count(is_held.begin(), is_held.end(), false)) return false;
  }
  return true;
}

bool CacheManager::grow(SequenceCache& s, int64_t n_tokens) {
  for (size_t i = 0; i < pools_->n_pools(); ++i) {
    const int64_t n_short = s.pages_.n_missing(i, n_tokens) - pools_->pool(i).n_free();
    if (n_short <= 0) continue;
    if (i > 0 || !index_.shares_pages()) return false;
    if (index_.pages().evict(static_cast<int32_t>(n_short)) < n_short) return false;
  }
  const Status grown = s.pages_.grow(n_tokens);
  LEVIN_CHECK(grown.ok(), "pages went while they were being counted: {}", grown.ok() ? "" : grown.error().message);
  return true;
}

// ---- blocks --------------------------------------------------------------------------------------------------------

std::span<const BlockKey> CacheManager::keys(SequenceCache& s, std::span<const int32_t> tokens,
                                             int64_t n_blocks) const {
  while (std::ssize(s.keys_) < n_blocks) {
    const BlockPlace next = place(s, tokens, std::ssize(s.keys_));
    s.keys_.push_back(key_after(next.before, next.tokens));
  }
  return std::span(s.keys_).first(static_cast<size_t>(n_blocks));
}

// The keys of the blocks before it are known.
BlockPlace CacheManager::place(const SequenceCache& s, std::span<const int32_t> tokens, int64_t block) const {
  return {.before = block > 0 ? s.keys_[static_cast<size_t>(block - 1)] : index_.first_key(),
          .tokens = tokens.subspan(static_cast<size_t>(block * options_.n_block_tokens),
                                   static_cast<size_t>(options_.n_block_tokens))};
}

// Whole blocks without the last token, which has to be computed.
int64_t CacheManager::n_restorable_blocks(std::span<const int32_t> tokens) const {
  return (std::ssize(tokens) - 1) / options_.n_block_tokens;
}

std::vector<RestoredBlock> CacheManager::restore(SequenceCache& s, std::span<const int32_t> tokens, int64_t first,
                                                 int64_t n_room_tokens) {
  std::vector<RestoredBlock> out;
  if (!index_.keeps_records()) return out;
  LEVIN_CHECK(first == s.n_committed_blocks_, "blocks are restored from {} on, {} are committed", first,
              s.n_committed_blocks_);
  const int64_t end = std::min(n_room_tokens / options_.n_block_tokens, n_restorable_blocks(tokens));
  for (int64_t block = first; block < end; ++block) {
    const BlockKey key = keys(s, tokens, block + 1).back();
    PrefixIndex::Found found = index_.find_record(key, place(s, tokens, block));
    if (found.record == nullptr) break;
    out.push_back({.block = block, .record = std::move(found.record), .from_disk = found.from_disk});
  }
  return out;
}

void CacheManager::commit_restored(SequenceCache& s, std::span<const int32_t> tokens,
                                   std::span<const RestoredBlock> blocks) {
  std::vector<ResumeState> resume;
  for (const RestoredBlock& block : blocks) resume.push_back(block.resume());
  enter(s, tokens, resume);
}

bool CacheManager::has_record(SequenceCache& s, std::span<const int32_t> tokens, int64_t block) {
  return index_.keeps_records() && block < n_restorable_blocks(tokens) &&
         index_.has_record(keys(s, tokens, block + 1).back());
}

void CacheManager::commit(SequenceCache& s, std::span<const int32_t> tokens, int64_t n_committed,
                          std::span<const ResumeState> resume) {
  if (!index_.shares_pages() && !index_.keeps_records()) return;
  const int64_t n_blocks = n_committed / options_.n_block_tokens;
  LEVIN_CHECK(s.n_committed_blocks_ + std::ssize(resume) == n_blocks,
              "states for {} blocks, {} were committed before, {} are full", resume.size(), s.n_committed_blocks_,
              n_blocks);
  if (resume.empty()) return;
  keys(s, tokens, n_blocks);
  if (index_.keeps_records()) keep_records(s, tokens, resume);
  enter(s, tokens, resume);
}

// The blocks after the committed ones, as many as there are states, are now found by others.
void CacheManager::enter(SequenceCache& s, std::span<const int32_t> tokens, std::span<const ResumeState> resume) {
  const std::span<const BlockKey> path = keys(s, tokens, s.n_committed_blocks_ + std::ssize(resume));
  if (index_.shares_pages()) {
    index_.pages().adopt(path, s.pages_.first_rows(path.size()), static_cast<size_t>(s.n_committed_blocks_), resume);
  }
  if (index_.keeps_records()) index_.use_records(path);
  s.n_committed_blocks_ = std::ssize(path);
}

void CacheManager::keep_records(SequenceCache& s, std::span<const int32_t> tokens,
                                std::span<const ResumeState> resume) {
  for (size_t i = 0; i < resume.size(); ++i) {
    const int64_t block = s.n_committed_blocks_ + static_cast<int64_t>(i);
    index_.keep_record(s.keys_[static_cast<size_t>(block)], place(s, tokens, block), [&] {
      auto record = std::make_shared<BlockRecord>(
          BlockRecord{.state = *resume[i], .rows = std::vector<std::byte>(static_cast<size_t>(options_.block_bytes))});
      std::unique_ptr<BlockCopy> copy = options_.copy_block(s.pages_, block, record->rows);
      return PrefixIndex::NewRecord{std::move(record), std::move(copy)};
    });
  }
}

// ---- the whole -----------------------------------------------------------------------------------------------------

void CacheManager::forget_prefixes() {
  if (index_.shares_pages()) index_.pages().evict(index_.pages().n_pages());
}

CacheUsage CacheManager::usage() const {
  const bool rows_alone = pools_->kinds().ratios.empty();
  CacheUsage fullest;
  for (size_t i = 0; i < pools_->n_pools(); ++i) {
    const PagePool& pool = pools_->pool(i);
    if (pools_->never_short(i) && !(i == 0 && rows_alone)) continue;
    // shares of free pages compared without dividing
    if (fullest.n_pages > 0 && pool.n_free() * fullest.n_pages >= fullest.n_free * pool.n_pages()) continue;
    fullest = {.n_pages = pool.n_pages(), .n_free = pool.n_free()};
    if (i == 0 && index_.shares_pages()) fullest.n_cached = index_.pages().n_evictable();
  }
  return fullest;
}

}  // namespace levin
