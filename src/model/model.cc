#include "model/model.h"

#include <utility>

#include "model/deepseek_v32.h"
#include "model/deepseek_v4.h"

namespace levin {

Model::Model(ModelConfig config, Numerics numerics, ModelWeights weights)
    : config_(std::move(config)), numerics_(numerics), weights_(std::move(weights)) {}

View Model::logits(OpContext& ctx, View hidden) const { return logits_of(ctx, hidden, weights_.head); }

View Model::draft_logits(OpContext& ctx, View hidden) const {
  return logits_of(ctx, hidden, weights_.draft_head ? *weights_.draft_head : weights_.head);
}

View Model::logits_of(OpContext& ctx, View hidden, const Linear& head) const {
  const Step no_step;
  const KvCache no_cache;
  Pass p(ctx, numerics_, no_step, no_cache, nullptr);
  return p.matmul(hidden, head);  // [N, V]
}

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection) {
  if (config.family == ModelFamily::kDeepseekV4) {
    return std::make_unique<DeepseekV4>(std::move(config), numerics, std::move(weights));
  }
  return std::make_unique<DeepseekV32>(std::move(config), numerics, std::move(weights), selection);
}

}  // namespace levin
