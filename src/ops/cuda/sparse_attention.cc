#include "ops/sparse_attention.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"
#include "ops/quantize.h"

namespace levin {
namespace {

constexpr std::string_view kOp = "sparse_attention";

OpForm form_of(const ops::SparseAttention& a) {
  return {.op = kOp,
          .rows = a.format,
          .n_heads = a.q_latent.dim(1),
          .n_topk = a.rows.topk.empty() ? 0 : a.rows.topk.dim(1),
          .other_rows = a.rows.topk.empty() || !a.more.empty() || !a.sink.empty()};
}

bool has_dense_heads(const View& q) { return q.dim(1) == 1 || q.stride(1) == q.dim(2); }

ops::SparseAttention rows_of(const ops::SparseAttention& a, int64_t begin, int64_t n) {
  ops::SparseAttention some = a;
  some.q_latent = a.q_latent.slice_first(begin, n);
  some.q_rope = a.q_rope.slice_first(begin, n);
  some.seq = a.seq.slice_first(begin, n);
  some.rows.topk = a.rows.topk.slice_first(begin, n);
  some.out = a.out.slice_first(begin, n);
  return some;
}

}  // namespace

// The same queries, or rounded to bf16 in scratch.
View OpsOnCuda::bf16_queries(std::string_view op, const View& q) {
  if (q.dtype() == DType::kBF16) {
    LEVIN_CHECK(has_dense_heads(q), "{}: heads of bf16 queries are {} elements apart, not {}", op, q.stride(1),
                q.dim(2));
    return q;
  }
  const View out = arena_.allocate(DType::kBF16, {q.dim(0), q.dim(1), q.dim(2)});
  PlainCuda::round_to_bf16({.x = q.merged_first(), .out = out.merged_first()});
  return out;
}

void OpsOnCuda::attend(const ops::SparseAttention& a) {
  const Scratch scratch(arena_);
  const View q_latent = bf16_queries(kOp, a.q_latent), q_rope = bf16_queries(kOp, a.q_rope);
  cuda::SparseMla rows;
  rows.q_latent = device_bytes(kOp, "q_latent", q_latent);
  rows.q_rope = device_bytes(kOp, "q_rope", q_rope);
  rows.q_latent_row_stride = q_latent.stride(0);
  rows.q_rope_row_stride = q_rope.stride(0);
  rows.topk = dense_data<int32_t>(kOp, "topk", a.rows.topk);
  rows.tables = page_tables(kOp, a.rows.cache);
  rows.table_row = dense_data<int32_t>(kOp, "seq", a.seq);
  rows.format = cuda::LatentRows::kFp8;
  rows.cache = a.rows.cache.pages;
  rows.page_bytes = a.rows.cache.page_bytes;
  rows.out = dense_bytes(kOp, "out", a.out);
  rows.out_f32 = a.out.dtype() == DType::kF32;
  rows.scratch = attention_scratch_.data();
  rows.n_rows = q_latent.dim(0);
  rows.n_heads = static_cast<int>(q_latent.dim(1));
  rows.n_topk = static_cast<int>(a.rows.topk.dim(1));
  rows.scale = a.scale;
  const int64_t n_tables = a.rows.cache.tables.dim(0);
  const int64_t converted_bytes = cuda::converted_latent_bytes(rows.tables, n_tables);
  if (cuda::is_worth_converting(rows, n_tables) && converted_bytes <= scratch_bytes_ / 2)
    rows = cuda::convert_latent_rows(rows, n_tables, arena_.allocate_bytes(converted_bytes), stream_.handle());
  cuda::sparse_mla(rows, stream_.handle());
}

DType OpsOnCuda::query_type(const LatentFormat& rows, int64_t n_heads, int64_t n_topk) const {
  const OpForm form{.op = kOp, .rows = rows, .n_heads = n_heads, .n_topk = n_topk};
  return why_not_sm90(form).empty() ? DType::kBF16 : DType::kF32;
}

// As many rows at a time as a quarter of the scratch has room for as bf16 queries.
void OpsOnCuda::sparse_attention(const ops::SparseAttention& a) {
  if (!why_not_sm90(form_of(a)).empty()) return PlainCuda::sparse_attention(a);
  const int64_t n_rows = a.q_latent.dim(0), row_bytes = a.q_latent.dim(1) * (a.q_latent.dim(2) + a.q_rope.dim(2)) * 2;
  const int64_t step = a.q_latent.dtype() == DType::kBF16 ? n_rows : even_step(n_rows, scratch_bytes_ / 4 / row_bytes);
  for (int64_t row = 0; row < n_rows; row += step) attend(rows_of(a, row, std::min(step, n_rows - row)));
}

}  // namespace levin
