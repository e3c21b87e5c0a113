#include "arch/glm_next/layer.h"

#include "model/blocks/moe.h"
#include "ops/moe.h"

namespace levin {

void GlmNextLayer::forward(Pass& p, View streams) const {  // [T, M, D]
  const ArenaScope scratch = p.scope();
  const StreamBlock around_attention{config, weights.attention_streams};
  const StreamRead in = around_attention.read(p, streams);
  const View h = p.rms_norm(in.x, weights.attention_norm, config.norm_eps);
  around_attention.write(p, streams, in, attend(p, h));
  const StreamBlock around_ffn{config, weights.ffn_streams};
  const StreamRead mid = around_ffn.read(p, streams);
  around_ffn.write(p, streams, mid, glm_next_ffn(p, config, weights.ffn, mid.x));
  if (p.probe() == nullptr || !p.probe()->on_layer_output) return;
  p.probe()->on_layer_output(layer, streams.reshaped({p.n_tokens(), config.n_streams * config.d_model}));
}

View GlmNextLayer::attend(Pass& p, View h) const {
  if (weights.linear) return LinearAttentionBlock{config, *weights.linear, layer}.forward(p, h);
  const PooledAttentionBlock attention{config, *weights.pooled, layer, selection};
  attention.append(p, h);
  return attention.attend(p, h, p.allocate(DType::kI32, {p.n_tokens(), config.n_topk}), false);
}

View glm_next_ffn(Pass& p, const ModelConfig& config, const GlmNextFfnWeights& weights, View x) {
  const View h = p.rms_norm(x, weights.norm, config.norm_eps);  // [T, D]
  if (weights.moe) return MoeBlock{.params = moe_params(config), .weights = *weights.moe}.forward(p, h);
  const View out = p.allocate(DType::kF32, {p.n_tokens(), config.d_model});  // [T, D]
  const ArenaScope scratch = p.scope();
  ops::ffn(p.ctx(), {.x = h, .weights = &*weights.dense, .limit = config.ffn_limit, .out = out});
  return out;
}

}  // namespace levin
