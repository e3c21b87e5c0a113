#include "model/model.h"

#include <utility>

#include "model/architecture.h"

namespace levin {

Model::Model(ModelConfig config, Numerics numerics, ModelWeights weights)
    : config_(std::move(config)), numerics_(numerics), weights_(std::move(weights)) {}

View Model::logits(OpContext& ctx, View hidden) const { return matmul(ctx, hidden, weights_.head); }  // [N, V]

View Model::draft_logits(OpContext& ctx, View hidden) const {
  return matmul(ctx, hidden, weights_.draft_head ? *weights_.draft_head : weights_.head);
}

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection) {
  const Architecture& family = *config.family;
  return family.make_model(std::move(config), numerics, std::move(weights), selection);
}

}  // namespace levin
