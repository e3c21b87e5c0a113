// A layer of DeepSeek-V4: attention and experts, each reading from and writing to the residual streams (model_spec.md 5.2,
// 5.3, 6.7).
#pragma once

#include "arch/deepseek_v4/streams.h"
#include "arch/deepseek_v4/window_attention.h"

namespace levin {

struct StreamLayer {
  const ModelConfig& config;
  const V4LayerWeights& weights;
  const StepRotations& rotations;
  int layer = 0;

  void forward(Pass& p, View streams) const;  // streams [T, M, D] f32, updated

  // The two halves of forward(): what the layer leaves in its caches, for every token; then the rest, for those tokens
  // whose output somebody wants.
  void append(Pass& p, View streams) const;
  void forward_appended(Pass& p, View streams) const;

 private:
  // What the attention reads of the streams.
  struct Input {
    StreamRead read;
    View h;  // [T, D] normed
  };
  StreamBlock attention_streams() const { return {config, weights.attention_streams}; }
  Input attention_input(Pass& p, View streams) const;
  WindowAttentionBlock attention() const;
  void forward_read(Pass& p, View streams, const Input& in) const;  // the input's rows are in the caches
};

}  // namespace levin
