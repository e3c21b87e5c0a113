// A layer of GLM-5.3-Flash's trunk: attention of either kind and feed-forward, each reading from and writing to the
// residual streams (model_spec.md 10.1).
#pragma once

#include "arch/deepseek_v4/streams.h"
#include "arch/glm_next/linear_attention.h"
#include "arch/glm_next/pooled_attention.h"

namespace levin {

struct GlmNextLayer {
  const ModelConfig& config;
  const GlmNextLayerWeights& weights;
  int layer = 0;
  Selection selection = Selection::kIndexer;

  void forward(Pass& p, View streams) const;  // streams [T, M, D] f32, updated

 private:
  View attend(Pass& p, View h) const;  // h [T, D] normed -> [T, D]
};

// Experts or a dense block: h [T, D] -> [T, D], of rows before their norm.
View glm_next_ffn(Pass& p, const ModelConfig& config, const GlmNextFfnWeights& weights, View x);

}  // namespace levin
