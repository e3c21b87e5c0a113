#include "model/gguf_keys.h"

#include "model/architecture.h"

namespace levin {

void set_gguf_experts(const ModelConfig& c, GgufGating gating, GgufKeys& keys) {
  keys.size("expert_count", c.n_experts);
  keys.size("expert_used_count", c.n_active);
  keys.size("expert_shared_count", c.n_shared_experts);
  keys.size("expert_feed_forward_length", c.d_expert);
  keys.real("expert_weights_scale", c.expert_factor);
  keys.set("expert_weights_norm", c.normalize_expert_weights);
  keys.size("expert_gating_func", static_cast<int64_t>(gating));
  if (c.n_groups == 1) return;
  keys.size("expert_group_count", c.n_groups);
  keys.size("expert_group_used_count", c.n_groups_kept);
}

void set_gguf_rope(const ModelConfig& c, const std::optional<Yarn>& yarn, GgufKeys& keys) {
  keys.size("rope.dimension_count", c.d_rope);
  keys.real("rope.freq_base", c.rope_theta);
  if (!yarn) return;
  keys.set("rope.scaling.type", std::string("yarn"));
  keys.real("rope.scaling.factor", yarn->factor);
  keys.size("rope.scaling.original_context_length", static_cast<int64_t>(yarn->original_max_position));
  keys.real("rope.scaling.yarn_beta_fast", yarn->beta_fast);
  keys.real("rope.scaling.yarn_beta_slow", yarn->beta_slow);
  if (yarn->mscale_all_dim != 0) keys.real("rope.scaling.yarn_log_multiplier", 0.1 * yarn->mscale_all_dim);
}

void set_gguf_keys(const ModelConfig& c, const std::string& architecture, bool with_mtp, io::GgufWriter* file) {
  file->set("general.architecture", architecture);
  GgufKeys keys(architecture, file);
  keys.size("vocab_size", c.n_vocab);
  keys.size("context_length", c.max_position);
  keys.size("embedding_length", c.d_model);
  keys.size("block_count", c.n_layers + (with_mtp ? 1 : 0));
  if (with_mtp) keys.size("nextn_predict_layers", 1);
  keys.size("attention.head_count", c.n_heads);
  keys.size("attention.head_count_kv", 1);
  keys.size("attention.q_lora_rank", c.d_q_lora);
  keys.real("attention.layer_norm_rms_epsilon", c.norm_eps);
  keys.size("attention.indexer.head_count", c.n_index_heads);
  keys.size("attention.indexer.key_length", c.d_index);
  keys.size("attention.indexer.top_k", c.n_topk);
  c.family->gguf->set_keys(c, architecture, keys);
}

}  // namespace levin
