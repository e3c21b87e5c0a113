// Multi-head latent attention over the tokens that the lightning indexer picks (model-spec 4.3, 4.4), in absorbed form:
// keys and values are the cached latent rows themselves, one set of picks for all heads.
#pragma once

#include "model/config.h"
#include "model/pass.h"

namespace levin {

// Which tokens attention reads. kMostRecent is a diagnostic: the last K visible ones, without the indexer; recall over
// long texts collapses with it, which is how a test knows that the indexer's picks matter.
enum class Selection : uint8_t { kIndexer, kMostRecent };

struct AttentionBlock {
  const ModelConfig& config;
  const LayerWeights& weights;
  int layer = 0;  // of the caches
  Selection selection = Selection::kIndexer;

  // h [T, D] normed input -> [T, D]. Writes this step's rows into the layer's caches first, then reads only from them.
  View forward(Pass& p, View h) const;

 private:
  // The K slots each token attends to, [T, K] i32. c_q [T, Rq] is the normed query latent.
  View select(Pass& p, View h, View c_q) const;
  View select_most_recent(Pass& p) const;
  void append_index_keys(Pass& p, View h) const;
  View picks_for(Pass& p, View h, View c_q) const;
};

}  // namespace levin
