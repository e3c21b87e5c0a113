#include "arch/deepseek_v4/stream_layer.h"

#include <algorithm>

#include "ops/moe.h"

namespace levin {

void StreamLayer::forward(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  const Input in = attention_input(p, streams);
  attention().append(p, in.h);
  forward_read(p, streams, in);
}

void StreamLayer::append(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, attention_input(p, streams).h);
}

void StreamLayer::forward_appended(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  forward_read(p, streams, attention_input(p, streams));
}

StreamLayer::Input StreamLayer::attention_input(Pass& p, View streams) const {
  const StreamRead read = attention_streams().read(p, streams);
  return {.read = read, .h = p.rms_norm(read.x, weights.attention_norm, config.norm_eps)};
}

void StreamLayer::forward_read(Pass& p, View streams, const Input& in) const {
  attention_streams().write(p, streams, in.read, attention().attend(p, in.h));
  const StreamBlock block{config, weights.ffn_streams};
  const StreamRead read = block.read(p, streams);
  block.write(p, streams, read, experts(p, p.rms_norm(read.x, weights.ffn_norm, config.norm_eps)));
  if (p.probe() == nullptr || !p.probe()->on_layer_output) return;
  p.probe()->on_layer_output(layer, streams.reshaped({p.n_tokens(), config.n_streams * config.d_model}));
}

WindowAttentionBlock StreamLayer::attention() const {
  return {.config = config,
          .weights = weights.attention,
          .rotations = rotations,
          .layer = layer,
          .compression = config.compression[static_cast<size_t>(layer)]};
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
