#include "arch/deepseek_v4/window_attention.h"

#include "ops/row_chains.h"

namespace levin {

void WindowAttentionBlock::append(Pass& p, View h) const {  // h     [T, D]
  const ArenaScope scratch = p.scope();
  append_rows(p, h, p.cache().latent_rows(layer, p.step().tables));
  if (!compresses()) return;
  const StepEntries& entries = p.step().entries_of(compression.ratio);
  append_entries(p, h, entries);
  if (compression.kind == Compression::kIndexed) append_index_keys(p, h, entries);
}

View WindowAttentionBlock::attend(Pass& p, View h) const {  // h      [T, D]
  const ModelConfig& c = config;
  const V4AttentionWeights& w = weights;
  const int64_t n_tokens = p.n_tokens();
  const View out = p.allocate(DType::kF32, {n_tokens, c.d_model});
  const ArenaScope scratch = p.scope();

  const View c_q = p.rms_norm(p.matmul(h, w.q_down), w.q_norm, c.norm_eps);  // [T, Rq]
  const View q = p.matmul(c_q, w.q_up).split_last(c.n_heads, c.d_head());    // [T, H, Dh]
  p.rms_norm_heads(q, c.norm_eps);
  p.rotate(q.slice_last(c.d_nope, c.d_rope), rotation());

  const ops::AttentionRows more = more_rows(p, {.h = {.x = h}, .c_q = {.x = c_q}});
  const View o = p.allocate(DType::kF32, {n_tokens, c.n_heads, c.d_head()});  // [T, H, Dh]
  ops::sparse_attention(p.ctx(), {.q_latent = q.slice_last(0, c.d_nope),
                                  .q_rope = q.slice_last(c.d_nope, c.d_rope),
                                  .seq = p.step().seq,
                                  .scale = c.attention_scale(),
                                  .format = p.cache().format(layer).latent,
                                  .rows = {.cache = p.cache().latent_rows(layer, p.step().tables),
                                           .begin = p.step().window,
                                           .end = p.step().visible},
                                  .more = more,
                                  .sink = w.sink.view,
                                  .out = o});
  p.rotate(o.slice_last(c.d_nope, c.d_rope),
           inverse_rotation());  // values carry their positions: relative to the query's now

  const View groups = o.reshaped(
      {n_tokens, deepseek_v4::own(c).n_out_groups, c.n_heads / deepseek_v4::own(c).n_out_groups * c.d_head()});
  const View u = p.matmul_per_head(groups, w.out_down);  // [T, Go, Ro]
  p.matmul_into(out, u.reshaped({n_tokens, deepseek_v4::own(c).n_out_groups * deepseek_v4::own(c).d_out_lora}),
                w.out_up);  // [T, D]
  return out;
}

void WindowAttentionBlock::append_rows(Pass& p, View h, const PagedRows& to) const {
  const ModelConfig& c = config;
  const View x = p.matmul(h, weights.kv);  // [T, Dh]
  show_rows(p, x);
  ops::write_latent(p.ctx(), {.x = x,
                              .weight = weights.kv_norm.view,  // of the whole row
                              .eps = c.norm_eps,
                              .rotation = rotation().of(c.rope_pairing),
                              .seq = p.step().seq,
                              .slot = p.step().slot,
                              .format = p.cache().format(layer).latent,
                              .cache = to});
}

// What append_rows() writes, as f32.
void WindowAttentionBlock::show_rows(Pass& p, View x) const {
  if (p.probe() == nullptr || !p.probe()->on_window_rows) return;
  const View kv = p.rms_norm(x, weights.kv_norm, config.norm_eps);  // [T, Dh]
  p.rotate(kv.slice_last(config.d_nope, config.d_rope).split_last(1, config.d_rope), rotation());
  p.probe()->on_window_rows(layer, kv);
}

ops::AttentionRows WindowAttentionBlock::more_rows(Pass& p, const IndexerInput& in) const {
  if (p.step().blocks) return block_rows(p, in.h.x);
  return compresses() ? entry_rows(p, in) : ops::AttentionRows{};
}

ops::AttentionRows WindowAttentionBlock::block_rows(Pass& p, View h) const {
  const StepBlocks& blocks = *p.step().blocks;
  const int64_t n_pages = blocks.tables.dim(0), page_bytes = p.cache().format(layer).latent.page_bytes();
  const PagedRows rows{.pages = p.allocate(DType::kF8E4M3, {n_pages, page_bytes}).bytes(),
                       .page_bytes = page_bytes,
                       .tables = blocks.tables,
                       .n_pages = n_pages};
  append_rows(p, h, rows);
  return {.cache = rows, .end = blocks.end};
}

ops::AttentionRows WindowAttentionBlock::entry_rows(Pass& p, const IndexerInput& in) const {
  const StepEntries& entries = p.step().entries_of(compression.ratio);
  const PagedRows cache = p.cache().entry_rows(layer, entries.tables);
  if (compression.kind == Compression::kAll) return {.cache = cache, .end = entries.visible};
  const View topk = topk_for(p, in, entries);
  if (p.probe() != nullptr && p.probe()->on_topk) p.probe()->on_topk(layer, topk);
  return {.cache = cache, .topk = topk};
}

CompressorBlock WindowAttentionBlock::compressor(const CompressorWeights& w, const StepEntries& entries) const {
  return {.weights = w, .entries = entries, .overlap = compression.kind == Compression::kIndexed};
}

const Rotation& WindowAttentionBlock::rotation_of(Pass& p, const StepEntries& entries) const {
  return rotations.entries[static_cast<size_t>(&entries - p.step().entries.data())];
}

void WindowAttentionBlock::append_entries(Pass& p, View h, const StepEntries& entries) const {
  const ModelConfig& c = config;
  const ArenaScope scratch = p.scope();
  const CompressorWeights& w = *weights.compressor;
  const View pooled = compressor(w, entries).pool(p, h, p.cache().state(layer, p.step().rings));  // [N, Dh]
  ops::write_latent(p.ctx(), {.x = pooled,
                              .weight = w.norm.view,
                              .eps = c.norm_eps,
                              .rotation = rotation_of(p, entries).of(c.rope_pairing),
                              .seq = entries.seq,
                              .slot = entries.slot,
                              .format = p.cache().format(layer).compressed->entries,
                              .cache = p.cache().entry_rows(layer, entries.tables)});
}

void WindowAttentionBlock::append_index_keys(Pass& p, View h, const StepEntries& entries) const {
  const ArenaScope scratch = p.scope();
  const StateRings state = p.cache().index_state(layer, p.step().rings);
  const CompressorWeights& w = weights.indexer->compressor;
  ops::write_index_keys(p.ctx(), {.x = compressor(w, entries).pool(p, h, state),  // [N, Di]
                                  .weight = w.norm.view,
                                  .eps = config.norm_eps,
                                  .rotation = rotation_of(p, entries).of(config.index_rope_pairing),
                                  .rope_column = config.d_index - config.d_rope,
                                  .hadamard = p.numerics().hadamard(),
                                  .fp4 = p.numerics().fp4_index,
                                  .seq = entries.seq,
                                  .slot = entries.slot,
                                  .format = *p.cache().format(layer).index,
                                  .cache = p.cache().index_rows(layer, entries.tables)});
}

View WindowAttentionBlock::topk_for(Pass& p, const IndexerInput& in, const StepEntries& entries) const {
  const ModelConfig& c = config;
  const View topk = p.allocate(DType::kI32, {p.n_tokens(), c.n_topk});  // [T, K]
  const ArenaScope scratch = p.scope();
  const IndexerBlock indexer{.params = {.n_heads = c.n_index_heads,
                                        .d_index = c.d_index,
                                        .rope_column = c.d_index - c.d_rope,
                                        .pairing = c.index_rope_pairing,
                                        .scale = c.index_scale()},
                             .q_up = weights.indexer->q_up,
                             .head_weights = weights.indexer->head_weights,
                             .rotation = rotation()};
  indexer.select(p, in,
                 {.visible = entries.visible,
                  .n_visible = entries.n_visible,
                  .format = *p.cache().format(layer).index,
                  .cache = p.cache().index_rows(layer, entries.tables)},
                 topk);
  return topk;
}

}  // namespace levin
