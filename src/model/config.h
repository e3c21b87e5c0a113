// The configuration of a model, read once from its config.json and never changed.
//
// Both spellings of RoPE settings are accepted: the official one (rope_theta, rope_scaling) and that of transformers 5
// (rope_parameters). The keys of config.json are in three lists (config_keys.cc and those of the family): keys that are
// read, keys that are harmless, and keys that change the mathematics, which are refused by name at any value that is
// not implemented. A key in none of the lists causes a warning.
#pragma once

#include <algorithm>
#include <any>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/moe.h"
#include "ops/rope.h"

namespace levin {

struct Architecture;  // a family of models (model/architecture.h)

// rope_scaling of type yarn (model_spec.md 3.3).
struct Yarn {
  double factor = 1;
  double original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

// Each field names its symbol (docs/glossary.md) and its key in config.json. These are the fields that several families
// or the memory plan use. A family leaves fields that it does not have at their defaults; facts of one family are in
// `own`.
struct ModelConfig {
  const Architecture* family = nullptr;  // by model_type; never null in a config that was read
  std::string architecture;              // architectures[0]

  int64_t n_vocab = 0;   // V    vocab_size
  int64_t d_model = 0;   // D    hidden_size
  int n_layers = 0;      // L    num_hidden_layers
  int n_mtp_layers = 0;  //      layers that draft: num_nextn_predict_layers, 0 or 1; or a block drafter's stages
  int64_t n_draft_block =
      0;  // Bd   dspark_block_size: drafts that a block drafter makes at once; 0: an MTP layer, if any
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
  int64_t n_topk = 0;         // K    index_topk
  // [L]  Whether a layer has its own indexer; other layers use the top-k indices of the nearest layer below that has
  //      one. From indexer_types, index_topk_pattern, or index_topk_freq with index_skip_topk_offset; without them all
  //      true.
  std::vector<bool> owns_indexer;
  bool mtp_owns_indexer = true;           // the same for the MTP layer
  bool share_topk_across_drafts = false;  // index_share_for_mtp_iteration: drafts reuse the first draft's indices

  int n_dense_layers = 0;                                      //      first_k_dense_replace
  int64_t d_dense = 0;                                         //      intermediate_size
  int64_t n_experts = 0;                                       // E    n_routed_experts
  int64_t n_active = 0;                                        // A    num_experts_per_tok
  int64_t n_shared_experts = 0;                                //      n_shared_experts
  int64_t d_expert = 0;                                        // F    moe_intermediate_size
  int n_groups = 1;                                            //      n_group
  int n_groups_kept = 1;                                       //      topk_group
  bool normalize_expert_weights = true;                        //      norm_topk_prob
  float expert_factor = 1;                                     //      routed_scaling_factor
  ops::ExpertScore expert_score = ops::ExpertScore::kSigmoid;  // scoring_func
  float ffn_limit = ops::kNoLimit;                             //      swiglu_limit

  double rope_theta = 10000;                                           //      rope_theta, or rope_parameters.rope_theta
  std::optional<Yarn> yarn;                                            //      rope_scaling, or rope_parameters
  ops::RopePairing rope_pairing = ops::RopePairing::kInterleaved;      // attention
  ops::RopePairing index_rope_pairing = ops::RopePairing::kHalfSplit;  // indexer: half-split only in V3.2

  int64_t n_window = 0;  // W    sliding_window: tokens, including itself, that a query sees uncompressed; 0: all

  int64_t n_streams = 1;     // M    hc_mult: residual streams
  int n_sinkhorn_steps = 0;  //      hc_sinkhorn_iters
  float stream_eps = 0;      //      hc_eps

  bool fp8_blocks = false;  //      quantization_config; only for plans and dummy weights, tensors have their own types
  int64_t fp8_block = 128;  //      weight_block_size: rows and columns of an FP8 matrix that share a scale
  bool mxfp4_experts = false;  //      expert_dtype "fp4", or none with quantization_config; likewise
  bool nvfp4_experts =
      false;  //      quant_algo or moe_quant_algo "NVFP4": the routed experts except the MTP layer's; likewise

  int32_t bos_token = -1;           //      bos_token_id, -1 when absent
  std::vector<int32_t> eos_tokens;  //      eos_token_id, a number or a list

  bool is_sparse_layer(int layer) const { return layer >= n_dense_layers; }
  // Layer n_layers is the MTP layer.
  bool has_indexer(int layer) const {
    return layer < n_layers ? owns_indexer[static_cast<size_t>(layer)] : mtp_owns_indexer;
  }
  int n_indexers() const {  // of the trunk
    return static_cast<int>(std::count(owns_indexer.begin(), owns_indexer.begin() + n_layers, true));
  }
  int64_t d_head() const { return d_nope + d_rope; }
  float attention_scale() const;                // d_head^-1/2, times YaRN's (0.1 mscale_all_dim ln factor + 1)^2
  float index_scale() const;                    // Di^-1/2 Hi^-1/2
  std::vector<float> rope_frequencies() const;  // of rope_theta and yarn

  // The family's own struct, stored by its read_config.
  std::any own;
  template <class T>
  const T& own_config() const {
    const T* config = std::any_cast<T>(&own);
    LEVIN_CHECK(config != nullptr, "the config of another family, {}", architecture);
    return *config;
  }
  template <class T>
  T& own_config() {
    return const_cast<T&>(std::as_const(*this).own_config<T>());
  }
};

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  // one sentence each, naming the key
};

}  // namespace levin
