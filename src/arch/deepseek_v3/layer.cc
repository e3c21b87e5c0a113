#include "arch/deepseek_v3/layer.h"

#include "ops/moe.h"

namespace levin {

void DecoderLayer::forward(Pass& p, View x, Picks& picks) const {  // x [T, D]
  const ArenaScope scratch = p.scope();
  const View h = normed(p, x);
  attention().append(p, h);
  forward_normed(p, x, h, picks);
}

void DecoderLayer::append(Pass& p, View x) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, normed(p, x));
}

void DecoderLayer::forward_appended(Pass& p, View x, Picks& picks) const {
  const ArenaScope scratch = p.scope();
  forward_normed(p, x, normed(p, x), picks);
}

void DecoderLayer::forward_normed(Pass& p, View x, View h, Picks& picks) const {
  p.add_into(x, attention().attend(p, h, picks));
  p.add_into(x, feed_forward(p, p.rms_norm(x, weights.ffn_norm, config.norm_eps)));
  if (p.probe() != nullptr && p.probe()->on_layer_output) p.probe()->on_layer_output(layer, x);
}

View DecoderLayer::feed_forward(Pass& p, View h) const {
  const View out = p.allocate(DType::kF32, {p.n_tokens(), config.d_model});  // [T, D]
  const ArenaScope scratch = p.scope();
  if (weights.dense) {
    ops::ffn(p.ctx(), {.x = h, .weights = &*weights.dense, .out = out});
    return out;
  }
  const MoeWeights& moe = *weights.moe;
  const View logits = p.matmul(h, moe.gate);                                             // [T, E]
  const View picks = p.allocate(DType::kI32, {p.n_tokens(), config.n_active});           // [T, A]
  const View expert_weights = p.allocate(DType::kF32, {p.n_tokens(), config.n_active});  // [T, A]
  ops::route_experts(p.ctx(), {.logits = logits,
                               .bias = moe.bias.view,
                               .n_groups = config.n_groups,
                               .n_groups_kept = config.n_groups_kept,
                               .normalize = config.normalize_expert_weights,
                               .factor = config.expert_factor,
                               .picks = picks,
                               .weights = expert_weights});
  ops::expert_ffn(p.ctx(), {.x = h,
                            .picks = picks,
                            .weights = expert_weights,
                            .experts = moe.experts,
                            .shared = moe.shared ? &*moe.shared : nullptr,
                            .out = out});
  return out;
}

}  // namespace levin
