// Attention of DeepSeek-V4 (model_spec.md 6.3 to 6.6): one key-value head, over the last tokens as they are and, in layers
// with compression, over entries that stand for many: all of them, or those that the indexer selects.
#pragma once

#include <vector>

#include "arch/deepseek_v4/compressor.h"
#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/weights.h"
#include "model/blocks/indexer.h"
#include "model/pass.h"
#include "ops/sparse_attention.h"

namespace levin {

// The rotations of a step, made once for all its layers.
struct StepRotations {
  // Of the tokens' positions and their inverse, in layers without and with compression.
  Rotation plain, plain_inverse, compressed, compressed_inverse;
  std::vector<Rotation> entries;  // of the positions of step.entries
};

struct WindowAttentionBlock {
  const ModelConfig& config;
  const V4AttentionWeights& weights;
  const StepRotations& rotations;
  int layer = 0;  // of the caches
  LayerCompression compression;

  // Writes this step's rows into the layer's caches; h [T, D] is the normed input.
  void append(Pass& p, View h) const;
  // h [T, D] -> [T, D]. Reads only from the caches, which hold the rows of these tokens; in a step of blocks these attend
  // to each other instead, and leave nothing there.
  View attend(Pass& p, View h) const;

 private:
  // The window's rows of h, written to where the step's slots are in `to`.
  void append_rows(Pass& p, View h, const PagedRows& to) const;
  void show_rows(Pass& p, View x) const;  // to a probe that asks
  // What each token attends to in addition to its window: its own block, or entries.
  ops::AttentionRows more_rows(Pass& p, const IndexerInput& in) const;
  ops::AttentionRows block_rows(Pass& p, View h) const;
  ops::AttentionRows entry_rows(Pass& p, const IndexerInput& in) const;
  void append_entries(Pass& p, View h, const StepEntries& entries) const;
  void append_index_keys(Pass& p, View h, const StepEntries& entries) const;
  View topk_for(Pass& p, const IndexerInput& in, const StepEntries& entries) const;

  bool compresses() const { return compression.kind != Compression::kNone; }
  const Rotation& rotation() const { return compresses() ? rotations.compressed : rotations.plain; }
  const Rotation& inverse_rotation() const {
    return compresses() ? rotations.compressed_inverse : rotations.plain_inverse;
  }
  CompressorBlock compressor(const CompressorWeights& w, const StepEntries& entries) const;
  const Rotation& rotation_of(Pass& p, const StepEntries& entries) const;  // of their positions
};

}  // namespace levin
