// The tensors of DeepSeek-V4.1 (model_spec.md 11.8): names without a prefix.
#include "arch/deepseek_v4/weight_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "arch/deepseek_v41/parts.h"
#include "arch/deepseek_v41/weights.h"

namespace levin::deepseek_v41 {
namespace {

struct Experts {
  int64_t n = 0;
};

class Builder : public deepseek_v4::PartsBuilder {
 public:
  Builder(const ModelConfig& config, const Numerics* numerics) : PartsBuilder(config, numerics) {}

  std::vector<WeightRow> build(ModelWeights& w);

 private:
  // Layers from n_layers on are the drafter's.
  void layer(int layer_idx, Experts experts, V41LayerWeights& out);
  void attention(const std::string& prefix, int layer_idx, V41AttentionWeights& out);
  void indexer(const std::string& prefix, bool makes_keys, V41IndexerWeights& out);
  void moe(const std::string& prefix, int64_t n_experts, MoeWeights& out);
  void engram(const std::string& prefix, size_t index, EngramWeights& out);
  void dspark(const V41DsparkConfig& dspark, V41DsparkWeights& out);
};

void Builder::indexer(const std::string& prefix, bool makes_keys, V41IndexerWeights& out) {
  const ModelConfig& c = config_;
  matrix(prefix + "wq_b.weight", {c.n_index_heads * c.d_index, c.d_q_lora}, out.q_up);
  f32_matrix(prefix + "weights_proj.weight", {c.n_index_heads, c.d_model}, out.head_weights);
  if (!makes_keys) return;
  plain_matrix(prefix + "wk.weight", {c.d_index, c.d_head()}, out.k.emplace());
  vector(prefix + "k_norm.weight", {c.d_index}, out.k_norm);
}

void Builder::attention(const std::string& prefix, int layer_idx, V41AttentionWeights& out) {
  const ModelConfig& c = config_;
  const int64_t d_head = c.d_head();
  vector(prefix + "attn_sink", {c.n_heads}, out.sink);
  matrix(prefix + "wq_a.weight", {c.d_q_lora, c.d_model}, out.q_down);
  vector(prefix + "q_norm.weight", {c.d_q_lora}, out.q_norm);
  matrix(prefix + "wq_b.weight", {c.n_heads * d_head, c.d_q_lora}, out.q_up);
  matrix(prefix + "wkv.weight", {d_head, c.d_model}, out.kv);
  vector(prefix + "kv_norm.weight", {d_head}, out.kv_norm);
  const int64_t n_groups = own(c).n_out_groups, d_out = own(c).d_out_lora;
  row_groups(prefix + "wo_a.weight", {.n_groups = n_groups, .n = d_out, .k = c.n_heads / n_groups * d_head},
             out.out_down);
  matrix(prefix + "wo_b.weight", {c.d_model, n_groups * d_out}, out.out_up);
  const bool makes = makes_entries(c, layer_idx);
  if (makes) {
    V41CompressorWeights& compressor = out.compressor.emplace();
    plain_matrix(prefix + "compressor.wkv.weight", {d_head, c.d_model}, compressor.values);
    if (own(c).entries_of(layer_idx).ratio > 1)
      plain_matrix(prefix + "compressor.wgate.weight", {d_head, c.d_model}, compressor.gate.emplace());
    vector(prefix + "compressor.norm.weight", {d_head}, compressor.norm);
  }
  if (c.has_indexer(layer_idx)) indexer(prefix + "indexer.", makes, out.indexer.emplace());
}

void Builder::moe(const std::string& prefix, int64_t n_experts, MoeWeights& out) {
  const ModelConfig& c = config_;
  f32_matrix(prefix + "gate.weight", {n_experts, c.d_model}, out.gate);
  vector(prefix + "gate.bias", {n_experts}, out.bias);
  experts(prefix, n_experts, out);
}

void Builder::engram(const std::string& prefix, size_t index, EngramWeights& out) {
  const EngramConfig& e = *own(config_).engram;
  const int64_t m = config_.n_streams, d = config_.d_model;
  out.hash = engram_hashes(e)[index];
  out.table = {
      .codes = nullptr, .scales = nullptr, .n_rows = e.n_rows[index], .d = e.d_row, .block = config_.fp8_block};
  add({.name = prefix + "embed.weight", .shape = {e.n_rows[index], e.d_row}, .storage = Storage::kMappedTable});
  matrix(prefix + "wkv.weight", {(m + 1) * d, e.n_columns() * e.d_row}, out.kv);
  vector(prefix + "q_weight", {m, d}, out.q_weight);
  vector(prefix + "k_weight", {m, d}, out.k_weight);
}

void Builder::layer(int layer_idx, Experts experts, V41LayerWeights& out) {
  const std::string prefix = deepseek_v41::layer_prefix(config_, layer_idx);
  const std::optional<EngramConfig>& memory = own(config_).engram;
  const int index = memory && layer_idx < config_.n_layers ? memory->index_of(layer_idx) : -1;
  if (index >= 0) engram(prefix + "engram.", static_cast<size_t>(index), out.engram.emplace());
  stream_mix(prefix + "hc_attn_", out.attention_streams);
  vector(prefix + "attn_norm.weight", {config_.d_model}, out.attention_norm);
  attention(prefix + "attn.", layer_idx, out.attention);
  stream_mix(prefix + "hc_ffn_", out.ffn_streams);
  vector(prefix + "ffn_norm.weight", {config_.d_model}, out.ffn_norm);
  moe(prefix + "ffn.", experts.n, out.moe);
}

// The first stage's names have what goes before the stages, the last one's what comes after them.
void Builder::dspark(const V41DsparkConfig& dspark, V41DsparkWeights& out) {
  const int64_t d = config_.d_model;
  const int n_stages = config_.n_mtp_layers;
  const std::string first = deepseek_v41::layer_prefix(config_, config_.n_layers);
  const std::string last = deepseek_v41::layer_prefix(config_, config_.n_layers + n_stages - 1);
  in_mtp_ = true;
  matrix(first + "main_proj.weight", {d, n_stages * d}, out.tap_join);
  vector(first + "main_norm.weight", {d}, out.tap_norm);
  out.stages.resize(static_cast<size_t>(n_stages));
  for (int s = 0; s < n_stages; ++s)
    layer(config_.n_layers + s, {dspark.n_experts}, out.stages[static_cast<size_t>(s)]);
  vector(last + "norm.weight", {d}, out.head_norm);
  table(last + "markov_head.embed.weight", {config_.n_vocab, dspark.d_markov}, out.markov_rows);
  f32_matrix(last + "markov_head.head.weight", {config_.n_vocab, dspark.d_markov}, out.markov_head);
  f32_matrix(last + "confidence_head.proj.weight", {1, d + dspark.d_markov}, out.confidence);
  in_mtp_ = false;
}

Vector zeros(int64_t n_rows, int64_t n) {
  Vector out;
  out.storage = Buffer::for_tensor(DType::kF32, {n_rows, n});
  out.view = View(out.storage.data(), DType::kF32, {n_rows, n});
  std::fill_n(reinterpret_cast<float*>(out.storage.data()), n_rows * n, 0.0f);
  return out;
}

int64_t widest_ratio(const DeepseekV41Config& c) {
  int64_t ratio = 1;
  for (const EntriesOfLayer& entries : c.entries) ratio = std::max(ratio, entries.ratio);
  return ratio;
}

std::vector<WeightRow> Builder::build(ModelWeights& w) {
  const ModelConfig& c = config_;
  embedding("embed.weight", w);
  auto layers = std::make_unique<DeepseekV41Weights>();
  DeepseekV41Weights& out = *layers;
  w.own = std::move(layers);
  out.no_bias = zeros(widest_ratio(own(c)), c.d_head());
  out.first_read = zeros(1, c.n_streams);
  *reinterpret_cast<float*>(out.first_read.storage.data()) = 1;
  out.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) layer(i, {c.n_experts}, out.layers[static_cast<size_t>(i)]);
  vector("norm.weight", {c.d_model}, w.norm);
  plain_matrix("head.weight", {c.n_vocab, c.d_model}, w.head);
  if (own(c).dspark) dspark(*own(c).dspark, out.dspark.emplace());
  return std::move(rows_);
}

}  // namespace

std::string layer_prefix(const ModelConfig& config, int layer) {
  return layer < config.n_layers ? fmt::format("layers.{}.", layer) : fmt::format("mtp.{}.", layer - config.n_layers);
}

std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights) {
  return Builder(config, numerics).build(weights);
}

std::vector<UnusedTensor> unused_tensors(const ModelConfig&) {
  constexpr const char* kWhy = "images are not read";
  return {{"vision.*", {}, kWhy},
          {"aligner.*", {}, kWhy},
          {"image_*", {}, kWhy},
          {"layers.*.ffn.gate.bias_vl", {}, kWhy},
          {"mtp.*.ffn.gate.bias_vl", {}, kWhy}};
}

}  // namespace levin::deepseek_v41
