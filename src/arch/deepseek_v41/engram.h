// The n-gram memory of DeepSeek-V4.1 (model_spec.md 11.6): before some layers, rows that the last tokens choose are written
// into the residual streams. Its tables stay in their files; what a step will read is asked for when the step begins.
#pragma once

#include <vector>

#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/weights.h"
#include "model/pass.h"

namespace levin {

class EngramBlock {
 public:
  EngramBlock(const ModelConfig& config, const DeepseekV41Weights& weights) : config_(config), weights_(weights) {}

  // Chooses the rows of the step's tokens for all layers, and keeps the tokens for later steps.
  void begin(Pass& p);
  // streams [T, M, D], updated, if the layer has a memory.
  void write(Pass& p, int layer, View streams) const;

 private:
  const ModelConfig& config_;
  const DeepseekV41Weights& weights_;
  std::vector<View> rows_;  // [T, (Ne - 1) He] i32, of each layer with a memory
};

}  // namespace levin
