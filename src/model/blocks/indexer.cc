#include "model/blocks/indexer.h"

#include "ops/quantize.h"

namespace levin {

namespace {

// Prepared queries q [T, Hi, Di] f32 in the type of the cached keys; for fp8 each head's scale goes into that head's
// weight, w [T, Hi] f32.
View index_operand(Pass& p, View q, View w) {
  const CacheDType dtype = p.numerics().index_keys;
  if (dtype == CacheDType::kF32) return q;
  const int64_t n_tokens = q.dim(0), n_heads = q.dim(1), d_index = q.dim(2);
  if (dtype == CacheDType::kBF16) {
    const View out = p.allocate(DType::kBF16, {n_tokens, n_heads, d_index});
    ops::round_to_bf16(p.ctx(), {.x = q.merged_first(), .out = out.merged_first()});
    return out;
  }
  const View out = p.allocate(DType::kF8E4M3, {n_tokens, n_heads, d_index});
  const View scale = p.allocate(DType::kF32, {n_tokens * n_heads, 1});
  ops::quantize_fp8(p.ctx(), {.x = q.merged_first(), .out = out.merged_first(), .scale = scale});
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t i = 0; i < n_heads; ++i) w.row<float>(t)[i] *= scale.data<float>()[t * n_heads + i];
  }
  return out;
}

void scale_rows(View w, float factor) {
  for (int64_t t = 0; t < w.dim(0); ++t) {
    for (int64_t i = 0; i < w.dim(1); ++i) w.row<float>(t)[i] *= factor;
  }
}

}  // namespace

void prepare_index_values(Pass& p, View x) {
  if (p.numerics().hadamard()) ops::hadamard(p.ctx(), {.x = x});
  if (p.numerics().fp4_index) ops::round_to_fp4(p.ctx(), {.x = x.merged_first()});
}

void IndexerBlock::pick(Pass& p, View h, View c_q, const IndexKeys& keys, View slots) const {  // slots  [T, K]
  if (ops::all_are_taken(keys.visible, keys.first, slots.dim(1))) {
    return ops::take_all(p.ctx(), {.visible = keys.visible, .first = keys.first, .picks = slots});
  }
  const View q = p.matmul(c_q, q_up).split_last(params.n_heads, params.d_index);  // [T, Hi, Di]
  p.rotate(q.slice_last(params.rope_column, params.d_rope), rotation, params.pairing);
  prepare_index_values(p, q);
  const View w = p.matmul(h, head_weights);  // [T, Hi]
  scale_rows(w, params.scale);
  ops::index_topk(p.ctx(), {.query = {.q = index_operand(p, q, w),
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
