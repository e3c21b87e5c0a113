#include "model/blocks/stream_layer.h"

#include <algorithm>

#include "model/blocks/streams.h"
#include "ops/moe.h"

namespace levin {

void StreamLayer::forward(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  {
    const StreamBlock block{config, weights.attention_streams};
    const StreamRead read = block.read(p, streams);
    block.write(p, streams, read, attention(p, p.rms_norm(read.x, weights.attention_norm, config.norm_eps)));
  }
  {
    const StreamBlock block{config, weights.ffn_streams};
    const StreamRead read = block.read(p, streams);
    block.write(p, streams, read, experts(p, p.rms_norm(read.x, weights.ffn_norm, config.norm_eps)));
  }
  if (p.probe() == nullptr || !p.probe()->on_layer_output) return;
  p.probe()->on_layer_output(layer, streams.reshaped({p.n_tokens(), config.n_streams * config.d_model}));
}

View StreamLayer::attention(Pass& p, View h) const {
  return WindowAttentionBlock{.config = config,
                              .weights = weights.attention,
                              .rotations = rotations,
                              .layer = layer,
                              .compression = config.compression[static_cast<size_t>(layer)]}
      .forward(p, h);
}

View StreamLayer::experts(Pass& p, View h) const {
  const V4MoeWeights& moe = weights.moe;
  const View out = p.allocate(DType::kF32, {p.n_tokens(), config.d_model});  // [T, D]
  const ArenaScope scratch = p.scope();
  const View logits = p.matmul(h, moe.gate);                                             // [T, E]
  const View picks = p.allocate(DType::kI32, {p.n_tokens(), config.n_active});           // [T, A]
  const View expert_weights = p.allocate(DType::kF32, {p.n_tokens(), config.n_active});  // [T, A]
  ops::route_experts(p.ctx(), {.logits = logits,
                               .score = ops::ExpertScore::kSqrtSoftplus,
                               .bias = moe.bias.view,
                               .chosen = moe.hash_experts.empty() ? View() : hash_experts(p),
                               .normalize = config.normalize_expert_weights,
                               .factor = config.expert_factor,
                               .picks = picks,
                               .weights = expert_weights});
  ops::expert_ffn(p.ctx(), {.x = h,
                            .picks = picks,
                            .weights = expert_weights,
                            .experts = moe.experts,
                            .shared = &moe.shared,
                            .limit = config.ffn_limit,
                            .weigh_hidden = p.numerics().weigh_hidden,
                            .out = out});
  return out;
}

View StreamLayer::hash_experts(Pass& p) const {
  const View out = p.allocate(DType::kI32, {p.n_tokens(), config.n_active});
  for (int64_t t = 0; t < p.n_tokens(); ++t) {
    const int32_t* experts = weights.moe.hash_experts.row<int32_t>(p.step().tokens.data<int32_t>()[t]);
    std::copy_n(experts, config.n_active, out.row<int32_t>(t));
    std::sort(out.row<int32_t>(t), out.row<int32_t>(t) + config.n_active);
  }
  return out;
}

}  // namespace levin
