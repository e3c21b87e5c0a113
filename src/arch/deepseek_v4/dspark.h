// The block drafter of DeepSeek-V4 (model_spec.md 7.4). What it keeps of a token is a row in each of its stages' windows,
// made of the token's tap alone, so that the trunk's own step writes them and whatever carries the trunk's rows carries
// these. A block's own rows are in no cache.
#pragma once

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/weights.h"
#include "arch/deepseek_v4/window_attention.h"
#include "model/model.h"

namespace levin {

struct DsparkBlock {
  const ModelConfig& config;
  const DsparkWeights& weights;
  const StepRotations& rotations;

  // The taps of a step's tokens, to be filled while the trunk goes along: [T, Nt * D].
  View allocate_taps(Pass& p) const;
  // The streams [T, M, D] after `layer`; nothing is taken of layers that are no target.
  void take(Pass& p, int layer, View streams, View taps) const;
  // Writes the rows of all stages into their caches.
  void append(Pass& p, View taps) const;

  // A step of blocks: x [T, D] embeddings -> the head's rows, before their norm as `state`.
  ForwardRows forward(Pass& p, View x) const;

 private:
  WindowAttentionBlock attention(int stage) const;
};

// before [N] i32, state [N, D]: the terms of the drafts that follow these tokens.
DraftTerms dspark_terms(Pass& p, const DsparkWeights& weights, View before, View state);

}  // namespace levin
