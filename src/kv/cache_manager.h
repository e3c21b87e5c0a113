// The only owner of cache pages: the pages of every kind that each sequence has, and the prefixes that are cached.
//
// Each sequence has a SequenceCache. begin() gives it the longest cached prefix whose pages it can share, grow() adds
// pages of every kind, and commit() enters complete blocks into the prefix index, so that later sequences find them: as
// shared pages where a block is a page, and as records in host memory or on disk where these are configured
// (kv/prefix_index.h). restore() looks up the records of blocks; the caller copies their rows into the sequence's
// pages.
//
// Room      free pages, and row pages that only the prefix index refers to, which grow() evicts as needed
// Threads   one thread calls
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/prefix_index.h"
#include "kv/sequence_pages.h"

namespace levin {

struct CacheOptions {
  int64_t n_block_tokens = kPageTokens;  // kPageTokens if all rows are kept
  bool share_prefixes = true;
  int64_t max_host_blocks = 0;      // records in host memory
  std::shared_ptr<PageStore> disk;  // null: no prefix cache on disk
  // Copies a block out of the caches (KvCache::start_copy), as block_bytes bytes; required if records are kept.
  int64_t block_bytes = 0;
  std::function<std::unique_ptr<BlockCopy>(const SequencePages& pages, int64_t block, std::span<std::byte> out)>
      copy_block;
  BlockRecords assumed;  // not empty: as in kv/prefix_index.h, in place of all cached prefixes
};

// The pages and block keys of one sequence.
class SequenceCache {
 public:
  explicit SequenceCache(SequencePools& pools) : pages_(pools) {}
  const SequencePages& pages() const { return pages_; }

 private:
  friend class CacheManager;

  SequencePages pages_;
  std::vector<BlockKey> keys_;  // of its blocks 0, 1, ..., as far as they were computed
  int64_t n_committed_blocks_ = 0;
};

struct PrefixHit {
  int64_t n_tokens = 0;  // whole blocks
  ResumeState resume;    // of the last of them
};

// A block whose record the caller copies into the sequence's pages.
struct RestoredBlock {
  int64_t block = 0;
  std::shared_ptr<const BlockRecord> record;
  bool from_disk = false;

  ResumeState resume() const { return {record, &record->state}; }
};

// Usage of the pool with the smallest share of free pages. Pools that have pages for all sequences are not considered.
struct CacheUsage {
  int64_t n_pages = 0;
  int64_t n_free = 0;
  int64_t n_cached = 0;  // only the prefix index refers to them; all other pages are in use
};

class CacheManager {
 public:
  CacheManager(SequencePools& pools, CacheOptions options);

  SequencePools& pools() { return *pools_; }
  const SequencePools& pools() const { return *pools_; }
  const CacheOptions& options() const { return options_; }
  const PrefixIndex& index() const { return index_; }

  // Gives an empty sequence the longest prefix of `tokens` that is cached as shared pages. The prefix never includes
  // the last token, whose row must be computed to give the next token.
  PrefixHit begin(SequenceCache& s, std::span<const int32_t> tokens);
  // Releases all pages of the sequence.
  void release(SequenceCache& s);

  // Whether n_tokens of this sequence fit, with room left for one more page of tokens in each of the others.
  bool has_room(const SequenceCache& s, int64_t n_tokens, std::span<const SequenceCache* const> others) const;
  // The same if all sequences but this one and the others were released.
  bool would_have_room(const SequenceCache& s, int64_t n_tokens, std::span<const SequenceCache* const> others) const;
  // Extends the sequence's pages to n_tokens, evicting unused prefixes as needed. False if there are too few pages; the
  // sequence is then unchanged.
  bool grow(SequenceCache& s, int64_t n_tokens);

  // Looks up the records of consecutive blocks from `first` on, as many as exist, fit n_room_tokens, and leave the last
  // of `tokens` to compute. All blocks before `first` must be committed. After copying the rows into the sequence's
  // pages, call commit_restored().
  std::vector<RestoredBlock> restore(SequenceCache& s, std::span<const int32_t> tokens, int64_t first,
                                     int64_t n_room_tokens);
  void commit_restored(SequenceCache& s, std::span<const int32_t> tokens, std::span<const RestoredBlock> blocks);
  // Whether the record of this block exists and restore() would return it.
  bool has_record(SequenceCache& s, std::span<const int32_t> tokens, int64_t block);

  // Enters complete blocks into the prefix index. The rows of the first n_committed of `tokens` are final in every cache;
  // `resume` has the states of the blocks completed since the last call.
  void commit(SequenceCache& s, std::span<const int32_t> tokens, int64_t n_committed,
              std::span<const ResumeState> resume);

  void finish_records() { index_.finish_records(); }  // waits for those that are being copied
  void forget_prefixes();                             // frees the pages of prefixes that no sequence uses; records stay
  CacheUsage usage() const;

 private:
  std::span<const BlockKey> keys(SequenceCache& s, std::span<const int32_t> tokens, int64_t n_blocks) const;
  BlockPlace place(const SequenceCache& s, std::span<const int32_t> tokens, int64_t block) const;
  int64_t n_restorable_blocks(std::span<const int32_t> tokens) const;
  static int64_t n_needed(size_t pool, const SequenceCache& s, int64_t n_tokens,
                          std::span<const SequenceCache* const> others);
  void enter(SequenceCache& s, std::span<const int32_t> tokens, std::span<const ResumeState> resume);
  void keep_records(SequenceCache& s, std::span<const int32_t> tokens, std::span<const ResumeState> resume);

  SequencePools* pools_;
  CacheOptions options_;
  PrefixIndex index_;
};

}  // namespace levin
