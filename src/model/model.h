// A model of any family: a trunk, perhaps a multi-token-prediction layer, and a head. What a family's layers compute is
// in its own files.
//
// A Model is weights and facts; it keeps no state between calls. What a sequence has seen lives in the KvCache through
// the step's block tables. Layers from n_layers on of the caches belong to those
// that draft.
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

// Which tokens attention reads. kMostRecent is a diagnostic: the last K visible ones, without the indexer; recall over
// long texts collapses with it, which is how a test knows that the indexer's picks matter.
enum class Selection : uint8_t { kIndexer, kMostRecent };

// What a forward pass leaves for each of its T tokens; in the context's arena.
struct ForwardRows {
  View hidden;  // [T, D] f32, after the final norm: what logits() takes
  View state;   // [T, d_state()] f32: what mtp() takes for the pair of this token and the next
  View picks;   // [T, K] i32, of an MTP layer with an indexer: the slots attended to
  // [T] i32, of the trunk: not 0 where a row holds or came out of values that are no numbers. Its cache rows must not be
  // used, and its output means nothing; other rows are as if it were not there.
  View faults = {};
};

// What an MTP step goes on from, row by row.
struct MtpInput {
  View state;  // [T, d_state()] f32
  // [N, K] i32. Empty: the layer picks. Given (share_picks_across_drafts): nothing is picked, each token attends to its
  // row, which came out of an earlier step of the same sequence, unchanged: neither the token itself nor a draft before
  // it joins the row, even where there is room. Index keys are written all the same.
  View picks = {};
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
  virtual bool has_mtp() const = 0;  // layers that draft: by mtp(), or as block_drafting() says
  virtual const BlockDrafting* block_drafting() const { return nullptr; }
  // Width of the state that the MTP layer goes on from; 0 where nothing does.
  virtual int64_t d_state() const = 0;

  // What each layer caches: n_layers of them, then those that draft if they are there.
  CacheLayout cache_layout() const { return levin::cache_layout(config_, numerics_, has_mtp()); }

  // Runs a step (SlotRule::kAtPosition) through the trunk.
  virtual ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache,
                            const Probe* probe = nullptr) const = 0;

  // One MTP step (SlotRule::kAfterPosition): step.tokens[t] is the token after position t, in.state the trunk's there,
  // or in recursion the MTP layer's own. The result has the N wanted rows (Step::wanted); nothing if there are none.
  virtual ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                          const Probe* probe = nullptr) const = 0;

  // hidden [N, D] f32 -> [N, V] f32.
  View logits(OpContext& ctx, View hidden) const;
  View draft_logits(OpContext& ctx, View hidden) const;  // the same for drafts, perhaps less exactly

 protected:
  Model(ModelConfig config, Numerics numerics, ModelWeights weights);

  const ModelWeights& weights() const { return weights_; }

 private:
  View logits_of(OpContext& ctx, View hidden, const Linear& head) const;

  ModelConfig config_;
  Numerics numerics_;
  ModelWeights weights_;
};

// The model of config.family. A selection other than the indexer's is a diagnostic of the families with latent
// attention.
std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights,
                                  Selection selection = Selection::kIndexer);

}  // namespace levin
