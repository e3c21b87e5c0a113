// Latent attention of GLM-5.3-Flash (model_spec.md 10.3, 10.4): nothing is rotated, and the indexer selects pools of Pk tokens
// by one key each. The tokens of an incomplete pool are always attended to.
#pragma once

#include "arch/glm_next/config.h"
#include "arch/glm_next/weights.h"
#include "model/blocks/indexer.h"
#include "model/model.h"
#include "model/pass.h"

namespace levin {

struct PooledAttentionBlock {
  const ModelConfig& config;
  const PooledAttentionWeights& weights;
  int layer = 0;  // of the caches
  Selection selection = Selection::kIndexer;

  // Writes this step's rows, and the keys of the pools it completes, into the layer's caches; h [T, D] is the normed
  // input.
  void append(Pass& p, View h) const;
  // h [T, D] -> [T, D]. Reads only from the caches, which hold the rows of these tokens. topk [T, K] i32: slots, which
  // are written unless they are `given`.
  View attend(Pass& p, View h, View topk, bool given) const;

 private:
  void append_latent(Pass& p, View h) const;
  void append_index_keys(Pass& p, View h) const;
  void select(Pass& p, const IndexerInput& in, View topk) const;
  const StepEntries& pools(Pass& p) const { return p.step().entries_of(glm_next::own(config).n_pool); }
  float latent_eps(const Pass& p) const { return p.numerics().latent_norm_eps.value_or(config.norm_eps); }
};

}  // namespace levin
