#include "arch/deepseek_v41/engram.h"

#include "ops/copies.h"
#include "ops/engram.h"

namespace levin {

void EngramBlock::begin(Pass& p) {
  const std::optional<EngramConfig>& engram = deepseek_v41::own(config_).engram;
  if (!engram) return;
  const View classes = p.embed(weights_.token_classes.view);  // [T, 1]
  const ops::WindowTokens tokens{.values = classes,
                                 .gates = classes,  // not used: a ring has room for two values to a channel
                                 .seq = p.step().seq,
                                 .first_row = p.step().first_row,
                                 .end_row = p.step().end_row,
                                 .first_position = p.step().first_position,
                                 .state = p.cache().state(engram->layers.front(), p.step().rings)};
  for (const int layer : engram->layers) {
    const EngramWeights& w = *weights_.layers[static_cast<size_t>(layer)].engram;
    const View rows = rows_.emplace_back(p.allocate(DType::kI32, {p.n_tokens(), engram->n_columns()}));
    ops::ngram_rows(p.ctx(), {.tokens = tokens,
                              .hash = {.multipliers = w.hash.multipliers,
                                       .primes = w.hash.primes,
                                       .offsets = w.hash.offsets,
                                       .pad = weights_.pad_class},
                              .out = rows});
    ops::read_table_soon(p.ctx(), {.table = w.table, .rows = rows});
  }
  ops::keep_state(p.ctx(), tokens);
}

void EngramBlock::write(Pass& p, int layer, View streams) const {
  const std::optional<EngramWeights>& w = weights_.layers[static_cast<size_t>(layer)].engram;
  if (!w) return;
  const EngramConfig& engram = *deepseek_v41::own(config_).engram;
  const ArenaScope scratch = p.scope();
  const int64_t n_streams = config_.n_streams, d_model = config_.d_model;
  const View e = p.allocate(DType::kF32, {p.n_tokens(), engram.n_columns() * engram.d_row});
  ops::table_rows(p.ctx(), {.table = w->table, .rows = rows_[static_cast<size_t>(engram.index_of(layer))], .out = e});
  const View kv = p.matmul(e, w->kv);  // [T, (M + 1) D]
  const View weight = p.allocate(DType::kF32, {n_streams, d_model});
  ops::scale_rows(p.ctx(), {.x = w->q_weight.view, .scale = w->k_weight.view, .out = weight});
  ops::gate_streams(p.ctx(), {.streams = streams,
                              .keys = kv.slice_last(0, n_streams * d_model).split_last(n_streams, d_model),
                              .value = kv.slice_last(n_streams * d_model, d_model),
                              .weight = weight,
                              .eps = config_.norm_eps});
}

}  // namespace levin
