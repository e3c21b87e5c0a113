#include "arch/glm_next/pooled_attention.h"

#include "ops/expand_topk.h"
#include "ops/pool_windows.h"
#include "ops/row_chains.h"
#include "ops/sparse_attention.h"

namespace levin {

void PooledAttentionBlock::append(Pass& p, View h) const {  // h       [T, D]
  const ArenaScope scratch = p.scope();
  append_latent(p, h);
  append_index_keys(p, h);
}

void PooledAttentionBlock::append_latent(Pass& p, View h) const {
  const AttentionWeights& w = weights.attention;
  ops::write_latent(p.ctx(), {.x = p.matmul(h, w.kv_down),  // [T, Rk]
                              .weight = w.kv_norm.view,
                              .eps = latent_eps(p),
                              .rotation = {},
                              .seq = p.step().seq,
                              .slot = p.step().slot,
                              .format = p.cache().format(layer).latent,
                              .cache = p.cache().latent_rows(layer, p.step().tables)});
}

void PooledAttentionBlock::append_index_keys(Pass& p, View h) const {
  const IndexerWeights& w = weights.indexer;
  const StepEntries& e = pools(p);
  const View k = p.layer_norm(p.matmul(h, w.k), w.k_norm, w.k_norm_bias, config.index_norm_eps);  // [T, Di]
  const ops::WindowTokens tokens{.values = k,
                                 .gates = p.matmul(h, weights.pool.gate),  // [T, Di]
                                 .seq = p.step().seq,
                                 .first_row = p.step().first_row,
                                 .end_row = p.step().end_row,
                                 .first_position = p.step().first_position,
                                 .state = p.cache().index_state(layer, p.step().rings)};
  const View pooled = p.allocate(DType::kF32, {e.slot.dim(0), config.d_index});  // [N, Di]
  ops::pool_windows(p.ctx(), {.tokens = tokens,
                              .bias = weights.pool.position_bias.view,
                              .first_token = e.first_token,
                              .seq = e.seq,
                              .slot = e.slot,
                              .out = pooled});
  ops::keep_state(p.ctx(), tokens);
  ops::write_index_keys(p.ctx(), {.x = pooled,
                                  .rotation = {},
                                  .hadamard = p.numerics().hadamard(),
                                  .fp4 = p.numerics().fp4_index,
                                  .seq = e.seq,
                                  .slot = e.slot,
                                  .format = *p.cache().format(layer).index,
                                  .cache = p.cache().index_rows(layer, e.tables)});
}

View PooledAttentionBlock::attend(Pass& p, View h, View topk, bool given) const {  // h      [T, D]
  const ModelConfig& c = config;
  const AttentionWeights& w = weights.attention;
  const View out = p.allocate(DType::kF32, {p.n_tokens(), c.d_model});
  const ArenaScope scratch = p.scope();

  const View c_q = p.rms_norm(p.matmul(h, w.q_down), w.q_norm, latent_eps(p));  // [T, Rq]
  const View q = p.matmul(c_q, w.q_up).split_last(c.n_heads, c.d_nope);         // [T, H, Dn]
  const View q_latent = p.matmul_per_head(q, w.k_up);                           // [T, H, Rk]
  if (!given) select(p, {.h = {.x = h}, .c_q = {.x = c_q}}, topk);              // [T, K]
  if (p.probe() != nullptr && p.probe()->on_topk) p.probe()->on_topk(layer, topk);
  const View o = p.allocate(DType::kF32, {p.n_tokens(), c.n_heads, c.d_latent});  // [T, H, Rk]
  ops::sparse_attention(p.ctx(), {.q_latent = q_latent,
                                  .q_rope = q_latent.slice_last(0, 0),
                                  .seq = p.step().seq,
                                  .scale = c.attention_scale(),
                                  .format = p.cache().format(layer).latent,
                                  .rows = {.cache = p.cache().latent_rows(layer, p.step().tables), .topk = topk},
                                  .out = o});
  const View values = p.matmul_per_head(o, w.v_up);                                 // [T, H, Dv]
  p.matmul_into(out, values.reshaped({p.n_tokens(), c.n_heads * c.d_value}), w.o);  // [T, D]
  return out;
}

void PooledAttentionBlock::select(Pass& p, const IndexerInput& in, View topk) const {
  const ArenaScope scratch = p.scope();
  if (selection == Selection::kMostRecent) {
    return ops::take_most_recent(p.ctx(), {.visible = p.step().visible, .first = p.step().first_slot, .topk = topk});
  }
  const StepEntries& e = pools(p);
  const View entries = p.allocate(DType::kI32, {p.n_tokens(), glm_next::own(config).n_pool_topk});  // [T, Ke]
  const IndexerBlock indexer{.params = {.n_heads = config.n_index_heads,
                                        .d_index = config.d_index,
                                        .rope_column = 0,
                                        .pairing = config.index_rope_pairing,
                                        .scale = config.index_scale()},
                             .q_up = weights.indexer.q_up,
                             .head_weights = weights.indexer.head_weights,
                             .rotation = {}};
  indexer.select(p, in,
                 {.visible = e.visible,
                  .n_visible = e.n_visible,
                  .first = e.first,
                  .format = *p.cache().format(layer).index,
                  .cache = p.cache().index_rows(layer, e.tables)},
                 entries);
  ops::expand_topk(p.ctx(), {.entries = entries,
                             .end = e.visible,
                             .visible = p.step().visible,
                             .ratio = e.ratio,
                             .first_token = e.first_token,
                             .topk = topk});
}

}  // namespace levin
