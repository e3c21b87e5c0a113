#include "model/blocks/indexer.h"

#include "ops/copies.h"
#include "ops/quantize.h"

namespace levin {

namespace {

// Prepared queries q [T, Hi, Di] f32 in the type of the cached keys, and head weights w [T, Hi] f32 times `factor` in
// place; for fp8 each head's scale goes into that head's weight.
View index_operand(Pass& p, View q, View w, float factor) {
  const CacheDType dtype = p.numerics().index_keys;
  const int64_t n_tokens = q.dim(0), n_heads = q.dim(1), d_index = q.dim(2);
  if (dtype != CacheDType::kFp8) {
    ops::scale_rows(p.ctx(), {.x = w, .factor = factor, .out = w});
    if (dtype == CacheDType::kF32) return q;
    const View out = p.allocate(DType::kBF16, {n_tokens, n_heads, d_index});
    ops::round_to_bf16(p.ctx(), {.x = q.merged_first(), .out = out.merged_first()});
    return out;
  }
  const View out = p.allocate(DType::kF8E4M3, {n_tokens, n_heads, d_index});
  const View scale = p.allocate(DType::kF32, {n_tokens, n_heads});
  ops::quantize_fp8(
      p.ctx(), {.x = q.merged_first(), .out = out.merged_first(), .scale = scale.reshaped({n_tokens * n_heads, 1})});
  ops::scale_rows(p.ctx(), {.x = w, .factor = factor, .scale = scale, .out = w});
  return out;
}

}  // namespace

void prepare_index_values(Pass& p, View x) {
  if (p.numerics().hadamard()) ops::hadamard(p.ctx(), {.x = x});
  if (p.numerics().fp4_index) ops::round_to_fp4(p.ctx(), {.x = x.merged_first()});
}

void IndexerBlock::pick(Pass& p, View h, View c_q, const IndexKeys& keys, View slots) const {  // slots  [T, K]
  if (keys.n_visible - keys.first <= slots.dim(1)) {
    return ops::take_all(p.ctx(), {.visible = keys.visible, .first = keys.first, .picks = slots});
  }
  const View q = p.matmul(c_q, q_up).split_last(params.n_heads, params.d_index);  // [T, Hi, Di]
  if (params.d_rope > 0) p.rotate(q.slice_last(params.rope_column, params.d_rope), rotation, params.pairing);
  prepare_index_values(p, q);
  const View w = p.matmul(h, head_weights);  // [T, Hi]
  const View operand = index_operand(p, q, w, params.scale);
  ops::index_topk(p.ctx(), {.query = {.q = operand,
                                      .w = w,
                                      .seq = p.step().seq,
                                      .visible = keys.visible,
                                      .first = keys.first,
                                      .format = keys.format,
                                      .cache = keys.cache},
                            .picks = slots,
                            .faults = p.step().faults});
}

}  // namespace levin
