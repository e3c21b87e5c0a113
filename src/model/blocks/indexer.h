// The lightning indexer of all families (model_spec.md 4.4, 6.5): its queries meet the cached keys, and the best K of them
// are selected. What the keys are of, tokens or entries, and how they were made, is the family's.
#pragma once

#include "model/config.h"
#include "model/pass.h"
#include "ops/index_topk.h"

namespace levin {

struct IndexerParams {
  int64_t n_heads = 0;      // Hi
  int64_t d_index = 0;      // Di
  int64_t rope_column = 0;  // of a query; the first of those that are rotated
  ops::RopePairing pairing = ops::RopePairing::kInterleaved;
  float scale = 1;  // of the head weights
};

// Where the keys of a step's tokens lie, and which of them each token sees.
struct IndexKeys {
  View visible;           // [T] i32: slots first <= s < visible[t]
  int32_t n_visible = 0;  // the largest of them, or more
  int32_t first = 0;      // the first slot that holds a key
  IndexKeyFormat format;
  PagedRows cache;
  View plan = {};  // ops::plan_index() of these keys; may be empty
};

// What the indexer scores a step's tokens by.
struct IndexerInput {
  ProductInput h;    // [T, D], normed input of the attention
  ProductInput c_q;  // [T, Rq], normed query latent
  View q = {};       // [T, Hi * Di], q_up of c_q; empty: not multiplied yet
  View w = {};       // [T, Hi], head_weights of h; the same
};

struct IndexerBlock {
  IndexerParams params;
  const Linear& q_up;          // [Hi * Di, Rq]
  const Linear& head_weights;  // [Hi, D], input always f32
  Rotation rotation;           // of the step's positions, if anything is rotated

  // Whether K slots are too few for all keys that a token may see: only then are there scores.
  static bool has_scores(const IndexKeys& keys, int64_t n_topk) { return keys.n_visible - keys.first > n_topk; }

  // What ops::index_queries() makes of a step's tokens, with memory for it: queries and the weights of their heads.
  ops::IndexQueries queries(Pass& p, const IndexerInput& in) const;
  // The same, made.
  ops::IndexQuery query(Pass& p, const IndexerInput& in, const IndexKeys& keys) const;

  // The best K keys of each token -> slots [T, K] i32, ascending, unused -1.
  void select(Pass& p, const IndexerInput& in, const IndexKeys& keys, View slots) const;
  // The same of queries that were made.
  static void select(Pass& p, const ops::IndexQueries& queries, const IndexKeys& keys, View slots);
};

}  // namespace levin
