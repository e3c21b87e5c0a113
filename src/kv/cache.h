// The cache arrays of a model: for every layer one array of latent pages and, where the layer has an indexer, one of
// index-key pages.
#pragma once

#include <optional>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/formats.h"

namespace levin {

// What one layer caches per token.
struct LayerCacheFormat {
  LatentFormat latent;
  std::optional<IndexKeyFormat> index;  // empty: the layer has no indexer of its own
};

class KvCache {
 public:
  KvCache(std::vector<LayerCacheFormat> layers, int32_t n_pages);

  const LayerCacheFormat& format(int layer) const { return layers_[layer].format; }

  // A layer's rows seen through the block tables of a step, [B, max pages] i32.
  PagedRows latent_rows(int layer, View tables) const;
  PagedRows index_rows(int layer, View tables) const;

  int64_t n_bytes() const;

 private:
  struct Layer {
    LayerCacheFormat format;
    Buffer latent;  // [n_pages, latent page bytes]
    Buffer index;   // [n_pages, index page bytes]
  };
  std::vector<Layer> layers_;
};

}  // namespace levin
