// The cache arrays of a model: for every layer one array of latent pages and, where the layer has them, arrays of
// index-key pages, of entry pages and of compressor state.
#pragma once

#include <optional>
#include <vector>

#include "kv/sequence_pages.h"
#include "tensor/buffer.h"
#include "tensor/formats.h"

namespace levin {

// What a layer of DeepSeek-V4 with compression keeps beside its window: entries that stand for `ratio` tokens each, and
// what its compressors need to make them.
struct CompressedFormat {
  int64_t ratio = 0;
  LatentFormat entries;
  StateFormat state;
  std::optional<StateFormat> index_state;  // of the indexer's compressor
};

// What one layer caches.
struct LayerCacheFormat {
  LatentFormat latent;                  // a row per token
  std::optional<IndexKeyFormat> index;  // a key per token, or per entry where there are any; empty: no indexer here
  std::optional<CompressedFormat> compressed;
};

struct CacheLayout {
  std::vector<LayerCacheFormat> layers;
  int64_t n_window = 0;  // tokens whose latent rows are kept; 0: all

  PageKinds page_kinds() const;
  bool keeps_all_rows() const;  // of every token: no window, no entries
  int64_t page_bytes() const;   // of a token page in all layers, where it does
  // Of what grows with the context, in a long one; pages are whole.
  int64_t latent_bytes_per_token() const;  // entries included
  int64_t index_bytes_per_token() const;
  // Of what does not: the window's ring and the compressor state of one sequence.
  int64_t bytes_per_sequence(const CacheLimits& limits) const;
};

class KvCache {
 public:
  KvCache() = default;  // of no layers
  // Pages and rings as the pools count them.
  KvCache(const CacheLayout& layout, const SequencePools& pools);

  const LayerCacheFormat& format(int layer) const { return layers_[layer].format; }

  // A layer's rows seen through the block tables of a step, [B, max pages] i32: of the step's tokens for rows and keys
  // by token, of its entries of the layer's ratio for rows and keys by entry.
  PagedRows latent_rows(int layer, View tables) const;
  PagedRows index_rows(int layer, View tables) const;
  PagedRows entry_rows(int layer, View tables) const;
  // A layer's compressor state by ring id, [B] i32.
  StateRings state(int layer, View rings) const;
  StateRings index_state(int layer, View rings) const;

  int64_t n_bytes() const;

  // One token page in all arrays, as CacheLayout::page_bytes() bytes: the layers' latent rows, each followed by its
  // index keys. For layouts that keep all rows.
  void copy_page(int32_t page, std::span<std::byte> out) const;
  void set_page(int32_t page, std::span<const std::byte> bytes);

 private:
  // Calls f(address, bytes) for every piece of a token page.
  template <class F>
  void for_each_piece(int32_t page, F f) const;

  struct Layer {
    LayerCacheFormat format;
    Buffer latent;
    Buffer index;
    Buffer entries;
    Buffer state;
    Buffer index_state;
  };
  std::vector<Layer> layers_;
  int64_t n_undone_ = 0;
};

}  // namespace levin
