#include "arch/toy/architecture.h"

#include <fmt/format.h>

#include <utility>

#include "model/config_fields.h"
#include "model/describe.h"
#include "model/rope_config.h"
#include "model/weight_table_builder.h"
#include "ops/moe.h"
#include "ops/row_chains.h"
#include "ops/sparse_attention.h"

namespace levin::test {
namespace {

// ---- config ----------------------------------------------------------------------------------------------------------

constexpr std::string_view kHonoured[] = {"num_attention_heads", "head_dim", "ffn_width", "parallel_residual"};
constexpr ConfigKeys kKeys{.honoured = kHonoured, .fixed = {}, .uniform = {}};

Status read_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  ToyConfig& toy = config->own.emplace<ToyConfig>();
  LEVIN_TRY(read_dim(fields, Dim<int64_t>{"num_attention_heads", &ModelConfig::n_heads, 1, 64}, config));
  LEVIN_ASSIGN(const int64_t d_head, read_whole(fields, "head_dim", {4, 256}));
  if (d_head % 2 != 0) return fields.unexpected("head_dim", "an even number");
  config->d_nope = 2;  // one pair is not rotated
  config->d_rope = d_head - config->d_nope;
  LEVIN_TRY(read_dim(fields, Dim<int64_t, ToyConfig>{"ffn_width", &ToyConfig::d_ffn, 1, 4096}, &toy));
  LEVIN_ASSIGN(toy.parallel_residual, fields.get_or("parallel_residual", true));
  config->owns_indexer.assign(static_cast<size_t>(config->n_layers), false);
  return parse_rope_config(fields, config, warnings);
}

// ---- weights ---------------------------------------------------------------------------------------------------------

std::string scale_name(std::string_view weight_name) { return std::string(weight_name) + "_scale"; }

std::string layer_prefix(const ModelConfig&, int layer) { return fmt::format("blocks.{}.", layer); }

class Builder : public TableBuilder {
 public:
  Builder(const ModelConfig& config, const Numerics* numerics) : TableBuilder(config, numerics, scale_name) {}

  std::vector<WeightRow> build(ModelWeights& w) {
    auto own = std::make_unique<ToyWeights>();
    embedding("embed.weight", w);
    own->layers.resize(static_cast<size_t>(config_.n_layers));
    for (int i = 0; i < config_.n_layers; ++i)
      layer(levin::layer_prefix(config_, i), own->layers[static_cast<size_t>(i)]);
    vector("norm.weight", {config_.d_model}, w.norm);
    plain_matrix("head.weight", {config_.n_vocab, config_.d_model}, w.head);
    w.own = std::move(own);
    return std::move(rows_);
  }

 private:
  void layer(const std::string& prefix, ToyLayerWeights& out) {
    const ModelConfig& c = config_;
    const auto& toy = c.own_config<ToyConfig>();
    vector(prefix + "norm.weight", {c.d_model}, out.norm);
    matrix(prefix + "q.weight", {c.n_heads * c.d_head(), c.d_model}, out.q);
    matrix(prefix + "kv.weight", {c.d_head(), c.d_model}, out.kv);
    matrix(prefix + "out.weight", {c.d_model, c.n_heads * c.d_head()}, out.out);
    if (!toy.parallel_residual) vector(prefix + "ffn_norm.weight", {c.d_model}, out.ffn_norm);
    ffn({.gate = prefix + "gate.weight", .up = prefix + "up.weight", .down = prefix + "down.weight"}, toy.d_ffn,
        out.ffn);
  }
};

std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights) {
  return Builder(config, numerics).build(weights);
}

// ---- caches and layers -----------------------------------------------------------------------------------------------

LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int) {
  return {.latent = key_value_format(numerics.latent, config.d_head(), config.d_rope), .index = {}, .compressed = {}};
}

class Toy final : public Model {
 public:
  Toy(ModelConfig config, Numerics numerics, ModelWeights weights)
      : Model(std::move(config), numerics, std::move(weights)), frequencies_(Model::config().rope_frequencies()) {}

