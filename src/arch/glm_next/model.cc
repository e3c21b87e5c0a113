#include "arch/glm_next/model.h"

#include <utility>

#include "arch/glm_next/layer.h"
#include "arch/glm_next/parts.h"
#include "base/check.h"
#include "model/wanted_rows.h"
#include "ops/copies.h"
#include "ops/streams.h"

namespace levin {
namespace {

// Every stream begins as x: [T, D] -> [T, M, D].
View spread(Pass& p, View x, int64_t n_streams) {
  const View out = p.allocate(DType::kF32, {x.dim(0), n_streams, x.dim(1)});
  ops::copy_rows(p.ctx(), {.x = x, .repeat = n_streams, .out = out.merged_first()});
  return out;
}

}  // namespace

GlmNext::GlmNext(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection)
    : Model(std::move(config), numerics, std::move(weights)), selection_(selection) {}

ForwardRows GlmNext::trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const {
  const ModelConfig& c = config();
  Pass p(ctx, numerics(), step, cache, probe);
  const View streams = spread(p, p.embed(weights().embed), c.n_streams);  // [T, M, D]
  for (int layer = 0; layer < c.n_layers; ++layer) {
    GlmNextLayer{c, glm_next::own(weights()).layers[static_cast<size_t>(layer)], layer, selection_}.forward(p, streams);
  }
  const View x = p.allocate(DType::kF32, {p.n_tokens(), c.d_model});  // [T, D]
  ops::mean_streams(p.ctx(), {.streams = streams, .out = x});
  const View hidden = p.rms_norm(x, weights().norm, c.norm_eps);  // [T, D]
  return {.hidden = hidden, .state = hidden, .topk = {}};
}

ForwardRows GlmNext::mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                         const Probe* probe) const {
  LEVIN_CHECK(has_mtp(), "the model has no MTP layer");
  const ModelConfig& c = config();
  const GlmNextMtpWeights& w = *glm_next::own(weights()).mtp;
  Pass p(ctx, numerics(), step, cache, probe);
  const View e = p.rms_norm(p.embed(weights().embed), w.embed_norm, c.norm_eps);  // [T, D]
  const View h = p.rms_norm(in.state, w.hidden_norm, c.norm_eps);                 // [T, D]
  const View z = p.matmul(p.concatenate(e, h), w.join);                           // [T, D], embedding first
  const PooledAttentionBlock attention{c, w.attention, c.n_layers, selection_};
  attention.append(p, p.rms_norm(z, w.attention_norm, c.norm_eps));
  WantedRows wanted(p);
  if (wanted.are_none()) return {};
  Pass& q = wanted.pass();
  const View x = wanted.of(z);  // [N, D]
  const bool given = !in.topk.empty();
  const View topk = given ? in.topk : q.allocate(DType::kI32, {q.n_tokens(), c.n_topk});  // [N, K]
  q.add_into(x, attention.attend(q, q.rms_norm(x, w.attention_norm, c.norm_eps), topk, given));
  q.add_into(x, glm_next_ffn(q, c, w.ffn, x));
  if (probe != nullptr && probe->on_layer_output) probe->on_layer_output(c.n_layers, x);
  const View hidden = q.rms_norm(x, w.head_norm, c.norm_eps);  // [N, D]
  return {.hidden = hidden, .state = hidden, .topk = topk};
}

namespace glm_next {

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection) {
  return std::make_unique<GlmNext>(std::move(config), numerics, std::move(weights), selection);
}

}  // namespace glm_next
}  // namespace levin
