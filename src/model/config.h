// The facts of a model, read once from its config.json and never changed.
//
// config.json is read raw, in the official spelling (rope_theta + rope_scaling) and in that of transformers 5
// (rope_parameters). Its keys stand in three lists (config_keys.cc, and those of its family):
// those honoured, those known to be harmless, and those known to change the mathematics, which are refused by name at
// any value that is not implemented. A key in none of them is named in a warning.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/rope.h"

namespace levin {

struct Architecture;  // a family of models (model/architecture.h)

// rope_scaling of type yarn (model-spec 3.3).
struct Yarn {
  double factor = 1;
  double original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

// What a layer of DeepSeek-V4 attends to beside its window: entries that each stand for `ratio` tokens (model-spec
// 6.4).
enum class Compression : uint8_t {
  kNone,     // nothing: the window alone
  kIndexed,  // overlapping entries, of which the indexer picks (CSA)
  kAll,      // every complete entry (HCA)
};
struct LayerCompression {
  Compression kind = Compression::kNone;
  int64_t ratio = 0;  // tokens of an entry; 0 for kNone

  bool operator==(const LayerCompression&) const = default;
};

// Field: source key. Symbols as in docs/glossary.md. A family leaves the fields it does not have at their defaults.
//
// DeepSeek-V4 has one key-value head whose rows are keys and values at once: d_nope + d_rope = head_dim, d_latent,
// d_value and d_dense are 0, n_groups and n_groups_kept 1. It has no dense layers.
struct ModelConfig {
  const Architecture* family = nullptr;  // by model_type; never null in a config that was read
  std::string architecture;              // architectures[0]

  int64_t n_vocab = 0;           // V    vocab_size
  int64_t d_model = 0;           // D    hidden_size
  int n_layers = 0;              // L    num_hidden_layers
  int n_mtp_layers = 0;          //      num_nextn_predict_layers, 0 or 1
  int64_t max_position = 0;      //      max_position_embeddings
  float norm_eps = 1e-6f;        //      rms_norm_eps; Numerics may give the norms of the two latents another
  float index_norm_eps = 1e-6f;  //      the indexer's key LayerNorm; fixed by the model code

  int64_t n_heads = 0;   // H    num_attention_heads
  int64_t d_q_lora = 0;  // Rq   q_lora_rank
  int64_t d_latent = 0;  // Rk   kv_lora_rank
  int64_t d_nope = 0;    // Dn   qk_nope_head_dim
  int64_t d_rope = 0;    // Dr   qk_rope_head_dim
  int64_t d_value = 0;   // Dv   v_head_dim

  int64_t n_index_heads = 0;  // Hi   index_n_heads
  int64_t d_index = 0;        // Di   index_head_dim
  int64_t n_picks = 0;        // K    index_topk
  // [L]  Whether a layer has an indexer of its own; the others take the picks of the nearest one below that has. All of
  //      them in V3.2; in GLM-5 indexer_types, index_topk_pattern, or index_topk_freq with index_skip_topk_offset.
  std::vector<bool> owns_indexer;
  bool mtp_owns_indexer = true;            // the same of the MTP layer
  bool share_picks_across_drafts = false;  // index_share_for_mtp_iteration: drafts reuse the first one's picks

  int n_dense_layers = 0;                //      first_k_dense_replace
  int64_t d_dense = 0;                   //      intermediate_size
  int64_t n_experts = 0;                 // E    n_routed_experts
  int64_t n_active = 0;                  // A    num_experts_per_tok
  int64_t n_shared_experts = 0;          //      n_shared_experts
  int64_t d_expert = 0;                  // F    moe_intermediate_size
  int n_groups = 1;                      //      n_group
  int n_groups_kept = 1;                 //      topk_group
  bool normalize_expert_weights = true;  //      norm_topk_prob
  float expert_factor = 1;               //      routed_scaling_factor

  double rope_theta = 10000;                                           //      rope_theta, or rope_parameters.rope_theta
  std::optional<Yarn> yarn;                                            //      rope_scaling, or rope_parameters
  ops::RopePairing rope_pairing = ops::RopePairing::kInterleaved;      // attention
  ops::RopePairing index_rope_pairing = ops::RopePairing::kHalfSplit;  // indexer: half-split in V3.2 alone

  // DeepSeek-V4 alone (model-spec 2.3).
  std::vector<LayerCompression> compression;  //      compress_ratios: L trunk layers, then n_mtp_layers MTP layers
  int64_t n_window = 0;                       // W    sliding_window: tokens a query sees uncompressed, itself included
  int64_t n_streams = 1;                      //      hc_mult: residual streams
  int n_sinkhorn_steps = 0;                   //      hc_sinkhorn_iters
  float stream_eps = 0;                       //      hc_eps
  int64_t n_out_groups = 0;                   // Go   o_groups
  int64_t d_out_lora = 0;                     // Ro   o_lora_rank, per group
  float ffn_limit = 0;                        //      swiglu_limit
  int n_hash_layers = 0;                      //      num_hash_layers: layers that choose experts by token id
  double compressed_rope_theta = 0;           //      compress_rope_theta, of layers with compression
  std::optional<Yarn> compressed_yarn;        //      rope_scaling, which V4 applies to those layers alone

  bool fp8_blocks = false;     //      quantization_config given; for plans and dummies, tensors say what they are
  bool mxfp4_experts = false;  //      expert_dtype "fp4", or absent beside quantization_config; likewise

  int32_t bos_token = -1;           //      bos_token_id, -1 when absent
  std::vector<int32_t> eos_tokens;  //      eos_token_id, a number or a list

  bool is_sparse_layer(int layer) const { return layer >= n_dense_layers; }
  // Layer n_layers is the MTP layer.
  bool has_indexer(int layer) const {
    return layer < n_layers ? owns_indexer[static_cast<size_t>(layer)] : mtp_owns_indexer;
  }
  // Of the trunk.
  int n_indexers() const { return static_cast<int>(std::count(owns_indexer.begin(), owns_indexer.end(), true)); }
  int64_t d_head() const { return d_nope + d_rope; }
  float attention_scale() const;  // d_head^-1/2, times YaRN's (0.1 mscale_all_dim ln factor + 1)^2
  float index_scale() const;      // Di^-1/2 Hi^-1/2
  bool is_hash_layer(int layer) const { return layer < n_hash_layers; }
  // Dr/2, f32 with the reference's roundings; the indexer uses the same table. V4: of layers without compression.
  std::vector<float> rope_frequencies() const;
  // The same of V4's layers with compression: queries, window rows, entries, outputs and the indexer.
  std::vector<float> compressed_rope_frequencies() const;
};

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  // one sentence each, naming the key
};

}  // namespace levin
