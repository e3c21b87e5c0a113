#include "arch/deepseek_v4/dspark.h"

#include <algorithm>

#include "arch/deepseek_v4/stream_layer.h"
#include "arch/deepseek_v4/streams.h"
#include "ops/copies.h"
#include "ops/logits.h"

namespace levin {

View DsparkBlock::allocate_taps(Pass& p) const {
  return p.allocate(DType::kF32, {p.n_tokens(), config.n_mtp_layers * config.d_model});
}

void DsparkBlock::take(Pass& p, int layer, View streams, View taps) const {
  const std::vector<int>& targets = deepseek_v4::own(config).dspark->target_layers;
  const auto target = std::find(targets.begin(), targets.end(), layer);
  if (target == targets.end()) return;
  mean_of_streams(p, streams, taps.slice_last((target - targets.begin()) * config.d_model, config.d_model));
}

void DsparkBlock::append(Pass& p, View taps) const {
  const ArenaScope scratch = p.scope();
  const View x = p.rms_norm(p.matmul(taps, weights.tap_join), weights.tap_norm, config.norm_eps);  // [T, D]
  p.show_taps(0, taps);
  p.show_taps(1, x);
  for (int stage = 0; stage < config.n_mtp_layers; ++stage) attention(stage).append(p, x);
}

ForwardRows DsparkBlock::forward(Pass& p, View x) const {
  const View streams = spread_streams(p, x, config.n_streams);  // [T, M, D]
  for (int stage = 0; stage < config.n_mtp_layers; ++stage) {
    const V4LayerWeights& layer = weights.stages[static_cast<size_t>(stage)];
    StreamLayer{config, layer, rotations, config.n_layers + stage}.forward_appended(p, streams);
  }
  const View row = collapse_streams(p, config, weights.head, streams);  // [T, D]
  return {.hidden = p.rms_norm(row, weights.head_norm, config.norm_eps), .state = row, .topk = {}};
}

WindowAttentionBlock DsparkBlock::attention(int stage) const {
  return {.config = config,
          .weights = weights.stages[static_cast<size_t>(stage)].attention,
          .rotations = rotations,
          .layer = config.n_layers + stage,
          .compression = {}};
}

DraftTerms dspark_terms(Pass& p, const DsparkWeights& weights, View before, View state) {
  const int64_t n_rows = state.dim(0), d_model = state.dim(1), d_markov = weights.markov_rows.view.dim(1);
  const View e = p.allocate(DType::kF32, {n_rows, d_markov});
  ops::embed(p.ctx(), {.ids = before, .table = weights.markov_rows.view, .out = e});
  const View both = p.allocate(DType::kF32, {n_rows, d_model + d_markov});
  ops::copy_rows(p.ctx(), {.x = state, .out = both.slice_last(0, d_model)});
  ops::copy_rows(p.ctx(), {.x = e, .out = both.slice_last(d_model, d_markov)});
  return {.logits = p.matmul(e, weights.markov_head), .confidence = p.matmul(both, weights.confidence)};
}

}  // namespace levin
