#include "model/blocks/indexer.h"

#include "ops/row_chains.h"

namespace levin {
namespace {

// The type that queries meet the cached keys in.
DType query_type(CacheDType keys) {
  switch (keys) {
    case CacheDType::kF32:
      return DType::kF32;
    case CacheDType::kBF16:
      return DType::kBF16;
    case CacheDType::kFp8:
      return DType::kF8E4M3;
  }
  return DType::kF32;
}

}  // namespace

ops::IndexQuery IndexerBlock::query(Pass& p, const IndexerInput& in, const IndexKeys& keys) const {
  const DType type = query_type(p.numerics().index_keys);
  const View x = p.matmul(in.c_q, q_up).split_last(params.n_heads, params.d_index);  // [T, Hi, Di]
  const View w = p.matmul(in.h, head_weights);                                       // [T, Hi]
  const View q = type == DType::kF32 ? x : p.allocate(type, {x.dim(0), params.n_heads, params.d_index});
  ops::index_queries(p.ctx(), {.x = x,
                               .w = w,
                               .factor = params.scale,
                               .rotation = rotation.of(params.pairing),
                               .rope_column = params.rope_column,
                               .hadamard = p.numerics().hadamard(),
                               .fp4 = p.numerics().fp4_index,
                               .q = q,
                               .weights = w});
  return {.q = q,
          .w = w,
          .seq = p.step().seq,
          .visible = keys.visible,
          .first = keys.first,
          .format = keys.format,
          .cache = keys.cache,
          .tokens_together = p.step().rows_together,
          .plan = keys.plan};
}

void IndexerBlock::select(Pass& p, const IndexerInput& in, const IndexKeys& keys, View slots) const {  // slots  [T, K]
  if (keys.n_visible - keys.first <= slots.dim(1)) {
    return ops::take_all(p.ctx(), {.visible = keys.visible, .first = keys.first, .topk = slots});
  }
  const ops::IndexQuery q = query(p, in, keys);
  if (p.probe() != nullptr && p.probe()->on_index_query) p.probe()->on_index_query(q);
  ops::index_topk(p.ctx(), {.query = q, .topk = slots, .faults = p.step().faults});
}

}  // namespace levin
