#include "arch/deepseek_v41/shared_attention.h"

#include <algorithm>

#include "base/check.h"
#include "ops/pool_windows.h"
#include "ops/quantize.h"
#include "ops/row_chains.h"

namespace levin {

void SharedAttentionBlock::append(Pass& p, View h) const {  // h     [T, D]
  const ArenaScope scratch = p.scope();
  append_rows(p, h, p.cache().latent_rows(layer, p.step().tables));
  if (w.compressor) append_entries(p, h);
}

View SharedAttentionBlock::attend(Pass& p, View h, SharedTopk* topk) const {  // h      [T, D]
  const ModelConfig& c = config;
  const int64_t n_tokens = p.n_tokens(), n_groups = deepseek_v41::own(c).n_out_groups;
  const View out = p.allocate(DType::kF32, {n_tokens, c.d_model});
  const ArenaScope scratch = p.scope();

  const View c_q = p.rms_norm(p.matmul(h, w.q_down), w.q_norm, c.norm_eps);  // [T, Rq]
  const View q = p.matmul(c_q, w.q_up).split_last(c.n_heads, c.d_head());    // [T, H, Dh]
  p.rotate(q.slice_last(c.d_nope, c.d_rope), rotation());

  const ops::AttentionRows more = more_rows(p, {.h = {.x = h}, .c_q = {.x = c_q}}, topk);
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
  p.rotate(o.slice_last(c.d_nope, c.d_rope), inverse_rotation());  // values carry their positions

  const View groups = o.reshaped({n_tokens, n_groups, c.n_heads / n_groups * c.d_head()});
  const View u = p.matmul_per_head(groups, w.out_down);                                              // [T, Go, Ro]
  p.matmul_into(out, u.reshaped({n_tokens, n_groups * deepseek_v41::own(c).d_out_lora}), w.out_up);  // [T, D]
  return out;
}

// The window's rows of h, written to where the step's slots are in `to`.
void SharedAttentionBlock::append_rows(Pass& p, View h, const PagedRows& to) const {
  const ModelConfig& c = config;
  const View kv = p.rms_norm(p.matmul(h, w.kv), w.kv_norm, c.norm_eps);  // [T, Dh]
  p.rotate(kv.slice_last(c.d_nope, c.d_rope).split_last(1, c.d_rope), rotation());
  if (p.probe() != nullptr && p.probe()->on_window_rows) p.probe()->on_window_rows(layer, kv);
  if (p.numerics().rounded_rows) ops::round_to_fp8(p.ctx(), {.x = kv, .group = 32, .out = kv});
  ops::write_latent(p.ctx(), {.x = kv,
                              .rotation = {},
                              .seq = p.step().seq,
                              .slot = p.step().slot,
                              .format = p.cache().format(layer).latent,
                              .cache = to});
}

View SharedAttentionBlock::latents(Pass& p, View h, const StepEntries& e) const {
  const ModelConfig& c = config;
  const V41CompressorWeights& compressor = *w.compressor;
  const View values = p.matmul(h, compressor.values);  // [T, Dh]
  if (!compressor.gate) return p.rms_norm(values, compressor.norm, c.norm_eps);
  const ops::WindowTokens tokens{.values = values,
                                 .gates = p.matmul(h, *compressor.gate),  // [T, Dh]
                                 .seq = p.step().seq,
                                 .first_row = p.step().first_row,
                                 .end_row = p.step().end_row,
                                 .first_position = p.step().first_position,
                                 .state = p.cache().state(layer, p.step().rings)};
  const View pooled = p.allocate(DType::kF32, {e.slot.dim(0), c.d_head()});  // [N, Dh]
  ops::pool_windows(p.ctx(), {.tokens = tokens,
                              .bias = weights.no_bias.view.slice_first(0, e.ratio),
                              .seq = e.seq,
                              .slot = e.slot,
                              .out = pooled});
  ops::keep_state(p.ctx(), tokens);
  return p.rms_norm(pooled, compressor.norm, c.norm_eps);
}

// Index keys are made of the entries before these are rotated.
void SharedAttentionBlock::append_entries(Pass& p, View h) const {
  const ModelConfig& c = config;
  const StepEntries& e = step_entries(p);
  const Rotation& rotation = rotations.entries[static_cast<size_t>(&e - p.step().entries.data())];
  const View latent = latents(p, h, e);  // [N, Dh]
  if (latent.dim(0) == 0) return;
  ops::write_index_keys(p.ctx(), {.x = p.matmul(latent, *w.indexer->k),  // [N, Di]
                                  .weight = w.indexer->k_norm.view,
                                  .eps = c.norm_eps,
                                  .rotation = rotation.of(c.index_rope_pairing),
                                  .rope_column = c.d_index - c.d_rope,
                                  .hadamard = p.numerics().hadamard(),
                                  .fp4 = p.numerics().fp4_index,
                                  .seq = e.seq,
                                  .slot = e.slot,
                                  .format = *p.cache().format(layer).index,
                                  .cache = p.cache().index_rows(layer, e.tables)});
  p.rotate(latent.slice_last(c.d_nope, c.d_rope).split_last(1, c.d_rope), rotation);
  if (p.numerics().rounded_rows) ops::round_to_nvfp4(p.ctx(), {.x = latent});
  ops::write_latent(p.ctx(), {.x = latent,
                              .rotation = {},
                              .seq = e.seq,
                              .slot = e.slot,
                              .format = p.cache().format(layer).compressed->entries,
                              .cache = p.cache().entry_rows(layer, e.tables)});
}

// What each token attends to besides its window: its own block, or entries.
ops::AttentionRows SharedAttentionBlock::more_rows(Pass& p, const IndexerInput& in, SharedTopk* topk) const {
  if (p.step().blocks) return block_rows(p, in.h.x);
  if (entries.ratio == 0) return {};
  if (w.indexer) select(p, in, *topk);
  return {.cache = p.cache().entry_rows(entries.source, step_entries(p).tables), .topk = topk->slots};
}

ops::AttentionRows SharedAttentionBlock::block_rows(Pass& p, View h) const {
  const StepBlocks& blocks = *p.step().blocks;
  const int64_t n_pages = blocks.tables.dim(0), page_bytes = p.cache().format(layer).latent.page_bytes();
  const PagedRows rows{.pages = p.allocate(DType::kF8E4M3, {n_pages, page_bytes}).bytes(),
                       .page_bytes = page_bytes,
                       .tables = blocks.tables,
                       .n_pages = n_pages};
  append_rows(p, h, rows);
  return {.cache = rows, .end = blocks.end};
}

void SharedAttentionBlock::select(Pass& p, const IndexerInput& in, SharedTopk& topk) const {
  const ModelConfig& c = config;
  const CandidateBlocks& candidates = deepseek_v41::own(c).candidates;
  const ArenaScope scratch = p.scope();
  const StepEntries& e = step_entries(p);
  const IndexerBlock indexer{.params = {.n_heads = c.n_index_heads,
                                        .d_index = c.d_index,
                                        .rope_column = c.d_index - c.d_rope,
                                        .pairing = c.index_rope_pairing,
                                        .scale = c.index_scale()},
                             .q_up = w.indexer->q_up,
                             .head_weights = w.indexer->head_weights,
                             .rotation = rotation()};
  const IndexKeys keys{.visible = e.visible,
                       .n_visible = e.n_visible,
                       .format = *p.cache().format(entries.source).index,
                       .cache = p.cache().index_rows(entries.source, e.tables)};
  const bool two_levels = candidates.source >= 0 && layer >= candidates.source &&
                          e.n_visible > candidates.n_blocks * candidates.block_size;  // otherwise all are candidates
  if (two_levels) {
    select_in_two_levels(p, indexer.query(p, in, keys), e.n_visible, topk);
  } else {
    indexer.select(p, in, keys, topk.slots);
  }
  if (p.probe() != nullptr && p.probe()->on_topk) p.probe()->on_topk(layer, topk.slots);
}

// As many rows at a time as have room for their scores.
void SharedAttentionBlock::select_in_two_levels(Pass& p, const ops::IndexQuery& query, int32_t n_visible,
                                                SharedTopk& topk) const {
  const CandidateBlocks& candidates = deepseek_v41::own(config).candidates;
  const int64_t n_tokens = p.n_tokens(), most = std::max<int64_t>(1, ops::kIndexScoreBytes / 4 / n_visible);
  for (int64_t first = 0; first < n_tokens; first += most) {
    const ArenaScope scratch = p.scope();
    const int64_t n = std::min(most, n_tokens - first);
    const auto rows = [&](View x) { return x.slice_first(first, n); };
    ops::IndexQuery part = query;
    for (View* view : {&part.q, &part.w, &part.seq, &part.visible}) *view = rows(*view);
    const View score = p.allocate(DType::kF32, {n, n_visible});  // [n, S]
    ops::index_scores(p.ctx(), {.query = part, .score = score});
    if (layer == candidates.source) {
      ops::select_blocks(
          p.ctx(), {.score = score, .end = part.visible, .block = candidates.block_size, .blocks = rows(topk.blocks)});
    } else {
      ops::keep_blocks(
          p.ctx(), {.blocks = rows(topk.blocks), .block = candidates.block_size, .end = part.visible, .score = score});
    }
    ops::select_topk(
        p.ctx(),
        {.score = score, .begin = {}, .end = part.visible, .topk = rows(topk.slots), .faults = rows(p.step().faults)});
  }
}

}  // namespace levin
