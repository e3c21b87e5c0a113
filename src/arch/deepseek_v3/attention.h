// Multi-head latent attention over the tokens that the lightning indexer selects (model_spec.md 4.3, 4.4), in absorbed form:
// keys and values are the cached latent rows themselves, one set of indices for all heads. A layer without an indexer of
// its own attends to what the nearest one below selected (4.6).
#pragma once

#include "arch/deepseek_v3/weights.h"
#include "model/blocks/indexer.h"
#include "model/config.h"
#include "model/model.h"
#include "model/pass.h"

namespace levin {

// A step's top-k indices on their way up the layers.
struct Topk {
  View slots;          // [T, K] i32, ascending, unused -1; written by layers with an indexer, read by all
  int source = -1;     // the layer that selected; -1: none yet
  bool given = false;  // from another step: layers with an indexer write its keys but do not select
};

// The normed input of attention as its down projections leave it.
struct DownRows {
  View q = {};          // [T, Rq], before its norm
  View kv = {};         // [T, Rk + Dr]
  View index_key = {};  // [T, Di], of a layer with an indexer
};

// What the queries are made of.
struct QueryInput {
  ProductInput c_q;   // [T, Rq], the normed query latent
  View index_w = {};  // [T, Hi], the indexer's head weights; may be empty where they are not there yet
};

struct AttentionBlock {
  const ModelConfig& config;
  const LayerWeights& weights;
  int layer = 0;  // of the caches
  Selection selection = Selection::kIndexer;

  // Of h [T, D], the normed input: all, or what append() or attend() needs.
  DownRows project(Pass& p, const ProductInput& h) const;
  DownRows project_to_append(Pass& p, const ProductInput& h) const;
  DownRows project_to_attend(Pass& p, const ProductInput& h) const {
    return {.q = p.matmul(h, weights.attention.q_down)};
  }

  // Writes this step's rows into the layer's caches. Index keys even where the layer does not select: later steps may read
  // them.
  void append(Pass& p, const DownRows& down) const;
  // The same, and the input of queries.
  QueryInput append_and_norm(Pass& p, const ProductInput& h, const DownRows& down, const Topk& topk) const;
  QueryInput norm(Pass& p, const DownRows& down) const;
  // h [T, D] and what comes of it -> [T, D]. Reads only from the caches, which hold the rows of these tokens.
  View attend(Pass& p, const ProductInput& h, const QueryInput& in, Topk& topk) const;

 private:
  ops::WriteLatent latent_rows(Pass& p, View kv) const;
  ops::WriteIndexKeys index_keys(Pass& p, View key) const;  // of a layer without an indexer: none
  IndexKeys keys(Pass& p) const;                            // that the layer selects from
  IndexerBlock indexer(Pass& p) const;
  // Whether selecting takes scores; otherwise what to attend to is known beforehand.
  bool scores(Pass& p, const Topk& topk) const;
  // The queries of attention, the rotated part as `type`. With scores those of the indexer too.
  struct Queries {
    View nope;  // [T, H, Dn]
    View rope;  // [T, H, Dr]
    ops::IndexQueries index = {};
  };
  Queries queries(Pass& p, const IndexerInput& in, bool scores, DType type) const;
  // Computes what each token attends to, unless `topk` contains it already. Without scores `index` is not looked at.
  void select(Pass& p, const ops::IndexQueries& index, Topk& topk) const;
  float latent_eps(const Pass& p) const { return p.numerics().latent_norm_eps.value_or(config.norm_eps); }
};

}  // namespace levin
