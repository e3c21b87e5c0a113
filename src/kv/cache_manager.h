// The one owner of cache pages: what every sequence holds of every kind of page, and which prefixes are there already.
//
// A sequence holds a SequenceCache. It begins with the longest prefix whose pages it may share, grows by real pages of
// every kind, and commits blocks as they fill up, so that later sequences find them: as shared pages where a block is a
// page, and as records in host memory or on disk where there is room for such (kv/prefix_index.h). Blocks that exist as
// records are read with restore(); putting their rows into the sequence's pages is for whoever runs the step.
//
// Room      is what is free and, of row pages, what only the prefix index holds: grow() evicts as it needs
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
  int64_t n_block_tokens = kPageTokens;  // kPageTokens wherever all rows are kept
  bool share_prefixes = true;
  int64_t max_host_blocks = 0;      // records in memory
  std::shared_ptr<PageStore> disk;  // null: none
  // Copies the rows of a block out of the caches (kv/cache.h); needed where records are kept.
  int64_t block_bytes = 0;
  std::function<void(const SequencePages& pages, int64_t block, std::span<std::byte> out)> copy_block;
};

// What one sequence holds.
class SequenceCache {
 public:
  explicit SequenceCache(SequencePools& pools) : pages_(pools) {}
  const SequencePages& pages() const { return pages_; }

 private:
  friend class CacheManager;

  SequencePages pages_;
  std::vector<BlockKey> keys_;  // of its blocks 0, 1, ... as far as they were asked for
  int64_t n_committed_blocks_ = 0;
};

struct PrefixHit {
  int64_t n_tokens = 0;  // whole blocks
  ResumeState resume;    // of the last of them
};

// A block whose rows are to be put into the sequence's pages.
struct RestoredBlock {
  int64_t block = 0;
  std::shared_ptr<const BlockRecord> record;
  bool from_disk = false;

  ResumeState resume() const { return {record, &record->state}; }
};

// Of the pool with the least share of free pages, the ones that no sequence can be short of left out.
struct CacheUsage {
  int64_t n_pages = 0;
  int64_t n_free = 0;
  int64_t n_cached = 0;  // held by the prefix index alone; the rest is in use
};

class CacheManager {
 public:
  CacheManager(SequencePools& pools, CacheOptions options);

  SequencePools& pools() { return *pools_; }
  const SequencePools& pools() const { return *pools_; }
  const CacheOptions& options() const { return options_; }
  const PrefixIndex& index() const { return index_; }

  // Begins with what is there of `tokens` as shared pages; the last token is never among it, for its row gives the next.
  // The sequence holds nothing yet.
  PrefixHit begin(SequenceCache& s, std::span<const int32_t> tokens);
  // Gives everything back.
  void release(SequenceCache& s);

  // Whether n_tokens of this sequence would fit and leave each of the others room for a page of tokens more.
  bool has_room(const SequenceCache& s, int64_t n_tokens, std::span<const SequenceCache* const> others) const;
  // Makes room for n_tokens, at the cost of prefixes that no sequence uses; false: there is not enough, and nothing
  // has changed.
  bool grow(SequenceCache& s, int64_t n_tokens);

  // The records of blocks `first` and on, as far as they exist, up to those that fit `n_room_tokens` and leave the last
  // of `tokens` to compute; all before are committed. Once their rows are in the sequence's pages, commit_restored().
  std::vector<RestoredBlock> restore(SequenceCache& s, std::span<const int32_t> tokens, int64_t first,
                                     int64_t n_room_tokens);
  void commit_restored(SequenceCache& s, std::span<const int32_t> tokens, std::span<const RestoredBlock> blocks);
  // Whether the record of this block exists and restore() would take it.
  bool has_record(SequenceCache& s, std::span<const int32_t> tokens, int64_t block);

  // The first n_settled of `tokens` have rows in every cache that will not change. `resume` has the states of the blocks
  // that were completed since the last call.
  void commit(SequenceCache& s, std::span<const int32_t> tokens, int64_t n_settled,
              std::span<const ResumeState> resume);

  void forget_prefixes();  // pages that no sequence uses; records stay
  CacheUsage usage() const;

 private:
  std::span<const BlockKey> keys(SequenceCache& s, std::span<const int32_t> tokens, int64_t n_blocks) const;
  BlockPlace place(const SequenceCache& s, std::span<const int32_t> tokens, int64_t block) const;
  int64_t n_restorable_blocks(std::span<const int32_t> tokens) const;
  void enter(SequenceCache& s, std::span<const int32_t> tokens, std::span<const ResumeState> resume);
  void keep_records(SequenceCache& s, std::span<const int32_t> tokens, std::span<const ResumeState> resume);

  SequencePools* pools_;
  CacheOptions options_;
  PrefixIndex index_;
};

}  // namespace levin
