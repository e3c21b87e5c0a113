// The tensors of DeepSeek-V3.2 and GLM-5 (model_spec.md 4.1, 7.1): `<name>.weight_scale_inv` next to `<name>.weight`.
#include "arch/deepseek_v3/weight_rows.h"

#include <fmt/core.h>

#include <memory>
#include <utility>

#include "arch/deepseek_v3/mla.h"

namespace levin::mla {

using io::StoredTensor;

void Builder::block(const std::string& prefix, int64_t d_hidden, ops::FfnWeights& out) {
  ffn({.gate = prefix + "gate_proj.weight", .up = prefix + "up_proj.weight", .down = prefix + "down_proj.weight"},
      d_hidden, out);
}

void Builder::up_projection(std::string name, AttentionWeights& out) {
  const UpProjectionShape shape{
      .n_heads = config_.n_heads, .d_nope = config_.d_nope, .d_value = config_.d_value, .d_latent = config_.d_latent};
  const bool whole_blocks = shape.d_nope % kWeightBlock == 0 && shape.d_value % kWeightBlock == 0;
  const auto store = [&out, shape](const StoredTensor& tensor, const StoredScales* scales, MatrixForm form) {
    return store_up_projection(tensor, scales, shape, form, {.k_up = &out.k_up, .v_up = &out.v_up});
  };
  add({.name = std::move(name),
       .shape = {shape.n_heads * (shape.d_nope + shape.d_value), shape.d_latent},
       .storage = Storage::kMatrix,
       .parts = {{.count = shape.n_heads, .n = shape.d_latent, .k = shape.d_nope, .between_blocks = whole_blocks},
                 {.count = shape.n_heads, .n = shape.d_value, .k = shape.d_latent, .between_blocks = whole_blocks}},
       .store = store});
}

void Builder::attention(const std::string& prefix, AttentionWeights& out) {
  const ModelConfig& c = config_;
  matrix(prefix + "q_a_proj.weight", {c.d_q_lora, c.d_model}, out.q_down);
  vector(prefix + "q_a_layernorm.weight", {c.d_q_lora}, out.q_norm);
  matrix(prefix + "q_b_proj.weight", {c.n_heads * c.d_head(), c.d_q_lora}, out.q_up);
  matrix(prefix + "kv_a_proj_with_mqa.weight", {c.d_latent + c.d_rope, c.d_model}, out.kv_down);
  vector(prefix + "kv_a_layernorm.weight", {c.d_latent}, out.kv_norm);
  up_projection(prefix + "kv_b_proj.weight", out);
  matrix(prefix + "o_proj.weight", {c.d_model, c.n_heads * c.d_value}, out.o);
}

void Builder::indexer(const std::string& prefix, IndexerWeights& out) {
  const ModelConfig& c = config_;
  matrix(prefix + "wq_b.weight", {c.n_index_heads * c.d_index, c.d_q_lora}, out.q_up);
  matrix(prefix + "wk.weight", {c.d_index, c.d_model}, out.k);
  vector(prefix + "k_norm.weight", {c.d_index}, out.k_norm);
  vector(prefix + "k_norm.bias", {c.d_index}, out.k_norm_bias);
  f32_matrix(prefix + "weights_proj.weight", {c.n_index_heads, c.d_model}, out.head_weights);
}

void Builder::experts(const std::string& prefix, MoeWeights& out) {
  const ModelConfig& c = config_;
  f32_matrix(prefix + "gate.weight", {c.n_experts, c.d_model}, out.gate);
  vector(prefix + "gate.e_score_correction_bias", {c.n_experts}, out.bias);
  out.experts.resize(static_cast<size_t>(c.n_experts));
  for (int64_t e = 0; e < c.n_experts; ++e) {
    block(fmt::format("{}experts.{}.", prefix, e), c.d_expert, out.experts[static_cast<size_t>(e)]);
  }
  if (c.n_shared_experts > 0) block(prefix + "shared_experts.", c.n_shared_experts * c.d_expert, out.shared.emplace());
}

void Builder::layer(int layer_idx, bool sparse, LayerWeights& out) {
  const std::string prefix = mla::layer_prefix(config_, layer_idx);
  vector(prefix + "input_layernorm.weight", {config_.d_model}, out.attention_norm);
  attention(prefix + "self_attn.", out.attention);
  if (config_.has_indexer(layer_idx)) indexer(prefix + "self_attn.indexer.", out.indexer.emplace());
  vector(prefix + "post_attention_layernorm.weight", {config_.d_model}, out.ffn_norm);
  if (sparse) {
    experts(prefix + "mlp.", out.moe.emplace());
  } else {
    block(prefix + "mlp.", config_.d_dense, out.dense.emplace());
  }
}

void Builder::mtp(MtpWeights& out) {
  const std::string prefix = mla::layer_prefix(config_, config_.n_layers);
  const int64_t d = config_.d_model;
  in_mtp_ = true;
  vector(prefix + "enorm.weight", {d}, out.embed_norm);
  vector(prefix + "hnorm.weight", {d}, out.hidden_norm);
  plain_matrix(prefix + "eh_proj.weight", {d, 2 * d}, out.eh_proj);
  layer(config_.n_layers, true, out.layer);
  vector(prefix + "shared_head.norm.weight", {d}, out.head_norm);
  in_mtp_ = false;
}

std::vector<WeightRow> Builder::build(ModelWeights& w) {
  const ModelConfig& c = config_;
  embedding("model.embed_tokens.weight", w);
  auto layers = std::make_unique<MlaWeights>();
  MlaWeights& out = *layers;
  w.own = std::move(layers);
  out.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) layer(i, c.is_sparse_layer(i), out.layers[static_cast<size_t>(i)]);
  vector("model.norm.weight", {c.d_model}, w.norm);
  plain_matrix("lm_head.weight", {c.n_vocab, c.d_model}, w.head);
  if (c.n_mtp_layers > 0) mtp(out.mtp.emplace());
  return std::move(rows_);
}

std::string layer_prefix(const ModelConfig&, int layer) { return fmt::format("model.layers.{}.", layer); }

std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights) {
  return Builder(config, numerics).build(weights);
}

// Copies of the trunk's tensors that official files carry in their MTP layer, and buffers that some tools save.
std::vector<UnusedTensor> unused_tensors(const ModelConfig& config) {
  std::vector<UnusedTensor> list;
  const std::vector<int64_t> vocabulary = {config.n_vocab, config.d_model};
  const std::string prefix = mla::layer_prefix(config, config.n_layers);
  if (config.n_mtp_layers > 0) {
    list.push_back({prefix + "embed_tokens.weight", vocabulary, "the MTP layer shares model.embed_tokens.weight"});
    list.push_back({prefix + "shared_head.head.weight", vocabulary, "the MTP layer shares lm_head.weight"});
  }
  const std::string why = "rotary frequencies are computed from the config";
  list.push_back({"model.rotary_emb.inv_freq", {}, why});
  for (int i = 0; i < config.n_layers + config.n_mtp_layers; ++i) {
    list.push_back({mla::layer_prefix(config, i) + "self_attn.rotary_emb.inv_freq", {}, why});
  }
  return list;
}

}  // namespace levin::mla