  bool has_mtp() const override { return false; }
  int64_t d_state() const override { return config().d_model; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override {
    Pass p(ctx, numerics(), step, cache, probe);
    p.prepare_rope(frequencies_);
    const View x = p.embed(weights().embed);  // [T, D]
    for (int layer = 0; layer < config().n_layers; ++layer) forward(p, x, layer);
    const View hidden = p.rms_norm(x, weights().norm, config().norm_eps);  // [T, D]
    return {.hidden = hidden, .state = hidden, .topk = {}};
  }
  ForwardRows mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const override { return {}; }

 private:
  void forward(Pass& p, View x, int layer) const {  // x [T, D]
    const ToyLayerWeights& w = weights().own_weights<ToyWeights>().layers[static_cast<size_t>(layer)];
    const ArenaScope scratch = p.scope();
    const View h = p.rms_norm(x, w.norm, config().norm_eps);  // [T, D]
    append(p, h, w, layer);
    p.add_into(x, attend(p, h, w, layer));
    const bool parallel = config().own_config<ToyConfig>().parallel_residual;
    const View ffn_in = parallel ? h : p.rms_norm(x, w.ffn_norm, config().norm_eps);  // [T, D]
    const View ffn_out = p.allocate(DType::kF32, {p.n_tokens(), config().d_model});   // [T, D]
    ops::ffn(p.ctx(), {.x = ffn_in, .weights = &w.ffn, .out = ffn_out});
    p.add_into(x, ffn_out);
    if (p.probe() != nullptr && p.probe()->on_layer_output) p.probe()->on_layer_output(layer, x);
  }

  void append(Pass& p, View h, const ToyLayerWeights& w, int layer) const {
    const ModelConfig& c = config();
    ops::write_latent(p.ctx(), {.x = p.matmul(h, w.kv),  // [T, Dh]
                                .rotation = p.step_rotation().of(c.rope_pairing),
                                .seq = p.step().seq,
                                .slot = p.step().slot,
                                .format = p.cache().format(layer).latent,
                                .cache = p.cache().latent_rows(layer, p.step().tables)});
  }

  View attend(Pass& p, View h, const ToyLayerWeights& w, int layer) const {  // h [T, D] -> [T, D]
    const ModelConfig& c = config();
    const View q = p.matmul(h, w.q).split_last(c.n_heads, c.d_head());  // [T, H, Dh]
    p.rotate(q.slice_last(c.d_nope, c.d_rope), p.step_rotation(), c.rope_pairing);
    const View o = p.allocate(DType::kF32, {p.n_tokens(), c.n_heads, c.d_head()});  // [T, H, Dh]
    ops::sparse_attention(p.ctx(),
                          {.q_latent = q.slice_last(0, c.d_nope),
                           .q_rope = q.slice_last(c.d_nope, c.d_rope),
                           .seq = p.step().seq,
                           .scale = c.attention_scale(),
                           .format = p.cache().format(layer).latent,
                           .rows = {.cache = p.cache().latent_rows(layer, p.step().tables), .end = p.step().visible},
                           .out = o});
    return p.matmul(o.reshaped({p.n_tokens(), c.n_heads * c.d_head()}), w.out);
  }

  std::vector<float> frequencies_;  // Dr/2
};

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection) {
  return std::make_unique<Toy>(std::move(config), numerics, std::move(weights));
}

// ---- words -----------------------------------------------------------------------------------------------------------

std::string describe(const ModelConfig& c) {
  return fmt::format("attention   {} heads of {} over one key-value row\nffn         width {}\nrope        {}\n",
                     c.n_heads, c.d_head(), c.own_config<ToyConfig>().d_ffn, rope_text(c.rope_theta, c.yarn));
}

void describe_json(const ModelConfig& c, io::JsonObject* out) { out->set("d_ffn", c.own_config<ToyConfig>().d_ffn); }

}  // namespace

void ToyWeights::visit(WeightVisitor& v) {
  for (ToyLayerWeights& layer : layers) {
    v.vector(layer.norm);
    v.linear(layer.q);
    v.linear(layer.kv);
    v.linear(layer.out);
    v.vector(layer.ffn_norm);
    v.ffn(layer.ffn);
  }
}

constinit const Architecture kToy{.name = "Toy",
                                  .releases = "Toy",
                                  .model_type = "toy",
                                  .class_name = "ToyForCausalLM",
                                  .keys = &kKeys,
                                  .read_config = read_config,
                                  .layer_prefix = layer_prefix,
                                  .weight_rows = weight_rows,
                                  .layer_cache = layer_cache,
                                  .make_model = make_model,
                                  .describe = describe,
                                  .describe_json = describe_json};

}  // namespace levin::test
