// The cache arrays of a model: for every layer one array of latent pages and, where the layer has them, arrays of
// index-key pages, of entry pages and of compressor state.
//
// A block is the smallest number of tokens after which every page and every entry is complete. Its record contains what
// its tokens leave in the caches, as far as it is needed to resume after the block: a sequence into which the records
// of blocks 0 .. n-1 are copied, in this order, is in the same state as if it had computed their tokens. Where all rows
// are kept, a block is a page and its record is that page. A record has, layer by layer,
//
//   latent rows   of the block's tokens; with a window, of at most the last n_window of them
//   entries       that the block's tokens complete
//   index keys    of these tokens, or of these entries: for each page its keys, then for fp8 its scales
//   state         the compressor's rows that the first entry of the next block pools; then the index compressor's
//   recurrent     the rows of the block's last tokens that the convolution of the next block reads; then the state after them
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv/block_copies.h"
#include "kv/sequence_pages.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"
#include "tensor/formats.h"

namespace levin {

// What a layer with compression caches in addition to its rows by token: entries that each stand for `ratio` tokens, and
// the state from which its compressors make them. If only index keys are compressed, `entries` and `state` have no bytes.
struct CompressedFormat {
  int64_t ratio = 0;
  LatentFormat entries;
  StateFormat state;
  std::optional<StateFormat> index_state;  // of the indexer's compressor
  bool after_position = false;             // of the MTP layer: PageKinds::mtp_entries
};

// What one layer caches.
struct LayerCacheFormat {
  LatentFormat latent;                  // one row per token; no bytes: no rows
  std::optional<IndexKeyFormat> index;  // one key per token, or per entry with `compressed`; empty: no indexer
  std::optional<CompressedFormat> compressed;
  std::optional<RecurrentFormat> recurrent;
};

struct CacheLayout {
  std::vector<LayerCacheFormat> layers;  // of the target, then the draft layers
  int64_t n_window = 0;                  // tokens whose latent rows are kept; 0: all

  PageKinds page_kinds() const;
  bool keeps_all_rows() const;  // no window, no entries, no recurrent state
  int64_t block_tokens() const;
  int64_t block_bytes() const;  // of a block's record
  // Bytes that grow with the context, per token of a long context.
  int64_t latent_bytes_per_token() const;  // includes entries
  int64_t index_bytes_per_token() const;
  // Bytes that do not grow: the window's ring and the compressor state of one sequence, with the ends of its open
  // blocks.
  int64_t bytes_per_sequence(const CacheLimits& limits) const;
  // Of the entry pages that sequences may leave partly empty: all but one of them have one more of each kind.
  int64_t spare_bytes(const CacheLimits& limits) const;
};

class KvCache {
 public:
  KvCache() = default;  // no layers
  // Allocates the pages and rings of the pools in host memory.
  KvCache(const CacheLayout& layout, const SequencePools& pools);
  // The same in the memory of a device, which must outlive the cache; kOutOfMemory if it has no room.
  static Result<KvCache> on_device(DeviceMemory& memory, const CacheLayout& layout, const SequencePools& pools);

  const LayerCacheFormat& format(int layer) const { return layers_[layer].format; }

  // The rows of a layer, addressed through the block tables of a step, [B, max pages] i32: the tables of tokens for
  // rows and keys per token, those of the layer's ratio for rows and keys per entry.
  PagedRows latent_rows(int layer, View tables) const;
  PagedRows index_rows(int layer, View tables) const;
  PagedRows entry_rows(int layer, View tables) const;
  // A layer's compressor state by ring id, [B] i32.
  StateRings state(int layer, View rings) const;
  StateRings index_state(int layer, View rings) const;
  RecurrentRings recurrent(int layer, View rings) const;

  int64_t n_bytes() const;

  int64_t block_tokens() const { return n_block_tokens_; }
  int64_t block_bytes() const { return n_block_bytes_; }
  // Copies block n of a sequence, which begins at token n * block_tokens(), to a record of block_bytes() bytes. Its
  // tokens must have been computed; where rows are overwritten (a window, compressor state), within the last
  // CacheLimits::open_blocks() blocks.
  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const;
  // The same of a device's caches, in parallel with the steps there (kv/block_copies.h). Null: the record is there already.
  std::unique_ptr<BlockCopy> start_copy(const SequencePages& pages, int64_t block, std::span<std::byte> out) const;
  void follow_steps() const;  // copies from now on may read what steps wrote that nobody has waited for
  void hold_steps() const;    // steps from now on may write over what is being copied
  // Overwrites block n with a record. The sequence must have pages for its tokens and the blocks before it, and no
  // computed tokens after it.
  void set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record);

 private:
  using Allocate = std::function<Result<Buffer>(int64_t n_bytes)>;
  Status allocate(const CacheLayout& layout, const SequencePools& pools, const Allocate& allocate);

  // Where a block's record has its state from: the rings, or what ends blocks.
  enum class StatePlace : uint8_t { kRing, kEnd };
  // Calls f(address, bytes) for every piece of a block's record.
  template <class F>
  void for_each_piece(const SequencePages& pages, int64_t block, StatePlace place, F f) const;
  template <class F>
  void for_each_recurrent(const RecurrentRings& rings, int64_t n_tokens, StatePlace place, F f) const;
  StateRings rings_of(const Buffer& state, const StateFormat& format, View ids) const;
  RecurrentRings recurrent_of(const Buffer& state, const RecurrentFormat& format, View ids) const;

  struct Layer {
    LayerCacheFormat format;
    size_t kind = 0;  // page kind of its entries
    Buffer latent;
    Buffer index;
    Buffer entries;
    Buffer state;
    Buffer index_state;
    Buffer recurrent;
  };
  std::vector<Layer> layers_;
  DeviceMemory* memory_ = nullptr;       // null: host memory
  std::unique_ptr<BlockCopies> copies_;  // null: they wait
  CacheLimits limits_;
  int64_t n_window_ = 0;
  int64_t n_block_tokens_ = kPageTokens;
  int64_t n_block_bytes_ = 0;
};

}  // namespace levin
