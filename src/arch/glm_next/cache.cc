// What the layers of GLM-5.3-Flash cache, and how they round.
#include <algorithm>
#include <bit>

#include "arch/glm_next/config.h"
#include "arch/glm_next/parts.h"

namespace levin::glm_next {
namespace {

// Blocks of so many tokens that a state takes no more than this of each, in a layer; whole pages, up to kMostTokens.
constexpr int64_t kStateBytesPerToken = 2048;
constexpr int64_t kMostTokens = 2048;

LayerCacheFormat linear_cache(const GlmNextConfig& c) {
  RecurrentFormat format{.n_heads = c.n_linear_heads, .d_head = c.d_linear_head, .n_taps = c.n_taps};
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, 4 * format.end_values() / kStateBytesPerToken));
  format.n_block_tokens = std::clamp(static_cast<int64_t>(std::bit_ceil(wanted)), kPageTokens, kMostTokens);
  return {.latent = {}, .index = std::nullopt, .compressed = std::nullopt, .recurrent = format};
}

// Keys by pool, latent rows by token. The MTP layer's pools lie across the ends of pages, so that a block's end may have
// open ones.
LayerCacheFormat pooled_cache(const ModelConfig& config, const Numerics& numerics, bool mtp) {
  const int64_t n_pool = own(config).n_pool;
  const StateFormat state{.n_channels = config.d_index, .n_tokens = n_pool, .n_before = mtp ? n_pool - 1 : 0};
  return {
      .latent = latent_format(numerics.latent, config.d_latent, 0),
      .index = index_key_format(numerics.index_keys, config.d_index),
      .compressed =
          CompressedFormat{.ratio = n_pool, .entries = {}, .state = {}, .index_state = state, .after_position = mtp},
      .recurrent = std::nullopt};
}

}  // namespace

LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer) {
  if (is_linear(config, layer)) return linear_cache(own(config));
  return pooled_cache(config, numerics, layer == config.n_layers);
}

// The rows of linear attention (q, k, v before and after the convolution, decay, gate, output), the indexer's keys with
// their gates, and what pools are selected.
int64_t own_workspace(const ModelConfig& config) {
  return 9 * own(config).d_linear() + 3 * config.d_index + own(config).n_pool_topk;
}

int64_t draft_state(const ModelConfig& config) { return config.d_model; }

// The release is computed with one epsilon for all norms (model_spec.md 10.3).
Numerics adjust_numerics(Numerics numerics) {
  numerics.latent_norm_eps = std::nullopt;
  return numerics;
}

}  // namespace levin::glm_next
