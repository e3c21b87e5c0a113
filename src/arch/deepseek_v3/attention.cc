#include "arch/deepseek_v3/attention.h"

#include "base/check.h"
#include "ops/row_chains.h"
#include "ops/sparse_attention.h"

namespace levin {

DownRows AttentionBlock::project(Pass& p, const ProductInput& h) const {
  const AttentionWeights& w = weights.attention;
  if (!weights.indexer) {
    const std::vector<View> rows = p.matmuls(h, {&w.q_down, &w.kv_down});
    return {.q = rows[0], .kv = rows[1], .index_key = {}};
  }
  const std::vector<View> rows = p.matmuls(h, {&w.q_down, &weights.indexer->k, &w.kv_down});
  return {.q = rows[0], .kv = rows[2], .index_key = rows[1]};
}

DownRows AttentionBlock::project_to_append(Pass& p, const ProductInput& h) const {
  if (!weights.indexer) return {.q = {}, .kv = p.matmul(h, weights.attention.kv_down), .index_key = {}};
  const std::vector<View> rows = p.matmuls(h, {&weights.indexer->k, &weights.attention.kv_down});
  return {.q = {}, .kv = rows[1], .index_key = rows[0]};
}

void AttentionBlock::append(Pass& p, const DownRows& down) const {
  const ArenaScope scratch = p.scope();
  append_latent(p, down.kv);
  if (weights.indexer) append_index_keys(p, down.index_key);
}

void AttentionBlock::append_latent(Pass& p, View kv) const {  // kv      [T, Rk + Dr]
  const ModelConfig& c = config;
  const AttentionWeights& w = weights.attention;
  ops::write_latent(p.ctx(), {.x = kv,
                              .weight = w.kv_norm.view,
                              .eps = latent_eps(p),
                              .rotation = p.step_rotation().of(c.rope_pairing),
                              .seq = p.step().seq,
                              .slot = p.step().slot,
                              .format = p.cache().format(layer).latent,
                              .cache = p.cache().latent_rows(layer, p.step().tables)});
}

View AttentionBlock::attend(Pass& p, const ProductInput& h, const DownRows& down, Topk& topk) const {  // h      [T, D]
  const ModelConfig& c = config;
  const AttentionWeights& w = weights.attention;
  const View out = p.allocate(DType::kF32, {p.n_tokens(), c.d_model});
  const ArenaScope scratch = p.scope();

  const ProductInput c_q = p.norm_input(down.q, w.q_norm, latent_eps(p), w.q_up);  // [T, Rq]
  const View q = p.matmul(c_q, w.q_up).split_last(c.n_heads, c.d_head());          // [T, H, Dn + Dr]
  const View q_nope = q.slice_last(0, c.d_nope);                                   // [T, H, Dn]
  const View q_rope = q.slice_last(c.d_nope, c.d_rope);                            // [T, H, Dr]
  p.rope(q_rope, c.rope_pairing);
  const View q_latent = p.matmul_per_head(q_nope, w.k_up);  // [T, H, Rk]

  select(p, {.h = h, .c_q = c_q}, topk);                                          // [T, K]
  const View o = p.allocate(DType::kF32, {p.n_tokens(), c.n_heads, c.d_latent});  // [T, H, Rk]
  ops::sparse_attention(p.ctx(), {.q_latent = q_latent,
                                  .q_rope = q_rope,
                                  .seq = p.step().seq,
                                  .scale = c.attention_scale(),
                                  .format = p.cache().format(layer).latent,
                                  .rows = {.cache = p.cache().latent_rows(layer, p.step().tables), .topk = topk.slots},
                                  .out = o});
  const View values = p.matmul_per_head(o, w.v_up);                                 // [T, H, Dv]
  p.matmul_into(out, values.reshaped({p.n_tokens(), c.n_heads * c.d_value}), w.o);  // [T, D]
  return out;
}

void AttentionBlock::select(Pass& p, const IndexerInput& in, Topk& topk) const {
  if (weights.indexer && !topk.given) {
    const ArenaScope scratch = p.scope();
    selection == Selection::kIndexer ? select(p, in, topk.slots) : select_most_recent(p, topk.slots);
    topk.source = layer;
  }
  LEVIN_CHECK(topk.source >= 0, "layer {} has no indexer, and no layer below has selected in this step", layer);
  if (p.probe() != nullptr && p.probe()->on_topk) p.probe()->on_topk(layer, topk.slots);
}

void AttentionBlock::append_index_keys(Pass& p, View key) const {  // key     [T, Di]
  const ModelConfig& c = config;
  const IndexerWeights& w = *weights.indexer;
  ops::write_index_keys(p.ctx(), {.x = key,
                                  .weight = w.k_norm.view,
                                  .bias = w.k_norm_bias.view,
                                  .eps = c.index_norm_eps,
                                  .rotation = p.step_rotation().of(c.index_rope_pairing),
                                  .hadamard = p.numerics().hadamard(),
                                  .fp4 = p.numerics().fp4_index,
                                  .seq = p.step().seq,
                                  .slot = p.step().slot,
                                  .format = *p.cache().format(layer).index,
                                  .cache = p.cache().index_rows(layer, p.step().tables)});
}

void AttentionBlock::select(Pass& p, const IndexerInput& in, View slots) const {  // slots  [T, K]
  const ModelConfig& c = config;
  const IndexerBlock indexer{.params = {.n_heads = c.n_index_heads,
                                        .d_index = c.d_index,
                                        .rope_column = 0,
                                        .pairing = c.index_rope_pairing,
                                        .scale = c.index_scale()},
                             .q_up = weights.indexer->q_up,
                             .head_weights = weights.indexer->head_weights,
                             .rotation = p.step_rotation()};
  indexer.select(p, in,
                 {.visible = p.step().visible,
                  .n_visible = p.step().n_visible,
                  .first = p.step().first_slot,
                  .format = *p.cache().format(layer).index,
                  .cache = p.cache().index_rows(layer, p.step().tables),
                  .plan = p.index_plan()},
                 slots);
}

void AttentionBlock::select_most_recent(Pass& p, View slots) const {
  ops::take_most_recent(p.ctx(), {.visible = p.step().visible, .first = p.step().first_slot, .topk = slots});
}

}  // namespace levin
