#include "arch/deepseek_v4/compressor.h"

#include "ops/pool_windows.h"

namespace levin {

View CompressorBlock::forward(Pass& p, View h, const StateRings& state) const {
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
  const View pooled = p.allocate(DType::kF32, {n_entries, d});
  ops::pool_windows(p.ctx(), {.tokens = tokens,
                              .bias = weights.position_bias.view,
                              .overlap = overlap,
                              .seq = entries.seq,
                              .slot = entries.slot,
                              .out = pooled});
  ops::keep_state(p.ctx(), tokens);
  p.rms_norm_into(out, pooled, weights.norm, config.norm_eps);
  p.rotate(out.slice_last(d - config.d_rope, config.d_rope).split_last(1, config.d_rope), rotation);
  return out;
}

}  // namespace levin
