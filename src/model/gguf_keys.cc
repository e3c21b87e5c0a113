#include "model/gguf_keys.h"

#include <utility>
#include <vector>

namespace levin {
namespace {

// How experts are scored.
constexpr uint32_t kSigmoid = 2;
constexpr uint32_t kSqrtSoftplus = 4;

class Keys {
 public:
  Keys(const std::string& architecture, io::GgufWriter* file) : prefix_(architecture + "."), file_(file) {}

  void size(const char* key, int64_t value) { file_->set(prefix_ + key, static_cast<uint32_t>(value)); }
  void real(const char* key, double value) { file_->set(prefix_ + key, static_cast<float>(value)); }
  void set(const char* key, io::GgufValue value) { file_->set(prefix_ + key, std::move(value)); }

 private:
  std::string prefix_;
  io::GgufWriter* file_;
};

void set_experts(const ModelConfig& c, uint32_t gating, Keys& keys) {
  keys.size("expert_count", c.n_experts);
  keys.size("expert_used_count", c.n_active);
  keys.size("expert_shared_count", c.n_shared_experts);
  keys.size("expert_feed_forward_length", c.d_expert);
  keys.real("expert_weights_scale", c.expert_factor);
  keys.set("expert_weights_norm", c.normalize_expert_weights);
  keys.size("expert_gating_func", gating);
  if (c.n_groups == 1) return;
  keys.size("expert_group_count", c.n_groups);
  keys.size("expert_group_used_count", c.n_groups_kept);
}

void set_rope(const ModelConfig& c, const std::optional<Yarn>& yarn, Keys& keys) {
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

void set_indexer(const ModelConfig& c, Keys& keys) {
  keys.size("attention.indexer.head_count", c.n_index_heads);
  keys.size("attention.indexer.key_length", c.d_index);
  keys.size("attention.indexer.top_k", c.n_picks);
}

// Attention in its absorbed form: one key-value head, the latent with the rotated key.
void set_mla(const ModelConfig& c, bool lists_indexers, Keys& keys) {
  keys.size("feed_forward_length", c.d_dense);
  keys.size("leading_dense_block_count", c.n_dense_layers);
  keys.size("attention.key_length", c.d_latent + c.d_rope);
  keys.size("attention.value_length", c.d_latent);
  keys.size("attention.key_length_mla", c.d_head());
  keys.size("attention.value_length_mla", c.d_value);
  keys.size("attention.kv_lora_rank", c.d_latent);
  keys.real("attention.layer_norm_epsilon", c.index_norm_eps);
  set_rope(c, c.yarn, keys);
  set_experts(c, kSigmoid, keys);
  if (!lists_indexers) return;
  std::vector<uint32_t> full;
  for (int layer = 0; layer < c.n_layers; ++layer) full.push_back(c.has_indexer(layer));
  keys.set("attention.indexer.types", std::move(full));
}

void set_deepseek_v4(const ModelConfig& c, Keys& keys) {
  keys.size("feed_forward_length", c.d_expert);
  keys.size("attention.key_length", c.d_head());
  keys.size("attention.value_length", c.d_head());
  keys.size("attention.sliding_window", c.n_window);
  keys.size("attention.output_group_count", c.n_out_groups);
  keys.size("attention.output_lora_rank", c.d_out_lora);
  keys.real("attention.compress_rope_freq_base", c.compressed_rope_theta);
  std::vector<uint32_t> ratios;
  for (int layer = 0; layer < c.n_layers; ++layer)
    ratios.push_back(static_cast<uint32_t>(c.compression[static_cast<size_t>(layer)].ratio));
  keys.set("attention.compress_ratios", std::move(ratios));
  keys.size("hyper_connection.count", c.n_streams);
  keys.size("hyper_connection.sinkhorn_iterations", c.n_sinkhorn_steps);
  keys.real("hyper_connection.epsilon", c.stream_eps);
  keys.size("hash_layer_count", c.n_hash_layers);
  keys.set("swiglu_clamp_exp", std::vector<float>(static_cast<size_t>(c.n_layers), c.ffn_limit));
  set_rope(c, c.compressed_yarn, keys);
  set_experts(c, kSqrtSoftplus, keys);
}

}  // namespace

void set_gguf_keys(const ModelConfig& c, const std::string& architecture, bool with_mtp, io::GgufWriter* file) {
  file->set("general.architecture", architecture);
  Keys keys(architecture, file);
  keys.size("vocab_size", c.n_vocab);
  keys.size("context_length", c.max_position);
  keys.size("embedding_length", c.d_model);
  keys.size("block_count", c.n_layers + (with_mtp ? 1 : 0));
  if (with_mtp) keys.size("nextn_predict_layers", 1);
  keys.size("attention.head_count", c.n_heads);
  keys.size("attention.head_count_kv", 1);
  keys.size("attention.q_lora_rank", c.d_q_lora);
  keys.real("attention.layer_norm_rms_epsilon", c.norm_eps);
  set_indexer(c, keys);
  c.family == ModelFamily::kDeepseekV4 ? set_deepseek_v4(c, keys) : set_mla(c, architecture == "glm-dsa", keys);
}

}  // namespace levin
