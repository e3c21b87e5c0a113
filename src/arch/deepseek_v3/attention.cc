#include "arch/deepseek_v3/attention.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/index_topk.h"
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
  ops::write_latent(p.ctx(), latent_rows(p, down.kv));
  if (weights.indexer) ops::write_index_keys(p.ctx(), index_keys(p, down.index_key));
}

QueryInput AttentionBlock::append_and_norm(Pass& p, const ProductInput& h, const DownRows& down,
                                           const Topk& topk) const {
  const AttentionWeights& w = weights.attention;
  QueryInput out;
  ops::Matmul head_weights;
  if (scores(p, topk) && weights.indexer->head_weights.input == ops::Operand::kF32) {
    out.index_w = p.allocate(DType::kF32, {p.n_tokens(), config.n_index_heads});  // [T, Hi]
    head_weights = {.x = h.x, .x_scale = {}, .w = &weights.indexer->head_weights.w, .out = out.index_w};
  }
  out.c_q = p.norm_input_and_append({.norm = {.x = down.q, .weight = w.q_norm.view, .eps = latent_eps(p)},
                                     .latent = latent_rows(p, down.kv),
                                     .keys = index_keys(p, down.index_key),
                                     .product = head_weights},
                                    w.q_up);
  return out;
}

QueryInput AttentionBlock::norm(Pass& p, const DownRows& down) const {
  const AttentionWeights& w = weights.attention;
  return {.c_q = p.norm_input(down.q, w.q_norm, latent_eps(p), w.q_up)};
}

ops::WriteLatent AttentionBlock::latent_rows(Pass& p, View kv) const {  // kv      [T, Rk + Dr]
  return {.x = kv,
          .weight = weights.attention.kv_norm.view,
          .eps = latent_eps(p),
          .rotation = p.step_rotation().of(config.rope_pairing),
          .seq = p.step().seq,
          .slot = p.step().slot,
          .format = p.cache().format(layer).latent,
          .cache = p.cache().latent_rows(layer, p.step().tables)};
}

ops::WriteIndexKeys AttentionBlock::index_keys(Pass& p, View key) const {  // key     [T, Di]
  if (!weights.indexer) return {};
  const IndexerWeights& w = *weights.indexer;
  return {.x = key,
          .weight = w.k_norm.view,
          .bias = w.k_norm_bias.view,
          .eps = config.index_norm_eps,
          .rotation = p.step_rotation().of(config.index_rope_pairing),
          .hadamard = p.numerics().hadamard(),
          .fp4 = p.numerics().fp4_index,
          .seq = p.step().seq,
          .slot = p.step().slot,
          .format = *p.cache().format(layer).index,
          .cache = p.cache().index_rows(layer, p.step().tables)};
}

IndexKeys AttentionBlock::keys(Pass& p) const {
  return {.visible = p.step().visible,
          .n_visible = p.step().n_visible,
          .first = p.step().first_slot,
          .format = *p.cache().format(layer).index,
          .cache = p.cache().index_rows(layer, p.step().tables),
          .plan = p.index_plan()};
}

IndexerBlock AttentionBlock::indexer(Pass& p) const {
  const ModelConfig& c = config;
  return {.params = {.n_heads = c.n_index_heads,
                     .d_index = c.d_index,
                     .rope_column = 0,
                     .pairing = c.index_rope_pairing,
                     .scale = c.index_scale()},
          .q_up = weights.indexer->q_up,
          .head_weights = weights.indexer->head_weights,
          .rotation = p.step_rotation()};
}

bool AttentionBlock::scores(Pass& p, const Topk& topk) const {
  return weights.indexer && !topk.given && selection == Selection::kIndexer &&
         IndexerBlock::has_scores(keys(p), topk.slots.dim(1));
}

AttentionBlock::Queries AttentionBlock::queries(Pass& p, const IndexerInput& in, bool scores, DType type) const {
  const ModelConfig& c = config;
  const AttentionWeights& w = weights.attention;
  IndexerInput index = in;
  View q;  // [T, H, Dn + Dr]
  if (scores) {
    const std::vector<View> rows = p.matmuls(in.c_q, {&w.q_up, &weights.indexer->q_up});
    q = rows[0].split_last(c.n_heads, c.d_head()), index.q = rows[1];
  } else {
    q = p.matmul(in.c_q, w.q_up).split_last(c.n_heads, c.d_head());
  }
  const View rope = q.slice_last(c.d_nope, c.d_rope);  // [T, H, Dr]
  const View rotated = type == DType::kF32 ? rope : p.allocate(type, {p.n_tokens(), c.n_heads, c.d_rope});
  const ops::RotateQueries rotate{.x = rope, .rotation = p.step_rotation().of(c.rope_pairing), .out = rotated};
  Queries out{.nope = q.slice_last(0, c.d_nope), .rope = rotated};
  if (scores) {
    out.index = indexer(p).queries(p, index);
    ops::attention_queries(p.ctx(), {.rotate = rotate, .index = out.index});
  } else {
    ops::rotate_queries(p.ctx(), rotate);
  }
  return out;
}

View AttentionBlock::attend(Pass& p, const ProductInput& h, const QueryInput& in, Topk& topk) const {
  const ModelConfig& c = config;
  const AttentionWeights& w = weights.attention;
  const View out = p.allocate(DType::kF32, {p.n_tokens(), c.d_model});
  const ArenaScope scratch = p.scope();

  const LatentFormat format = p.cache().format(layer).latent;
  const DType type = p.ctx().backend->query_type(format, c.n_heads, topk.slots.dim(1));
  const Queries q = queries(p, {.h = h, .c_q = in.c_q, .w = in.index_w}, scores(p, topk), type);
  const View q_latent = p.matmul_per_head(q.nope, w.k_up, type);  // [T, H, Rk]

  select(p, q.index, topk);                                                       // [T, K]
  const View o = p.allocate(DType::kF32, {p.n_tokens(), c.n_heads, c.d_latent});  // [T, H, Rk]
  ops::sparse_attention(p.ctx(), {.q_latent = q_latent,
                                  .q_rope = q.rope,
                                  .seq = p.step().seq,
                                  .scale = c.attention_scale(),
                                  .format = format,
                                  .rows = {.cache = p.cache().latent_rows(layer, p.step().tables), .topk = topk.slots},
                                  .out = o});
  p.matmul_into(out, p.matmul_per_head_input(o, w.v_up, w.o), w.o);  // [T, H * Dv] -> [T, D]
  return out;
}

void AttentionBlock::select(Pass& p, const ops::IndexQueries& index, Topk& topk) const {
  if (weights.indexer && !topk.given) {
    const ops::TakeAll all{.visible = p.step().visible, .first = p.step().first_slot, .topk = topk.slots};
    if (scores(p, topk)) {
      IndexerBlock::select(p, index, keys(p), topk.slots);
    } else if (selection == Selection::kIndexer) {
      ops::take_all(p.ctx(), all);
    } else {
      ops::take_most_recent(p.ctx(), all);
    }
    topk.source = layer;
  }
  LEVIN_CHECK(topk.source >= 0, "layer {} has no indexer, and no layer below has selected in this step", layer);
  if (p.probe() != nullptr && p.probe()->on_topk) p.probe()->on_topk(layer, topk.slots);
}

}  // namespace levin
