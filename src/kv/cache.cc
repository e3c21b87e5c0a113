#include "kv/cache.h"

#include <algorithm>

#include "base/check.h"

namespace levin {

PageKinds CacheLayout::page_kinds() const {
  PageKinds kinds{.n_window = n_window, .ratios = {}};
  for (const LayerCacheFormat& layer : layers) {
    if (layer.compressed) kinds.ratios.push_back(layer.compressed->ratio);
  }
  std::sort(kinds.ratios.begin(), kinds.ratios.end());
  kinds.ratios.erase(std::unique(kinds.ratios.begin(), kinds.ratios.end()), kinds.ratios.end());
  return kinds;
}

bool CacheLayout::keeps_all_rows() const {
  return n_window == 0 &&
         std::none_of(layers.begin(), layers.end(), [](const LayerCacheFormat& l) { return l.compressed.has_value(); });
}

int64_t CacheLayout::page_bytes() const {
  int64_t n = 0;
  for (const LayerCacheFormat& layer : layers) {
    n += layer.latent.page_bytes() + (layer.index ? layer.index->page_bytes() : 0);
  }
  return n;
}

int64_t CacheLayout::latent_bytes_per_token() const {
  int64_t page_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (n_window == 0) page_bytes += layer.latent.page_bytes();
    if (layer.compressed) page_bytes += layer.compressed->entries.page_bytes() / layer.compressed->ratio;
  }
  return page_bytes / kPageTokens;
}

int64_t CacheLayout::index_bytes_per_token() const {
  int64_t page_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (layer.index) page_bytes += layer.index->page_bytes() / (layer.compressed ? layer.compressed->ratio : 1);
  }
  return page_bytes / kPageTokens;
}

int64_t CacheLayout::bytes_per_sequence(const CacheLimits& limits) const {
  const auto ring_bytes = [&](const StateFormat& state) {
    return state.ring_rows(limits.n_undone) * state.row_bytes();
  };
  int64_t n_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (n_window > 0) n_bytes += limits.ring_pages(n_window) * layer.latent.page_bytes();
    if (!layer.compressed) continue;
    n_bytes += ring_bytes(layer.compressed->state);
    if (layer.compressed->index_state) n_bytes += ring_bytes(*layer.compressed->index_state);
  }
  return n_bytes;
}

KvCache::KvCache(const CacheLayout& layout, const SequencePools& pools) : n_undone_(pools.limits().n_undone) {
  const std::vector<int64_t>& ratios = pools.kinds().ratios;
  const auto rings = [&](const StateFormat& state) {
    return Buffer(pools.rings().n_pages() * state.ring_rows(n_undone_) * state.row_bytes());
  };
  layers_.reserve(layout.layers.size());
  for (const LayerCacheFormat& format : layout.layers) {
    Layer layer;
    layer.format = format;
    int64_t n_index_pages = pools.tokens().n_pages();
    const PagePool& rows = layout.n_window > 0 ? pools.windows() : pools.tokens();
    layer.latent = Buffer(format.latent.page_bytes() * rows.n_pages());
    if (format.compressed) {
      const auto kind = std::find(ratios.begin(), ratios.end(), format.compressed->ratio) - ratios.begin();
      n_index_pages = pools.entries(static_cast<size_t>(kind)).n_pages();
      layer.entries = Buffer(format.compressed->entries.page_bytes() * n_index_pages);
      layer.state = rings(format.compressed->state);
      if (format.compressed->index_state) layer.index_state = rings(*format.compressed->index_state);
    }
    if (format.index) layer.index = Buffer(format.index->page_bytes() * n_index_pages);
    layers_.push_back(std::move(layer));
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

PagedRows KvCache::entry_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed.has_value(), "layer {} has no entries", layer);
  return {.pages = l.entries.data(), .page_bytes = l.format.compressed->entries.page_bytes(), .tables = tables};
}

StateRings KvCache::state(int layer, View rings) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed.has_value(), "layer {} has no compressor", layer);
  const StateFormat& format = l.format.compressed->state;
  return {.rings = l.state.data(), .n_rows = format.ring_rows(n_undone_), .format = format, .ids = rings};
}

StateRings KvCache::index_state(int layer, View rings) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed && l.format.compressed->index_state, "layer {} has no index compressor", layer);
  const StateFormat& format = *l.format.compressed->index_state;
  return {.rings = l.index_state.data(), .n_rows = format.ring_rows(n_undone_), .format = format, .ids = rings};
}

template <class F>
void KvCache::for_each_piece(int32_t page, F f) const {
  for (const Layer& l : layers_) {
    LEVIN_CHECK(!l.format.compressed, "a layer with entries has no rows of page {} alone", page);
    const int64_t n_latent = l.format.latent.page_bytes();
    f(l.latent.data() + page * n_latent, n_latent);
    if (!l.format.index) continue;
    const int64_t n_index = l.format.index->page_bytes();
    f(l.index.data() + page * n_index, n_index);
  }
}

void KvCache::copy_page(int32_t page, std::span<std::byte> out) const {
  auto to = out.begin();
  for_each_piece(page, [&](const std::byte* from, int64_t n_bytes) {
    LEVIN_CHECK(out.end() - to >= n_bytes, "{} bytes are too few for a page", out.size());
    to = std::copy_n(from, n_bytes, to);
  });
}

void KvCache::set_page(int32_t page, std::span<const std::byte> bytes) {
  auto from = bytes.begin();
  for_each_piece(page, [&](std::byte* to, int64_t n_bytes) {
    LEVIN_CHECK(bytes.end() - from >= n_bytes, "{} bytes are too few for a page", bytes.size());
    std::copy_n(from, n_bytes, to);
    from += n_bytes;
  });
}

int64_t KvCache::n_bytes() const {
  int64_t n = 0;
  for (const Layer& l : layers_) {
    for (const Buffer* buffer : {&l.latent, &l.index, &l.entries, &l.state, &l.index_state}) n += buffer->n_bytes();
  }
  return n;
}

}  // namespace levin
