#include "arch/deepseek_v41/dspark.h"

#include <algorithm>

#include "ops/copies.h"
#include "ops/logits.h"

namespace levin {

View V41DsparkBlock::allocate_taps(Pass& p) const {
  return p.allocate(DType::kF32, {p.n_tokens(), config.n_mtp_layers * config.d_model});
}

void V41DsparkBlock::take(Pass& p, int layer, View streams, View taps) const {
  const std::vector<int>& targets = deepseek_v41::own(config).dspark->target_layers;
  const auto target = std::find(targets.begin(), targets.end(), layer);
  if (target == targets.end()) return;
  mean_of_streams(p, streams, taps.slice_last((target - targets.begin()) * config.d_model, config.d_model));
}

void V41DsparkBlock::append(Pass& p, View taps) const {
  const ArenaScope scratch = p.scope();
  const V41DsparkWeights& w = *weights.dspark;
  const View x = p.rms_norm(p.matmul(taps, w.tap_join), w.tap_norm, config.norm_eps);  // [T, D]
  p.show_taps(0, taps);
  p.show_taps(1, x);
  for (int i = 0; i < config.n_mtp_layers; ++i) stage(i).attention().append(p, x);
}

ForwardRows V41DsparkBlock::forward(Pass& p, View x) const {
  const View streams = spread_streams(p, x, config.n_streams);  // [T, M, D]
  const View read = first_read(p, weights);                     // [T, M]
  for (int i = 0; i < config.n_mtp_layers; ++i) stage(i).forward(p, streams, read, nullptr);
  const View row = read_streams(p, streams, read);  // [T, D]
  return {.hidden = p.rms_norm(row, weights.dspark->head_norm, config.norm_eps), .state = row, .topk = {}};
}

V41Layer V41DsparkBlock::stage(int i) const {
  return {.config = config,
          .weights = weights,
          .w = weights.dspark->stages[static_cast<size_t>(i)],
          .rotations = rotations,
          .layer = config.n_layers + i};
}

DraftTerms dspark_terms(Pass& p, const V41DsparkWeights& weights, View before, View state) {
  const int64_t n_rows = state.dim(0), d_model = state.dim(1), d_markov = weights.markov_rows.view.dim(1);
  const View e = p.allocate(DType::kF32, {n_rows, d_markov});
  ops::embed(p.ctx(), {.ids = before, .table = weights.markov_rows.view, .out = e});
  const View both = p.allocate(DType::kF32, {n_rows, d_model + d_markov});
  ops::copy_rows(p.ctx(), {.x = state, .out = both.slice_last(0, d_model)});
  ops::copy_rows(p.ctx(), {.x = e, .out = both.slice_last(d_model, d_markov)});
  return {.logits = p.matmul(e, weights.markov_head), .confidence = p.matmul(both, weights.confidence)};
}

}  // namespace levin
