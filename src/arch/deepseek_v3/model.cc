#include "arch/deepseek_v3/model.h"

#include <utility>

#include "arch/deepseek_v3/layer.h"
#include "arch/deepseek_v3/mla.h"
#include "base/check.h"
#include "model/wanted_rows.h"
#include "ops/index_topk.h"

namespace levin {
namespace {

Topk no_topk(Pass& p, int64_t n_topk) { return {.slots = p.allocate(DType::kI32, {p.n_tokens(), n_topk})}; }

}  // namespace

DeepseekV32::DeepseekV32(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection)
    : Model(std::move(config), numerics, std::move(weights)),
      selection_(selection),
      rope_frequencies_(Model::config().rope_frequencies()) {}

ForwardRows DeepseekV32::trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const {
  Pass p(ctx, numerics(), step, cache, probe);
  p.prepare_rope(rope_frequencies_);
  p.plan_index(config().n_topk);
  const View x = p.embed(weights().embed);  // [T, D]
  Topk topk = no_topk(p, config().n_topk);  // [T, K]
  for (int layer = 0; layer < config().n_layers; ++layer) {
    DecoderLayer{config(), mla::own(weights()).layers[static_cast<size_t>(layer)], layer, selection_}.forward(p, x,
                                                                                                              topk);
  }
  const View hidden = p.rms_norm(x, weights().norm, config().norm_eps);  // [T, D]
  return {.hidden = hidden, .state = hidden, .topk = {}};
}

ForwardRows DeepseekV32::mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                             const Probe* probe) const {
  LEVIN_CHECK(has_mtp(), "the model has no MTP layer");
  const MtpWeights& w = *mla::own(weights()).mtp;
  Pass p(ctx, numerics(), step, cache, probe);
  p.prepare_rope(rope_frequencies_);
  const View e = p.rms_norm(p.embed(weights().embed), w.embed_norm, config().norm_eps);  // [T, D]
  const View h = p.rms_norm(in.state, w.hidden_norm, config().norm_eps);                 // [T, D]
  const View z = p.matmul(p.concatenate(e, h), w.eh_proj);                               // [T, D], embedding first
  const int layer = config().n_layers;
  const DecoderLayer decoder{config(), w.layer, layer, selection_};
  decoder.append(p, z);
  WantedRows wanted(p);
  if (wanted.are_none()) return {};
  Pass& q = wanted.pass();
  if (in.topk.empty()) q.plan_index(config().n_topk);
  const View x = wanted.of(z);                               // [N, D]
  Topk topk = in.topk.empty() ? no_topk(q, config().n_topk)  // [N, K]
                              : Topk{.slots = in.topk, .source = layer, .given = true};
  decoder.forward_appended(q, x, topk);
  const View hidden = q.rms_norm(x, w.head_norm, config().norm_eps);  // [N, D]
  return {.hidden = hidden, .state = hidden, .topk = topk.slots};
}

namespace mla {

LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer) {
  LayerCacheFormat format{.latent = latent_format(numerics.latent, config.d_latent, config.d_rope)};
  if (config.has_indexer(layer)) format.index = index_key_format(numerics.index_keys, config.d_index);
  return format;
}

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection) {
  return std::make_unique<DeepseekV32>(std::move(config), numerics, std::move(weights), selection);
}

}  // namespace mla
}  // namespace levin
