// The experts of a layer: routing, then the chosen experts and the shared one (model_spec.md 5).
#pragma once

#include "model/config.h"
#include "model/pass.h"
#include "model/weights.h"
#include "ops/moe.h"

namespace levin {

struct MoeParams {
  int64_t n_active = 0;  // A
  ops::ExpertScore score = ops::ExpertScore::kSigmoid;
  int n_groups = 1;
  int n_groups_kept = 1;
  bool normalize = true;        // divide the winners' weights by their sum
  float factor = 1;             // of these weights
  float limit = ops::kNoLimit;  // of the experts' activation
};
MoeParams moe_params(const ModelConfig& config);

struct MoeBlock {
  MoeParams params;
  const MoeWeights& weights;

  View forward(Pass& p, View h) const;         // h [T, D] normed -> [T, D]
  void add_to(Pass& p, View x, View h) const;  // x [T, D] += the same

 private:
  void run(Pass& p, View h, View out, bool add) const;
};

}  // namespace levin
