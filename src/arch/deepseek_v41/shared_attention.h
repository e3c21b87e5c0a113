// Attention of DeepSeek-V4.1 (model_spec.md 11.2 to 11.5): one key-value head, over the last tokens as they are and, in layers
// with entries, over those of the nearest source that the nearest layer with an indexer selects.
#pragma once

#include <vector>

#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/weights.h"
#include "model/blocks/indexer.h"
#include "model/pass.h"
#include "ops/sparse_attention.h"

namespace levin {

// The rotations of a step, made once for all its layers.
struct V41Rotations {
  // Of the tokens' positions and their inverse, in layers without and with entries.
  Rotation plain, plain_inverse, compressed, compressed_inverse;
  std::vector<Rotation> entries;  // of the positions of step.entries
};

// What is selected, on its way up the layers.
struct SharedTopk {
  View slots;   // [T, K] i32: entries, ascending, unused -1; written by layers with an indexer, read by all
  View blocks;  // [T, Kb] i32: candidate blocks, once the layer that chooses them has run
};

struct SharedAttentionBlock {
  const ModelConfig& config;
  const DeepseekV41Weights& weights;
  const V41AttentionWeights& w;
  const V41Rotations& rotations;
  int layer = 0;  // of the caches
  EntriesOfLayer entries;

  // Writes this step's rows, and the entries that it completes, into the layer's caches; h [T, D] is the normed input.
  void append(Pass& p, View h) const;
  // h [T, D] -> [T, D]. Reads only from the caches, which hold the rows of these tokens; in a step of blocks these attend
  // to each other instead, and leave nothing there. `topk` may be null in layers without entries.
  View attend(Pass& p, View h, SharedTopk* topk) const;

 private:
  void append_rows(Pass& p, View h, const PagedRows& to) const;
  void append_entries(Pass& p, View h) const;
  View latents(Pass& p, View h, const StepEntries& e) const;  // [N, Dh]: normed entries before they are rotated
  ops::AttentionRows more_rows(Pass& p, const IndexerInput& in, SharedTopk* topk) const;
  ops::AttentionRows block_rows(Pass& p, View h) const;
  void select(Pass& p, const IndexerInput& in, SharedTopk& topk) const;
  void select_in_two_levels(Pass& p, const ops::IndexQuery& query, int32_t n_visible, SharedTopk& topk) const;

  const StepEntries& step_entries(Pass& p) const { return p.step().entries_of(entries.ratio); }
  const Rotation& rotation() const { return entries.ratio > 0 ? rotations.compressed : rotations.plain; }
  const Rotation& inverse_rotation() const {
    return entries.ratio > 0 ? rotations.compressed_inverse : rotations.plain_inverse;
  }
};

}  // namespace levin
