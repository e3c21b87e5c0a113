// A model of any family: a trunk, perhaps a multi-token-prediction layer, and a head. What a family's layers compute is
// in its own files.
//
// A Model consists of weights and config and keeps no state between calls. The state of sequences is in the KvCache,
// which a step addresses through its block tables. Layers from n_layers on of the caches belong to the draft layers.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "kv/cache.h"
#include "model/cache_layout.h"
#include "model/config.h"
#include "model/numerics.h"
#include "model/pass.h"
#include "model/step.h"
#include "model/weights.h"

namespace levin {

// Which tokens attention reads. kMostRecent is a diagnostic that selects the last K visible tokens without the indexer;
// recall over long texts collapses with it, by which a test proves that the indexer's selection matters.
enum class Selection : uint8_t { kIndexer, kMostRecent };

// The results of a forward pass for each of its T tokens, in the context's arena.
struct ForwardRows {
  View hidden;  // [T, D] f32, after the final norm: the input of logits()
  View state;   // [T, d_state()] f32: the input of mtp() for the pair of this token and the next
  View topk;    // [T, K] i32, of an MTP layer with an indexer: the top-k indices as slots, ascending, unused -1
  // [T] i32, of trunk(): not 0 where a row contains or was computed from NaN or infinity. Its cache rows and its output
  // must not be used; other rows are unaffected.
  View faults = {};
};

// The input of an MTP step in addition to its tokens.
struct MtpInput {
  View state;  // [T, d_state()] f32
  // [N, K] i32 top-k indices. Empty: the layer computes its own. Given (share_topk_across_drafts): each token attends
  // to its row, which an earlier step of the same sequence returned. The row is used unchanged: neither the token
  // itself nor a draft before it is added, even if there is room. Index keys are written in both cases.
  View topk = {};
};

// What comes to the logits of a block's row once the token before it is known.
struct DraftTerms {
  View logits;      // [N, V] f32, to be added
  View confidence;  // [N, 1] f32: log odds that the draft is kept if all before it are
};

// Of a model whose draft layers make the drafts of a block at once, from what the trunk's steps keep for them in the
// caches.
class BlockDrafting {
 public:
  virtual ~BlockDrafting() = default;

  virtual int32_t noise_token() const = 0;
  // A step of blocks (Step::blocks): each the last token chosen, then noise tokens, config().n_draft_block in all, for a
  // shorter block would give other drafts. Row i gives draft i; `state` of the result is [T, D], what draft_terms() takes.
  virtual ForwardRows draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const = 0;
  // before [N] i32: the token or draft before each row; state [N, D] f32 its own.
  virtual DraftTerms draft_terms(OpContext& ctx, View before, View state) const = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  const Numerics& numerics() const { return numerics_; }
  virtual bool has_mtp() const = 0;  // whether it has draft layers: mtp(), or those of block_drafting()
  virtual const BlockDrafting* block_drafting() const { return nullptr; }
  // Width of the state that the MTP layer reads; 0 if no layer reads it.
  virtual int64_t d_state() const = 0;

  // What each layer caches: n_layers layers, then the draft layers if there are any.
  CacheLayout cache_layout() const { return levin::cache_layout(config_, numerics_, has_mtp()); }

  // Runs a step (SlotRule::kAtPosition) through the trunk.
  virtual ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache,
                            const Probe* probe = nullptr) const = 0;

  // Runs a step (SlotRule::kAfterPosition) through the MTP layer. step.tokens[t] is the token after position t;
  // in.state is the trunk's state there or, for later drafts, the MTP layer's own. The result has the N wanted rows
  // (Step::wanted); it is empty if N is 0.
  virtual ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                          const Probe* probe = nullptr) const = 0;

  // hidden [N, D] f32 -> [N, V] f32, in the context's arena.
  View logits(OpContext& ctx, View hidden) const;
  View draft_logits(OpContext& ctx, View hidden) const;  // the same for drafts, with a head that may be less precise

 protected:
  Model(ModelConfig config, Numerics numerics, ModelWeights weights);

  const ModelWeights& weights() const { return weights_; }

 private:
  ModelConfig config_;
  Numerics numerics_;
  ModelWeights weights_;
};

// Makes the model of config.family. Only families with latent attention support a selection other than kIndexer.
std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights,
                                  Selection selection = Selection::kIndexer);

}  // namespace levin
