// The tensors of DeepSeek-V4 (model_spec.md 6.1, 7.2): names without a prefix.
#include "arch/deepseek_v4/weight_rows.h"

#include <fmt/core.h>

#include <memory>
#include <utility>

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/parts.h"

namespace levin::deepseek_v4 {

using io::StoredTensor;

std::string PartsBuilder::scale_name(std::string_view weight_name) {
  constexpr std::string_view kWeight = "weight";
  return std::string(weight_name.substr(0, weight_name.size() - kWeight.size())) + "scale";
}

void PartsBuilder::stream_mix(const std::string& prefix, StreamMixWeights& out) {
  const int64_t m = config_.n_streams, n = 2 * m + m * m;
  f32_matrix(prefix + "fn", {n, m * config_.d_model}, out.fn, io::StoredDtype::kF32);
  vector(prefix + "base", {n}, out.base);
  vector(prefix + "scale", {3}, out.scale);
}

void PartsBuilder::expert(const std::string& prefix, Storage storage, int64_t d_hidden, ops::FfnWeights& out) {
  ffn({.gate = prefix + "w1.weight", .up = prefix + "w3.weight", .down = prefix + "w2.weight", .storage = storage},
      d_hidden, out);
}

void PartsBuilder::experts(const std::string& prefix, int64_t n_experts, MoeWeights& out) {
  const ModelConfig& c = config_;
  out.experts.resize(static_cast<size_t>(n_experts));
  for (int64_t e = 0; e < n_experts; ++e) {
    expert(fmt::format("{}experts.{}.", prefix, e), Storage::kExpertMatrix, c.d_expert,
           out.experts[static_cast<size_t>(e)]);
  }
  expert(prefix + "shared_experts.", Storage::kMatrix, c.n_shared_experts * c.d_expert, out.shared.emplace());
}

void PartsBuilder::row_groups(std::string name, const RowGroups& groups, std::vector<Matrix>& out) {
  const auto store = [&out, n_groups = groups.n_groups](const StoredTensor& tensor, const StoredScales* scales,
                                                        MatrixForm form) {
    return store_row_groups(tensor, scales, n_groups, form, &out);
  };
  add({.name = std::move(name),
       .shape = {groups.n_groups * groups.n, groups.k},
       .storage = Storage::kMatrix,
       .parts = {{.count = groups.n_groups, .n = groups.n, .k = groups.k, .between_blocks = groups.between_blocks}},
       .store = store});
}

namespace {

class Builder : public PartsBuilder {
 public:
  Builder(const ModelConfig& config, const Numerics* numerics) : PartsBuilder(config, numerics) {}

  std::vector<WeightRow> build(ModelWeights& w);

