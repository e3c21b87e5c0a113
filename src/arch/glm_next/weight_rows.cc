// The tensors of GLM-5.3-Flash (model_spec.md 10.5). Those of latent attention, indexer and experts are named as in GLM-5.
#include "arch/deepseek_v3/weight_rows.h"

#include <fmt/core.h>

#include <memory>
#include <utility>

#include "arch/glm_next/config.h"
#include "arch/glm_next/parts.h"
#include "arch/glm_next/weights.h"

namespace levin::glm_next {
namespace {

constexpr std::string_view kText = "model.language_model.";

class Builder : public mla::Builder {
 public:
  using mla::Builder::Builder;

  std::vector<WeightRow> build(ModelWeights& w);

 private:
  void streams(const std::string& prefix, StreamMixWeights& out);
  void linear(const std::string& prefix, LinearAttentionWeights& out);
  void pooled(const std::string& prefix, PooledAttentionWeights& out);
  void ffn_layer(const std::string& prefix, bool sparse, GlmNextFfnWeights& out);
  void layer(int layer_idx, GlmNextLayerWeights& out);
  void mtp(GlmNextMtpWeights& out);
};

void Builder::streams(const std::string& prefix, StreamMixWeights& out) {
  const int64_t m = config_.n_streams, n = 2 * m + m * m;
  f32_matrix(prefix + "fn", {n, m * config_.d_model}, out.fn, io::StoredDtype::kF32);
  vector(prefix + "base", {n}, out.base);
  vector(prefix + "scale", {3}, out.scale);
}

void Builder::linear(const std::string& prefix, LinearAttentionWeights& out) {
  const GlmNextConfig& c = own(config_);
  const int64_t d = config_.d_model, n = c.d_linear();
  matrix(prefix + "q_proj.weight", {n, d}, out.q);
  matrix(prefix + "k_proj.weight", {n, d}, out.k);
  matrix(prefix + "v_proj.weight", {n, d}, out.v);
  vector(prefix + "q_conv1d.weight", {n, 1, c.n_taps}, out.q_conv);
  vector(prefix + "k_conv1d.weight", {n, 1, c.n_taps}, out.k_conv);
  vector(prefix + "v_conv1d.weight", {n, 1, c.n_taps}, out.v_conv);
  matrix(prefix + "f_a_proj.weight", {c.d_linear_head, d}, out.decay_down);
  matrix(prefix + "f_b_proj.weight", {n, c.d_linear_head}, out.decay_up);
  vector(prefix + "dt_bias", {n}, out.decay_bias);
  vector(prefix + "A_log", {c.n_linear_heads}, out.log_rate);
  matrix(prefix + "b_proj.weight", {c.n_linear_heads, d}, out.beta);
  matrix(prefix + "g_a_proj.weight", {c.d_linear_head, d}, out.gate_down);
  matrix(prefix + "g_b_proj.weight", {n, c.d_linear_head}, out.gate_up);
  vector(prefix + "o_norm.weight", {c.d_linear_head}, out.out_norm);
  matrix(prefix + "o_proj.weight", {d, n}, out.o);
}

void Builder::pooled(const std::string& prefix, PooledAttentionWeights& out) {
  attention(prefix, out.attention);
  indexer(prefix + "indexer.", out.indexer);
  vector(prefix + "indexer.index_kpool_compress_ape", {own(config_).n_pool, config_.d_index}, out.pool.position_bias);
  plain_matrix(prefix + "indexer.index_kpool_compress_gate", {config_.d_index, config_.d_model}, out.pool.gate);
}

void Builder::ffn_layer(const std::string& prefix, bool sparse, GlmNextFfnWeights& out) {
  vector(prefix + "post_attention_layernorm.weight", {config_.d_model}, out.norm);
  if (sparse) {
    experts(prefix + "mlp.", out.moe.emplace());
  } else {
    block(prefix + "mlp.", config_.d_dense, out.dense.emplace());
  }
}

void Builder::layer(int layer_idx, GlmNextLayerWeights& out) {
  const std::string prefix = glm_next::layer_prefix(config_, layer_idx);
  streams(prefix + "hc_attn_", out.attention_streams);
  vector(prefix + "input_layernorm.weight", {config_.d_model}, out.attention_norm);
  if (is_linear(config_, layer_idx)) {
    linear(prefix + "self_attn.", out.linear.emplace());
  } else {
    pooled(prefix + "self_attn.", out.pooled.emplace());
  }
  streams(prefix + "hc_ffn_", out.ffn_streams);
  ffn_layer(prefix, config_.is_sparse_layer(layer_idx), out.ffn);
}

void Builder::mtp(GlmNextMtpWeights& out) {
  const std::string prefix = glm_next::layer_prefix(config_, config_.n_layers);
  const int64_t d = config_.d_model;
  in_mtp_ = true;
  vector(prefix + "enorm.weight", {d}, out.embed_norm);
  vector(prefix + "hnorm.weight", {d}, out.hidden_norm);
  plain_matrix(prefix + "eh_proj.weight", {d, 2 * d}, out.join);
  vector(prefix + "input_layernorm.weight", {d}, out.attention_norm);
  pooled(prefix + "self_attn.", out.attention);
  ffn_layer(prefix, true, out.ffn);
  vector(prefix + "shared_head.norm.weight", {d}, out.head_norm);
  in_mtp_ = false;
}

std::vector<WeightRow> Builder::build(ModelWeights& w) {
  const ModelConfig& c = config_;
  embedding(fmt::format("{}embed_tokens.weight", kText), w);
  auto layers = std::make_unique<GlmNextWeights>();
  GlmNextWeights& out = *layers;
  w.own = std::move(layers);
  out.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) layer(i, out.layers[static_cast<size_t>(i)]);
  vector(fmt::format("{}norm.weight", kText), {c.d_model}, w.norm);
  plain_matrix("lm_head.weight", {c.n_vocab, c.d_model}, w.head);
  if (c.n_mtp_layers > 0) mtp(out.mtp.emplace());
  return std::move(rows_);
}

}  // namespace

std::string layer_prefix(const ModelConfig&, int layer) { return fmt::format("{}layers.{}.", kText, layer); }

std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights) {
  return Builder(config, numerics).build(weights);
}

// The vision tower, and copies of the trunk's tensors in the MTP layer.
std::vector<UnusedTensor> unused_tensors(const ModelConfig& config) {
  std::vector<UnusedTensor> list = {{"model.visual.*", {}, "images are not read"}};
  if (config.n_mtp_layers == 0) return list;
  const std::vector<int64_t> vocabulary = {config.n_vocab, config.d_model};
  const std::string prefix = glm_next::layer_prefix(config, config.n_layers);
  list.push_back(
      {prefix + "embed_tokens.weight", vocabulary, fmt::format("the MTP layer shares {}embed_tokens.weight", kText)});
  list.push_back({prefix + "shared_head.head.weight", vocabulary, "the MTP layer shares lm_head.weight"});
  return list;
}

}  // namespace levin::glm_next
