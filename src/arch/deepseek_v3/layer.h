// A decoder layer: attention and feed-forward around the residual stream (model_spec.md 3.4).
#pragma once

#include "arch/deepseek_v3/attention.h"

namespace levin {

struct DecoderLayer {
  const ModelConfig& config;
  const LayerWeights& weights;
  int layer = 0;
  Selection selection = Selection::kIndexer;

  void forward(Pass& p, View x, Topk& topk) const;  // x [T, D] f32, residual stream, updated

  // The two halves of forward(): what the layer leaves in its caches, for every token; then the rest, for those tokens
  // whose output somebody wants.
  void append(Pass& p, View x) const;
  void forward_appended(Pass& p, View x, Topk& topk) const;

 private:
  AttentionBlock attention() const { return {config, weights, layer, selection}; }
  // As the products of attention read it, which take one type.
  ProductInput normed(Pass& p, View x) const {
    return p.norm_input(x, weights.attention_norm, config.norm_eps, weights.attention.q_down);
  }
  // h is x normed, whose rows are in the caches.
  void forward_normed(Pass& p, View x, const ProductInput& h, const QueryInput& in, Topk& topk) const;
  void add_feed_forward(Pass& p, View x, View h) const;  // h [T, D] normed, x [T, D] updated
};

}  // namespace levin
