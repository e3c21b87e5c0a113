// What the layers of DeepSeek-V4 cache, and how its own code rounds.
#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/parts.h"

namespace levin::deepseek_v4 {
namespace {

// Channels of a compressor of rows d wide, and the tokens it pools: overlapping entries reach back to the tokens of the
// entry before.
StateFormat state_format(const LayerCompression& compression, int64_t d) {
  const int64_t n_halves = compression.kind == Compression::kIndexed ? 2 : 1;
  return {.n_channels = n_halves * d,
          .n_tokens = n_halves * compression.ratio,
          .n_before = (n_halves - 1) * compression.ratio};
}

}  // namespace

LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer) {
  const LayerCompression& compression = own(config).compression_of(layer);
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

// The compressors' values and gates, the rows between the two halves of the output projection, and the block drafter's
// taps.
int64_t own_workspace(const ModelConfig& config) {
  const int64_t taps = own(config).dspark ? config.n_mtp_layers * config.d_model : 0;
  return 4 * (config.d_head() + config.d_index) + own(config).n_out_groups * own(config).d_out_lora + taps;
}

// Its index queries and keys are in FP4, kept as bf16.
Numerics adjust_numerics(Numerics numerics) {
  if (numerics.mode != NumericsMode::kOfficial) return numerics;
  numerics.index_keys = CacheDType::kBF16;
  numerics.fp4_index = true;
  numerics.weigh_hidden = true;
  return numerics;
}

}  // namespace levin::deepseek_v4
