// A layer of DeepSeek-V4.1 (model_spec.md 11.1): attention and experts, each reading the residual streams with the weights
// that the sublayer before it made, and writing to them with its own.
#pragma once

#include "arch/deepseek_v4/streams.h"
#include "arch/deepseek_v41/shared_attention.h"

namespace levin {

struct V41Layer {
  const ModelConfig& config;
  const DeepseekV41Weights& weights;
  const V41LayerWeights& w;
  const V41Rotations& rotations;
  int layer = 0;  // of the caches; from n_layers on the drafter's

  // streams [T, M, D] f32 and read [T, M], the weights to read them with, both updated. `topk` may be null in layers without
  // entries.
  void forward(Pass& p, View streams, View read, SharedTopk* topk) const;

  SharedAttentionBlock attention() const;

 private:
  View experts(Pass& p, View x) const;
};

// The weights that the first sublayer reads with, [T, M]: stream 0 alone.
View first_read(Pass& p, const DeepseekV41Weights& weights);

}  // namespace levin
