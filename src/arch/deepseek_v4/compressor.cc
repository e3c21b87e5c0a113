#include "arch/deepseek_v4/compressor.h"

#include "ops/pool_windows.h"

namespace levin {

View CompressorBlock::pool(Pass& p, View h, const StateRings& state) const {
  const int64_t d = weights.norm.view.dim(0), n_entries = entries.slot.dim(0);
  const View out = p.allocate(DType::kF32, {n_entries, d});
  const ArenaScope scratch = p.scope();
  const ops::WindowTokens tokens{.values = p.matmul(h, weights.values),  // [T, C]
                                 .gates = p.matmul(h, weights.gate),     // [T, C]
                                 .seq = p.step().seq,
                                 .first_row = p.step().first_row,
                                 .end_row = p.step().end_row,
                                 .first_position = p.step().first_position,
                                 .state = state};
  ops::pool_windows(p.ctx(), {.tokens = tokens,
                              .bias = weights.position_bias.view,
                              .overlap = overlap,
                              .seq = entries.seq,
                              .slot = entries.slot,
                              .out = out});
  ops::keep_state(p.ctx(), tokens);
  return out;
}

}  // namespace levin
