#include "model/weight_table.h"

#include <fmt/format.h>

#include <utility>

#include "model/weight_store.h"

namespace levin {
namespace {

using io::StoredTensor;

class TableBuilder {
 public:
  TableBuilder(const ModelConfig& config, const Numerics* numerics)
      : config_(config), numerics_(numerics == nullptr ? Numerics{} : *numerics) {}

  std::vector<WeightRow> build(ModelWeights& w);

 private:
  // Rows of one tensor; `numerics_` gives the type of the product's input, the last argument fixes it.
  void linear(std::string name, std::vector<int64_t> shape, Linear& out, Storage storage = Storage::kMatrix);
  void f32_linear(std::string name, std::vector<int64_t> shape, Linear& out);
  void vector(std::string name, int64_t n, Vector& out);
  void ffn(const std::string& prefix, int64_t d_hidden, ops::FfnWeights& out);
  void ffn_matrix(std::string name, std::vector<int64_t> shape, Matrix& out, ops::Operand& input);
  void up_projection(std::string name, AttentionWeights& out);

  void attention(const std::string& prefix, AttentionWeights& out);
  void indexer(const std::string& prefix, IndexerWeights& out);
  void experts(const std::string& prefix, MoeWeights& out);
  void layer(const std::string& prefix, bool sparse, LayerWeights& out);
  void mtp(const std::string& prefix, MtpWeights& out);

  void add(WeightRow row) {
    row.mtp = in_mtp_;
    rows_.push_back(std::move(row));
  }

  const ModelConfig& config_;
  const Numerics numerics_;
  bool in_mtp_ = false;
  std::vector<WeightRow> rows_;
};

template <class T, class Stored>
Status put(T& place, Result<Stored> stored) {
  if (!stored.ok()) return stored.error();
  place = std::move(stored).value();
  return {};
}

void TableBuilder::linear(std::string name, std::vector<int64_t> shape, Linear& out, Storage storage) {
  const auto store = [&out, numerics = numerics_](const StoredTensor& tensor, const StoredTensor* scales) {
    out.input = input_operand(tensor, numerics);
    return put(out.w, store_matrix(tensor, scales));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = storage, .store = store});
}

void TableBuilder::f32_linear(std::string name, std::vector<int64_t> shape, Linear& out) {
  const auto store = [&out](const StoredTensor& tensor, const StoredTensor* scales) {
    return put(out.w, store_matrix(tensor, scales));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = Storage::kPlainMatrix, .store = store});
}

void TableBuilder::vector(std::string name, int64_t n, Vector& out) {
  const auto store = [&out](const StoredTensor& tensor, const StoredTensor*) { return put(out, store_vector(tensor)); };
  add({.name = std::move(name), .shape = {n}, .storage = Storage::kVector, .store = store});
}

void TableBuilder::ffn_matrix(std::string name, std::vector<int64_t> shape, Matrix& out, ops::Operand& input) {
  const auto store = [&out, &input, numerics = numerics_](const StoredTensor& tensor, const StoredTensor* scales) {
    input = input_operand(tensor, numerics);
    return put(out, store_matrix(tensor, scales));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = Storage::kMatrix, .store = store});
}

void TableBuilder::ffn(const std::string& prefix, int64_t d_hidden, ops::FfnWeights& out) {
  ffn_matrix(prefix + "gate_proj.weight", {d_hidden, config_.d_model}, out.gate, out.input);
  // shares the rounded input of gate, and validation sees to it that both are stored alike
  const auto store = [&out](const StoredTensor& tensor, const StoredTensor* scales) {
    return put(out.up, store_matrix(tensor, scales));
  };
  add({.name = prefix + "up_proj.weight",
       .shape = {d_hidden, config_.d_model},
       .storage = Storage::kMatrix,
       .store = store});
  ffn_matrix(prefix + "down_proj.weight", {config_.d_model, d_hidden}, out.down, out.hidden);
}

void TableBuilder::up_projection(std::string name, AttentionWeights& out) {
  const UpProjectionShape shape{
      .n_heads = config_.n_heads, .d_nope = config_.d_nope, .d_value = config_.d_value, .d_latent = config_.d_latent};
  const auto store = [&out, shape](const StoredTensor& tensor, const StoredTensor* scales) {
    return store_up_projection(tensor, scales, shape, &out);
  };
  add({.name = std::move(name),
       .shape = {config_.n_heads * (config_.d_nope + config_.d_value), config_.d_latent},
       .storage = Storage::kMatrix,
       .store = store});
}

