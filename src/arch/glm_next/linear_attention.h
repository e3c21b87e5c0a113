// Linear attention of GLM-5.3-Flash (model_spec.md 10.2): queries, keys and values through a short convolution, then one
// matrix per head that every token updates and reads.
#pragma once

#include "arch/glm_next/config.h"
#include "arch/glm_next/weights.h"
#include "model/pass.h"

namespace levin {

struct LinearAttentionBlock {
  const ModelConfig& config;
  const LinearAttentionWeights& weights;
  int layer = 0;  // of the caches

  View forward(Pass& p, View h) const;  // h [T, D] normed input -> [T, D]
};

}  // namespace levin
