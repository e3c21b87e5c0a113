// What the layers of DeepSeek-V4.1 cache, and how its own code rounds.
#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/parts.h"

namespace levin::deepseek_v41 {
namespace {

// What hashes see of the tokens: one channel, of the last n_gram tokens.
CompressedFormat class_ring(const EngramConfig& engram) {
  const StateFormat state{.n_channels = 1, .n_tokens = engram.n_gram, .n_before = engram.n_gram - 1};
  return {.ratio = 1, .entries = {}, .state = state, .index_state = std::nullopt};
}

}  // namespace

LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer) {
  const LatentFormat rows = key_value_format(numerics.latent, config.d_head(), config.d_rope);
  LayerCacheFormat format{.latent = rows};
  if (layer == class_layer(config)) format.compressed = class_ring(*own(config).engram);
  if (!makes_entries(config, layer)) return format;
  const int64_t ratio = own(config).entries_of(layer).ratio;
  format.compressed = CompressedFormat{.ratio = ratio, .entries = rows, .state = {}, .index_state = std::nullopt};
  if (ratio > 1) format.compressed->state = {.n_channels = config.d_head(), .n_tokens = ratio};
  format.index = index_key_format(numerics.index_keys, config.d_index);
  return format;
}

// What makes entries (values, gates, normed entries), the rows between the two halves of the output projection, the
// drafter's taps, candidate blocks, and a memory's rows with what is made of them.
int64_t own_workspace(const ModelConfig& config) {
  const DeepseekV41Config& c = own(config);
  const int64_t taps = c.dspark ? config.n_mtp_layers * config.d_model : 0;
  const int64_t engram =
      c.engram ? c.engram->n_columns() * (2 + c.engram->d_row) + (config.n_streams + 1) * config.d_model : 0;
  return 4 * (config.d_head() + config.d_index) + c.n_out_groups * c.d_out_lora + taps + c.candidates.n_blocks + engram;
}

// Index queries and keys are in FP4, rows of the window in FP8, entries in FP4; all are kept as bf16, which has them
// exactly, and nothing is rotated by Hadamard's matrix.
Numerics adjust_numerics(Numerics numerics) {
  numerics.rotate_index = false;
  if (numerics.mode != NumericsMode::kOfficial) return numerics;
  numerics.fp8_input = ops::Operand::kFp8By32;
  numerics.latent = CacheDType::kBF16;
  numerics.index_keys = CacheDType::kBF16;
  numerics.fp4_index = true;
  numerics.rounded_rows = true;
  numerics.weigh_hidden = true;
  return numerics;
}

}  // namespace levin::deepseek_v41
