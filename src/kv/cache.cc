#include "kv/cache.h"

#include "base/check.h"

namespace levin {

KvCache::KvCache(std::vector<LayerCacheFormat> layers, int32_t n_pages) {
  layers_.reserve(layers.size());
  for (LayerCacheFormat& format : layers) {
    const int64_t index_bytes = format.index ? format.index->page_bytes() * n_pages : 0;
    const int64_t latent_bytes = format.latent.page_bytes() * n_pages;
    layers_.push_back({.format = std::move(format), .latent = Buffer(latent_bytes), .index = Buffer(index_bytes)});
  }
}

PagedRows KvCache::latent_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  return {.pages = l.latent.data(), .page_bytes = l.format.latent.page_bytes(), .tables = tables};
}

PagedRows KvCache::index_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.index.has_value(), "layer {} has no index-key cache", layer);
  return {.pages = l.index.data(), .page_bytes = l.format.index->page_bytes(), .tables = tables};
}

int64_t KvCache::n_bytes() const {
  int64_t n = 0;
  for (const Layer& layer : layers_) n += layer.latent.n_bytes() + layer.index.n_bytes();
  return n;
}

}  // namespace levin
