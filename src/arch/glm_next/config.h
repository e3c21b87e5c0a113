// What GLM-5.3-Flash adds to the config (model_spec.md 2.4).
//
// n_topk is how many tokens a row of indices has room for: those of index_topk, and the incomplete pool's. d_rope is 0,
// nothing is rotated. owns_indexer says which layers attend; the others are linear.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace levin {

struct GlmNextConfig {
  int64_t n_linear_heads = 0;  // Hl   linear_attn_config.num_heads
  int64_t d_linear_head = 0;   // Dl   linear_attn_config.head_dim, of queries, keys and values
  int64_t n_taps = 0;          //      linear_attn_config.short_conv_kernel_size
  float decay_lower = 0;       //      linear_attn_config.gate_lower_bound, of the decay's logarithm
  int64_t n_pool = 0;          // Pk   index_kpool: tokens of an index key
  int64_t n_pool_topk = 0;     //      index_topk / Pk: pools selected

  int64_t d_linear() const { return n_linear_heads * d_linear_head; }
};

namespace glm_next {
inline const GlmNextConfig& own(const ModelConfig& config) { return config.own_config<GlmNextConfig>(); }
inline GlmNextConfig& own(ModelConfig& config) { return config.own_config<GlmNextConfig>(); }
inline bool is_linear(const ModelConfig& config, int layer) { return !config.has_indexer(layer); }
}  // namespace glm_next

}  // namespace levin
