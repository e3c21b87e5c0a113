// DeepSeek-V3.2: the trunk and its MTP layer (model-spec 3.4, 4, 5.1, 7.1).
//
// A Model is weights and facts; it keeps no state between calls. What a sequence has seen lives in the KvCache through
// the step's block tables. Layer n_layers of the caches belongs to the MTP layer.
#pragma once

#include <string>
#include <vector>

#include "kv/cache.h"
#include "model/blocks/layer.h"
#include "model/config.h"
#include "model/numerics.h"
#include "model/weights.h"

namespace levin {

class Model {
 public:
  Model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection = Selection::kIndexer);

  const ModelConfig& config() const { return config_; }
  const Numerics& numerics() const { return numerics_; }
  bool has_mtp() const { return weights_.mtp.has_value(); }

  // What each layer caches: n_layers entries, then the MTP layer's if there is one.
  std::vector<LayerCacheFormat> cache_formats() const;

  // Runs a step (SlotRule::kAtPosition) through the trunk. -> [T, D] f32, after the final norm; in the context's arena.
  View trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe = nullptr) const;

  // One MTP step (SlotRule::kAfterPosition): step.tokens[t] is the token after position t, hidden [T, D] the trunk's
  // output there, or in recursion the MTP's own. -> [T, D] f32 after the MTP head's norm: input of logits() and of the
  // next recursion.
  View mtp(OpContext& ctx, const Step& step, View hidden, const KvCache& cache, const Probe* probe = nullptr) const;

  // hidden [N, D] f32 -> [N, V] f32.
  View logits(OpContext& ctx, View hidden) const;

 private:
  ModelConfig config_;
  Numerics numerics_;
  ModelWeights weights_;
  Selection selection_;
  std::vector<float> rope_frequencies_;  // Dr/2
};

}  // namespace levin
