// The cache arrays of a model: for every layer one array of latent pages and, where the layer has them, arrays of
// index-key pages, of entry pages and of compressor state.
//
// A block is the least number of tokens at whose end nothing is half done: no page of them, no entry. Its record is what
// its tokens leave in the caches and all that going on behind it needs of them, so a sequence whose blocks 0 .. n-1 are
// put in, in this order, stands as if it had run their tokens itself. Where all rows are kept a block is a page and its
// record the page. A record has, layer by layer,
//
//   latent rows   of the block's tokens; with a window of the last n_window of them, if there are more
//   entries       that its tokens complete
//   index keys    of its tokens, or of these entries: for each page their keys, then for fp8 their scales
//   state         the rows of its tokens that the next block's entries look back at; then the index compressor's
//   recurrent     the rows of its last tokens that the next block's convolution looks back at; then the state after them
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kv/sequence_pages.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"
#include "tensor/formats.h"

namespace levin {

// What a layer with compression keeps beside its rows by token: entries that stand for `ratio` tokens each, and what its
// compressors need to make them. Where index keys alone are compressed, `entries` and `state` have no bytes.
struct CompressedFormat {
  int64_t ratio = 0;
  LatentFormat entries;
  StateFormat state;
  std::optional<StateFormat> index_state;  // of the indexer's compressor
  bool after_position = false;             // of the MTP layer: PageKinds::mtp_entries
};

// What one layer caches.
struct LayerCacheFormat {
  LatentFormat latent;                  // a row per token; no bytes: none
  std::optional<IndexKeyFormat> index;  // a key per token, or per entry where there are any; empty: no indexer here
  std::optional<CompressedFormat> compressed;
  std::optional<RecurrentFormat> recurrent;
};

struct CacheLayout {
  std::vector<LayerCacheFormat> layers;
  int64_t n_window = 0;  // tokens whose latent rows are kept; 0: all

  PageKinds page_kinds() const;
  bool keeps_all_rows() const;  // of every token: no window, no entries, no recurrent state
  int64_t block_tokens() const;
  int64_t block_bytes() const;  // of a block's record
  // Of what grows with the context, in a long one; pages are whole.
  int64_t latent_bytes_per_token() const;  // entries included
  int64_t index_bytes_per_token() const;
  // Of what does not: the window's ring and the compressor state of one sequence, with the ends of its open blocks.
  int64_t bytes_per_sequence(const CacheLimits& limits) const;
};

class KvCache {
 public:
  KvCache() = default;  // of no layers
  // Pages and rings as the pools count them, on the host.
  KvCache(const CacheLayout& layout, const SequencePools& pools);
  // The same on a device, which must outlast it; an error if that has no room for them.
  static Result<KvCache> on_device(DeviceMemory& memory, const CacheLayout& layout, const SequencePools& pools);

  const LayerCacheFormat& format(int layer) const { return layers_[layer].format; }

  // A layer's rows seen through the block tables of a step, [B, max pages] i32: of the step's tokens for rows and keys
  // by token, of its entries of the layer's ratio for rows and keys by entry.
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
  // Block n of a sequence, tokens n * block_tokens() and on, as a record of block_bytes() bytes. To be copied it must
  // have been run, and where rows go again no longer ago than CacheLimits::open_blocks() say. Setting it needs pages for
  // its tokens and the blocks before it; what the sequence had run of it gives way, and nothing behind it may have been.
  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const;
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
    size_t kind = 0;  // of its entries' pages
    Buffer latent;
    Buffer index;
    Buffer entries;
    Buffer state;
    Buffer index_state;
    Buffer recurrent;
  };
  std::vector<Layer> layers_;
  DeviceMemory* memory_ = nullptr;  // null: the host's
  CacheLimits limits_;
  int64_t n_window_ = 0;
  int64_t n_block_tokens_ = kPageTokens;
  int64_t n_block_bytes_ = 0;
};

}  // namespace levin
