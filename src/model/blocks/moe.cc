#include "model/blocks/moe.h"

namespace levin {

MoeParams moe_params(const ModelConfig& config) {
  return {.n_active = config.n_active,
          .score = config.expert_score,
          .n_groups = config.n_groups,
          .n_groups_kept = config.n_groups_kept,
          .normalize = config.normalize_expert_weights,
          .factor = config.expert_factor,
          .limit = config.ffn_limit};
}

View MoeBlock::forward(Pass& p, View h) const {
  const View out = p.allocate(DType::kF32, {p.n_tokens(), h.dim(1)});  // [T, D]
  run(p, h, out, false);
  return out;
}

void MoeBlock::add_to(Pass& p, View x, View h) const { run(p, h, x, true); }

void MoeBlock::run(Pass& p, View h, View out, bool add) const {
  const ArenaScope scratch = p.scope();
  const View logits = p.matmul(h, weights.gate);                                         // [T, E]
  const View topk = p.allocate(DType::kI32, {p.n_tokens(), params.n_active});            // [T, A]
  const View expert_weights = p.allocate(DType::kF32, {p.n_tokens(), params.n_active});  // [T, A]
  const ops::RouteExperts route{.logits = logits,
                                .score = params.score,
                                .bias = weights.bias.view,
                                .chosen = weights.hash_experts,
                                .tokens = weights.hash_experts.empty() ? View() : p.step().tokens,
                                .slot = p.step().slot,
                                .n_groups = params.n_groups,
                                .n_groups_kept = params.n_groups_kept,
                                .normalize = params.normalize,
                                .factor = params.factor,
                                .topk = topk,
                                .weights = expert_weights,
                                .faults = p.step().faults};
  const ops::ExpertFfn experts{.x = h,
                               .topk = topk,
                               .weights = expert_weights,
                               .experts = weights.experts,
                               .shared = weights.shared ? &*weights.shared : nullptr,
                               .limit = params.limit,
                               .weigh_hidden = p.numerics().weigh_hidden,
                               .out = out,
                               .add = add};
  if (p.probe() == nullptr || !p.probe()->on_experts) {
    ops::routed_ffn(p.ctx(), {.route = route, .experts = experts});
    return;
  }
  ops::route_experts(p.ctx(), route);
  p.probe()->on_experts(logits, topk, expert_weights);
  ops::expert_ffn(p.ctx(), experts);
}

}  // namespace levin
