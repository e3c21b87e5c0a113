// A compressor of DeepSeek-V4 (model_spec.md 6.4): the entries that a step's tokens complete.
#pragma once

#include "arch/deepseek_v4/weights.h"
#include "model/pass.h"

namespace levin {

struct CompressorBlock {
  const CompressorWeights& weights;
  const StepEntries& entries;  // of the layer's ratio
  bool overlap = false;        // Compression::kIndexed

  // h [T, D] normed input -> [N, d] entries, not normed yet. Keeps the tokens' state in `state` for later entries.
  View pool(Pass& p, View h, const StateRings& state) const;
};

}  // namespace levin
