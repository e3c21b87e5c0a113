// What DeepSeek-V4.1 adds to the config (model_spec.md 2.5).
//
// As DeepSeek-V4 it has one key-value head whose rows are keys and values at once: d_nope + d_rope = head_dim, d_latent,
// d_value and d_dense are 0, n_groups and n_groups_kept 1. It has no dense layers. owns_indexer says which layers select
// (index_source_layer_ids).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"

namespace levin {

// What a layer attends to in addition to its window: entries that each stand for `ratio` tokens, which the layer `source`
// makes and caches for itself and those after it.
struct EntriesOfLayer {
  int64_t ratio = 0;  // 0: none
  int source = -1;
};

// The first of two levels of selection: layers after `source` select inside the blocks that it chooses.
struct CandidateBlocks {
  int source = -1;         //      candidate_source_layer_id; -1: none
  int64_t n_blocks = 0;    // Kb   candidate_topk_blocks
  int64_t block_size = 1;  //      candidate_block_size, in entries
};

// A memory of n-grams: two or more layers look rows up by the hashes of the last tokens.
struct EngramConfig {
  std::vector<int> layers;      //      engram_layer_ids
  std::vector<int64_t> n_rows;  //      engram_num_embeddings, of each
  int64_t n_gram = 0;           // Ne   engram_max_ngram_size
  int64_t n_hashes = 0;         // He   engram_n_heads, of each n-gram size
  int64_t d_row = 0;            // De   engram_head_dim
  int64_t first_prime = 0;      //      engram_vocab_size: where the search for primes begins
  int64_t n_classes = 0;        //      engram_compressed_vocab_size: of tokens that are alike
  int32_t pad_token = 0;        //      engram_pad_token_id, whose class stands before the first token

  int64_t n_columns() const { return (n_gram - 1) * n_hashes; }
  // Of the layer's place in `layers`; -1: the layer has none.
  int index_of(int layer) const;
};

struct V41DsparkConfig {
  int64_t d_markov = 0;            // Rm   dspark_markov_rank
  int32_t noise_token = 0;         //      dspark_noise_token_id
  std::vector<int> target_layers;  // Nt   dspark_target_layer_ids
  int64_t n_experts = 0;           //      dspark_n_routed_experts
  int64_t n_active = 0;            //      dspark_num_experts_per_tok
};

struct DeepseekV41Config {
  std::vector<EntriesOfLayer> entries;    //      compress_ratios, kv_source_layer_ids: L
  CandidateBlocks candidates;             //
  std::optional<EngramConfig> engram;     //      engram_*; empty: no such memory
  std::optional<V41DsparkConfig> dspark;  //      dspark_*; empty: no drafter
  int64_t n_out_groups = 0;               // Go   o_groups
  int64_t d_out_lora = 0;                 // Ro   o_lora_rank, per group
  double compressed_rope_theta = 0;       //      compress_rope_theta, of layers with entries
  std::optional<Yarn> compressed_yarn;    //      rope_scaling, which is for those layers alone

  const EntriesOfLayer& entries_of(int layer) const { return entries[static_cast<size_t>(layer)]; }
};

namespace deepseek_v41 {
inline const DeepseekV41Config& own(const ModelConfig& config) { return config.own_config<DeepseekV41Config>(); }
inline DeepseekV41Config& own(ModelConfig& config) { return config.own_config<DeepseekV41Config>(); }
// Whether the layer makes entries.
inline bool makes_entries(const ModelConfig& config, int layer) {
  return layer < config.n_layers && own(config).entries_of(layer).source == layer;
}
// The layer whose ring has the classes of the tokens; -1 without a memory.
int class_layer(const ModelConfig& config);
}  // namespace deepseek_v41

}  // namespace levin