void TableBuilder::attention(const std::string& prefix, AttentionWeights& out) {
  const ModelConfig& c = config_;
  linear(prefix + "q_a_proj.weight", {c.d_q_lora, c.d_model}, out.q_down);
  vector(prefix + "q_a_layernorm.weight", c.d_q_lora, out.q_norm);
  linear(prefix + "q_b_proj.weight", {c.n_heads * c.d_head(), c.d_q_lora}, out.q_up);
  linear(prefix + "kv_a_proj_with_mqa.weight", {c.d_latent + c.d_rope, c.d_model}, out.kv_down);
  vector(prefix + "kv_a_layernorm.weight", c.d_latent, out.kv_norm);
  up_projection(prefix + "kv_b_proj.weight", out);
  linear(prefix + "o_proj.weight", {c.d_model, c.n_heads * c.d_value}, out.o);
}

void TableBuilder::indexer(const std::string& prefix, IndexerWeights& out) {
  const ModelConfig& c = config_;
  linear(prefix + "wq_b.weight", {c.n_index_heads * c.d_index, c.d_q_lora}, out.q_up);
  linear(prefix + "wk.weight", {c.d_index, c.d_model}, out.k);
  vector(prefix + "k_norm.weight", c.d_index, out.k_norm);
  vector(prefix + "k_norm.bias", c.d_index, out.k_norm_bias);
  f32_linear(prefix + "weights_proj.weight", {c.n_index_heads, c.d_model}, out.head_weights);
}

void TableBuilder::experts(const std::string& prefix, MoeWeights& out) {
  const ModelConfig& c = config_;
  f32_linear(prefix + "gate.weight", {c.n_experts, c.d_model}, out.gate);
  vector(prefix + "gate.e_score_correction_bias", c.n_experts, out.bias);
  out.experts.resize(static_cast<size_t>(c.n_experts));
  for (int64_t e = 0; e < c.n_experts; ++e) {
    ffn(fmt::format("{}experts.{}.", prefix, e), c.d_expert, out.experts[static_cast<size_t>(e)]);
  }
  if (c.n_shared_experts > 0) ffn(prefix + "shared_experts.", c.n_shared_experts * c.d_expert, out.shared.emplace());
}

void TableBuilder::layer(const std::string& prefix, bool sparse, LayerWeights& out) {
  vector(prefix + "input_layernorm.weight", config_.d_model, out.attention_norm);
  attention(prefix + "self_attn.", out.attention);
  indexer(prefix + "self_attn.indexer.", out.indexer);
  vector(prefix + "post_attention_layernorm.weight", config_.d_model, out.ffn_norm);
  if (sparse) {
    experts(prefix + "mlp.", out.moe.emplace());
  } else {
    ffn(prefix + "mlp.", config_.d_dense, out.dense.emplace());
  }
}

void TableBuilder::mtp(const std::string& prefix, MtpWeights& out) {
  const int64_t d = config_.d_model;
  in_mtp_ = true;
  vector(prefix + "enorm.weight", d, out.embed_norm);
  vector(prefix + "hnorm.weight", d, out.hidden_norm);
  linear(prefix + "eh_proj.weight", {d, 2 * d}, out.join, Storage::kPlainMatrix);
  layer(prefix, true, out.layer);
  vector(prefix + "shared_head.norm.weight", d, out.head_norm);
  in_mtp_ = false;
}

std::vector<WeightRow> TableBuilder::build(ModelWeights& w) {
  const ModelConfig& c = config_;
  const auto embed = [&w](const StoredTensor& tensor, const StoredTensor*) { return store_embedding(tensor, &w); };
  add({.name = "model.embed_tokens.weight",
       .shape = {c.n_vocab, c.d_model},
       .storage = Storage::kPlainMatrix,
       .store = embed});
  w.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) layer(layer_prefix(i), c.is_sparse_layer(i), w.layers[static_cast<size_t>(i)]);
  vector("model.norm.weight", c.d_model, w.norm);
  linear("lm_head.weight", {c.n_vocab, c.d_model}, w.head, Storage::kPlainMatrix);
  if (c.n_mtp_layers > 0) mtp(layer_prefix(c.n_layers), w.mtp.emplace());
  return std::move(rows_);
}

}  // namespace

std::string layer_prefix(int layer) { return fmt::format("model.layers.{}.", layer); }

std::vector<WeightRow> weight_table(const ModelConfig& config, const Numerics* numerics, ModelWeights* weights) {
  TableBuilder builder(config, numerics);
  if (weights != nullptr) return builder.build(*weights);
  ModelWeights nowhere;
  std::vector<WeightRow> rows = builder.build(nowhere);
  for (WeightRow& row : rows) row.store = nullptr;
  return rows;
}

}  // namespace levin
