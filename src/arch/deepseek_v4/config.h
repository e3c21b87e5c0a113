// What DeepSeek-V4 adds to the config (model_spec.md 2.3).
//
// It has one key-value head whose rows are keys and values at once: d_nope + d_rope = head_dim, d_latent, d_value and
// d_dense are 0, n_groups and n_groups_kept 1. It has no dense layers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"

namespace levin {

// What a layer attends to in addition to its window: entries that each stand for `ratio` tokens (model_spec.md 6.4).
enum class Compression : uint8_t {
  kNone,     // nothing: the window alone
  kIndexed,  // overlapping entries, of which the indexer selects (CSA)
  kAll,      // every complete entry (HCA)
};
struct LayerCompression {
  Compression kind = Compression::kNone;
  int64_t ratio = 0;  // tokens of an entry; 0 for kNone

  bool operator==(const LayerCompression&) const = default;
};

// The block drafter in place of an MTP layer (model_spec.md 7.4); its stages are layers of the window alone.
struct DsparkConfig {
  int64_t d_markov = 0;            // Rm   dspark_markov_rank
  int32_t noise_token = 0;         //      dspark_noise_token_id: stands where a draft is to be made
  std::vector<int> target_layers;  // Nt   dspark_target_layer_ids: layers whose streams it looks at, one for each stage
};

struct DeepseekV4Config {
  std::vector<LayerCompression> compression;  //      compress_ratios: L trunk layers, then n_mtp_layers draft layers
  int64_t n_out_groups = 0;                   // Go   o_groups
  int64_t d_out_lora = 0;                     // Ro   o_lora_rank, per group
  int n_hash_layers = 0;                      //      num_hash_layers: layers that choose experts by token id
  double compressed_rope_theta = 0;           //      compress_rope_theta, of layers with compression
  std::optional<Yarn> compressed_yarn;        //      rope_scaling, which is for those layers alone
  std::optional<DsparkConfig> dspark;         //      dspark_*; empty: an MTP layer, if any

  bool is_hash_layer(int layer) const { return layer < n_hash_layers; }
  const LayerCompression& compression_of(int layer) const { return compression[static_cast<size_t>(layer)]; }
};

// Dr/2, as ModelConfig::rope_frequencies() of the layers without compression: in layers with it, of queries, window
// rows, entries, outputs and the indexer.
std::vector<float> compressed_rope_frequencies(const ModelConfig& config);

namespace deepseek_v4 {
inline const DeepseekV4Config& own(const ModelConfig& config) { return config.own_config<DeepseekV4Config>(); }
inline DeepseekV4Config& own(ModelConfig& config) { return config.own_config<DeepseekV4Config>(); }
}  // namespace deepseek_v4

}  // namespace levin
