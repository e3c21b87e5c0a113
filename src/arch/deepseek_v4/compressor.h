// A compressor of DeepSeek-V4 (model_spec.md 6.4): the entries that a step's tokens complete.
#pragma once

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/weights.h"
#include "model/pass.h"

namespace levin {

struct CompressorBlock {
  const ModelConfig& config;
  const CompressorWeights& weights;
  const StepEntries& entries;  // of the layer's ratio
  Rotation rotation;           // of their positions
  bool overlap = false;        // Compression::kIndexed

  // h [T, D] normed input -> [N, d] entries, normed and rotated. Keeps the tokens' state in `state` for later entries.
  View forward(Pass& p, View h, const StateRings& state) const;
};

}  // namespace levin
