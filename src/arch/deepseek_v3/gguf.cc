// DeepSeek-V3.2 and GLM-5 as GGUF.
#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "arch/deepseek_v3/mla.h"

namespace levin::mla {
namespace {

constexpr std::array kOutside = {
    Renamed{"model.embed_tokens.weight", "token_embd.weight"},
    Renamed{"model.norm.weight", "output_norm.weight"},
    Renamed{"lm_head.weight", "output.weight"},
};

constexpr std::array kInLayer = {
    Renamed{"input_layernorm.weight", "attn_norm.weight"},
    Renamed{"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    Renamed{"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    Renamed{"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    Renamed{"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    Renamed{"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    Renamed{"self_attn.kv_b_proj.weight", "attn_kv_b.weight"},
    Renamed{"self_attn.o_proj.weight", "attn_output.weight"},
    Renamed{"self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    Renamed{"self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
    Renamed{"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    Renamed{"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    Renamed{"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    Renamed{"post_attention_layernorm.weight", "ffn_norm.weight"},
    Renamed{"mlp.gate_proj.weight", "ffn_gate.weight"},
    Renamed{"mlp.up_proj.weight", "ffn_up.weight"},
    Renamed{"mlp.down_proj.weight", "ffn_down.weight"},
    Renamed{"mlp.gate.weight", "ffn_gate_inp.weight"},
    Renamed{"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    Renamed{"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight"},
    Renamed{"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight"},
    Renamed{"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight"},
    Renamed{"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    Renamed{"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    Renamed{"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    Renamed{"enorm.weight", "nextn.enorm.weight"},
    Renamed{"hnorm.weight", "nextn.hnorm.weight"},
    Renamed{"eh_proj.weight", "nextn.eh_proj.weight"},
    Renamed{"shared_head.norm.weight", "nextn.shared_head_norm.weight"},
};

}  // namespace

constinit const GgufTensorNames kGgufTensors{.outside = kOutside, .in_layer = kInLayer};

// Only glm-dsa has a schedule of indexers.
Status check_gguf(const ModelConfig& c, const std::string& architecture) {
  if (architecture == "glm-dsa" || c.n_indexers() == c.n_layers) return {};
  return Error{
      ErrorKind::kUsage,
      fmt::format("architecture '{}' has an indexer in every layer, and in this model {} of {} layers share the "
                  "top-k indices of others; write it as glm-dsa, or override index_topk_freq=1",
                  architecture, c.n_layers - c.n_indexers(), c.n_layers)};
}

// Attention in its absorbed form: one key-value head, the latent with the rotated key.
void set_gguf_keys(const ModelConfig& c, const std::string& architecture, GgufKeys& keys) {
  keys.size("feed_forward_length", c.d_dense);
  keys.size("leading_dense_block_count", c.n_dense_layers);
  keys.size("attention.key_length", c.d_latent + c.d_rope);
  keys.size("attention.value_length", c.d_latent);
  keys.size("attention.key_length_mla", c.d_head());
  keys.size("attention.value_length_mla", c.d_value);
  keys.size("attention.kv_lora_rank", c.d_latent);
  keys.real("attention.layer_norm_epsilon", c.index_norm_eps);
  set_gguf_rope(c, c.yarn, keys);
  set_gguf_experts(c, GgufGating::kSigmoid, keys);
  if (architecture != "glm-dsa") return;
  std::vector<uint32_t> full;
  for (int layer = 0; layer < c.n_layers; ++layer) full.push_back(c.has_indexer(layer));
  keys.set("attention.indexer.types", std::move(full));
}

}  // namespace levin::mla