 private:
  // Layers from n_layers on are those that draft.
  void layer(const std::string& prefix, int layer_idx, V4LayerWeights& out);
  void attention(const std::string& prefix, const LayerCompression& compression, V4AttentionWeights& out);
  void compressor(const std::string& prefix, const LayerCompression& compression, int64_t d, CompressorWeights& out);
  void moe(const std::string& prefix, bool by_token_id, MoeWeights& out);
  void hash_experts(std::string name, MoeWeights& out);
  void stream_head(const std::string& prefix, StreamHeadWeights& out);
  void mtp(const std::string& prefix, V4MtpWeights& out);
  void dspark(const DsparkConfig& dspark, DsparkWeights& out);
};

void Builder::stream_head(const std::string& prefix, StreamHeadWeights& out) {
  const int64_t m = config_.n_streams;
  f32_matrix(prefix + "fn", {m, m * config_.d_model}, out.fn, io::StoredDtype::kF32);
  vector(prefix + "base", {m}, out.base);
  vector(prefix + "scale", {1}, out.scale);
}

void Builder::compressor(const std::string& prefix, const LayerCompression& compression, int64_t d,
                         CompressorWeights& out) {
  const int64_t n_channels = compression.kind == Compression::kIndexed ? 2 * d : d;
  vector(prefix + "ape", {compression.ratio, n_channels}, out.position_bias);
  plain_matrix(prefix + "wkv.weight", {n_channels, config_.d_model}, out.values);
  plain_matrix(prefix + "wgate.weight", {n_channels, config_.d_model}, out.gate);
  vector(prefix + "norm.weight", {d}, out.norm);
}

void Builder::attention(const std::string& prefix, const LayerCompression& compression, V4AttentionWeights& out) {
  const ModelConfig& c = config_;
  const int64_t d_head = c.d_head();
  vector(prefix + "attn_sink", {c.n_heads}, out.sink);
  matrix(prefix + "wq_a.weight", {c.d_q_lora, c.d_model}, out.q_down);
  vector(prefix + "q_norm.weight", {c.d_q_lora}, out.q_norm);
  matrix(prefix + "wq_b.weight", {c.n_heads * d_head, c.d_q_lora}, out.q_up);
  matrix(prefix + "wkv.weight", {d_head, c.d_model}, out.kv);
  vector(prefix + "kv_norm.weight", {d_head}, out.kv_norm);
  const int64_t n_groups = own(c).n_out_groups, d_out = own(c).d_out_lora;
  row_groups(prefix + "wo_a.weight",
             {.n_groups = n_groups,
              .n = d_out,
              .k = c.n_heads / n_groups * d_head,
              .between_blocks = d_out % kWeightBlock == 0},
             out.out_down);
  matrix(prefix + "wo_b.weight", {c.d_model, n_groups * d_out}, out.out_up);
  if (compression.kind == Compression::kNone) return;
  compressor(prefix + "compressor.", compression, d_head, out.compressor.emplace());
  if (compression.kind != Compression::kIndexed) return;
  V4IndexerWeights& indexer = out.indexer.emplace();
  matrix(prefix + "indexer.wq_b.weight", {c.n_index_heads * c.d_index, c.d_q_lora}, indexer.q_up);
  f32_matrix(prefix + "indexer.weights_proj.weight", {c.n_index_heads, c.d_model}, indexer.head_weights);
  compressor(prefix + "indexer.compressor.", compression, c.d_index, indexer.compressor);
}

void Builder::hash_experts(std::string name, MoeWeights& out) {
  const auto store = [&out, n_experts = config_.n_experts](const StoredTensor& tensor, const StoredScales*,
                                                           MatrixForm) {
    return store_expert_ids(tensor, n_experts, &out);
  };
  add({.name = std::move(name),
       .shape = {config_.n_vocab, config_.n_active},
       .storage = Storage::kExpertIds,
       .store = store});
}

void Builder::moe(const std::string& prefix, bool by_token_id, MoeWeights& out) {
  const ModelConfig& c = config_;
  f32_matrix(prefix + "gate.weight", {c.n_experts, c.d_model}, out.gate);
  if (by_token_id) {
    hash_experts(prefix + "gate.tid2eid", out);
  } else {
    vector(prefix + "gate.bias", {c.n_experts}, out.bias);
  }
  experts(prefix, c.n_experts, out);
}

void Builder::layer(const std::string& prefix, int layer_idx, V4LayerWeights& out) {
  stream_mix(prefix + "hc_attn_", out.attention_streams);
  vector(prefix + "attn_norm.weight", {config_.d_model}, out.attention_norm);
  attention(prefix + "attn.", own(config_).compression_of(layer_idx), out.attention);
  stream_mix(prefix + "hc_ffn_", out.ffn_streams);
  vector(prefix + "ffn_norm.weight", {config_.d_model}, out.ffn_norm);
  moe(prefix + "ffn.", own(config_).is_hash_layer(layer_idx), out.moe);
}

void Builder::mtp(const std::string& prefix, V4MtpWeights& out) {
  const int64_t d = config_.d_model;
  in_mtp_ = true;
  vector(prefix + "enorm.weight", {d}, out.embed_norm);
  vector(prefix + "hnorm.weight", {d}, out.hidden_norm);
  matrix(prefix + "e_proj.weight", {d, d}, out.e_proj);
  matrix(prefix + "h_proj.weight", {d, d}, out.h_proj);
  layer(prefix, config_.n_layers, out.layer);
  stream_head(prefix + "hc_head_", out.head);
  vector(prefix + "norm.weight", {d}, out.head_norm);
  in_mtp_ = false;
}

// The first stage's names have what goes before the stages, the last one's what comes after them.
void Builder::dspark(const DsparkConfig& dspark, DsparkWeights& out) {
  const int64_t d = config_.d_model;
  const int n_stages = config_.n_mtp_layers;
  const std::string first = deepseek_v4::layer_prefix(config_, config_.n_layers);
  const std::string last = deepseek_v4::layer_prefix(config_, config_.n_layers + n_stages - 1);
  in_mtp_ = true;
  matrix(first + "main_proj.weight", {d, n_stages * d}, out.tap_join);
  vector(first + "main_norm.weight", {d}, out.tap_norm);
  out.stages.resize(static_cast<size_t>(n_stages));
  for (int s = 0; s < n_stages; ++s) {
    const int idx = config_.n_layers + s;
    layer(deepseek_v4::layer_prefix(config_, idx), idx, out.stages[static_cast<size_t>(s)]);
  }
  stream_head(last + "hc_head_", out.head);
  vector(last + "norm.weight", {d}, out.head_norm);
  table(last + "markov_head.markov_w1.weight", {config_.n_vocab, dspark.d_markov}, out.markov_rows);
  f32_matrix(last + "markov_head.markov_w2.weight", {config_.n_vocab, dspark.d_markov}, out.markov_head);
  f32_matrix(last + "confidence_head.proj.weight", {1, d + dspark.d_markov}, out.confidence);
  in_mtp_ = false;
}

std::vector<WeightRow> Builder::build(ModelWeights& w) {
  const ModelConfig& c = config_;
  embedding("embed.weight", w);
  auto layers = std::make_unique<DeepseekV4Weights>();
  DeepseekV4Weights& out = *layers;
  w.own = std::move(layers);
  out.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) layer(deepseek_v4::layer_prefix(c, i), i, out.layers[static_cast<size_t>(i)]);
  stream_head("hc_head_", out.head);
  vector("norm.weight", {c.d_model}, w.norm);
  plain_matrix("head.weight", {c.n_vocab, c.d_model}, w.head);
  if (own(c).dspark) {
    dspark(*own(c).dspark, out.dspark.emplace());
  } else if (c.n_mtp_layers > 0) {
    mtp(deepseek_v4::layer_prefix(c, c.n_layers), out.mtp.emplace());
  }
  return std::move(rows_);
}

}  // namespace

std::string layer_prefix(const ModelConfig& config, int layer) {
  return layer < config.n_layers ? fmt::format("layers.{}.", layer) : fmt::format("mtp.{}.", layer - config.n_layers);
}

std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights) {
  return Builder(config, numerics).build(weights);
}

}  // namespace levin::deepseek_v4
