// The block drafter of DeepSeek-V4.1 (model_spec.md 11.7): that of V4, whose taps are taken before the target layers and whose
// stages read the streams as the trunk's layers do.
#pragma once

#include "arch/deepseek_v41/layer.h"
#include "model/model.h"

namespace levin {

struct V41DsparkBlock {
  const ModelConfig& config;
  const DeepseekV41Weights& weights;  // with a drafter
  const V41Rotations& rotations;

  View allocate_taps(Pass& p) const;  // of a step's tokens, to be filled as the trunk goes along: [T, Nt * D]
  // The streams [T, M, D] that `layer` reads; nothing is taken of layers that are no target.
  void take(Pass& p, int layer, View streams, View taps) const;
  void append(Pass& p, View taps) const;  // writes the rows of all stages into their caches

  // A step of blocks: x [T, D] embeddings -> the head's rows, before their norm as `state`.
  ForwardRows forward(Pass& p, View x) const;

 private:
  V41Layer stage(int i) const;
};

// before [N] i32, state [N, D]: the terms of the drafts after these tokens.
DraftTerms dspark_terms(Pass& p, const V41DsparkWeights& weights, View before, View state);

}  // namespace levin
