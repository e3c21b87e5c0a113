#include "model/cache_layout.h"

namespace levin {
namespace {

LayerCacheFormat latent_layer(const ModelConfig& config, const Numerics& numerics, int layer) {
  LayerCacheFormat format{.latent = latent_format(numerics.latent, config.d_latent, config.d_rope)};
  if (config.has_indexer(layer)) format.index = index_key_format(numerics.index_keys, config.d_index);
  return format;
}

// Channels of a compressor of rows d wide, and the tokens it pools: overlapping entries reach back to the tokens of the
// entry before.
StateFormat state_format(const LayerCompression& compression, int64_t d) {
  const int64_t n_halves = compression.kind == Compression::kIndexed ? 2 : 1;
  return {.n_channels = n_halves * d,
          .n_tokens = n_halves * compression.ratio,
          .n_before = (n_halves - 1) * compression.ratio};
}

LayerCacheFormat window_layer(const ModelConfig& config, const Numerics& numerics,
                              const LayerCompression& compression) {
  const LatentFormat rows = key_value_format(numerics.latent, config.d_head(), config.d_rope);
  LayerCacheFormat format{.latent = rows};
  if (compression.kind == Compression::kNone) return format;
  format.compressed = {
      .ratio = compression.ratio, .entries = rows, .state = state_format(compression, config.d_head())};
  if (compression.kind != Compression::kIndexed) return format;
  format.index = index_key_format(numerics.index_keys, config.d_index);
  format.compressed->index_state = state_format(compression, config.d_index);
  return format;
}

}  // namespace

CacheLayout cache_layout(const ModelConfig& config, const Numerics& numerics, bool has_mtp) {
  CacheLayout layout{.layers = {}, .n_window = config.n_window};
  const int n_layers = config.n_layers + (has_mtp ? 1 : 0);
  for (int i = 0; i < n_layers; ++i) {
    layout.layers.push_back(config.family == ModelFamily::kDeepseekV4
                                ? window_layer(config, numerics, config.compression[static_cast<size_t>(i)])
                                : latent_layer(config, numerics, i));
  }
  return layout;
}

}  // namespace levin
