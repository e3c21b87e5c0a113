#include "ops/sparse_attention.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_rows(std::string_view name, const AttentionRows& rows, const LatentFormat& format, int64_t n_rows) {
  constexpr std::string_view kOp = "sparse_attention";
  if (!rows.topk.empty()) {
    LEVIN_CHECK(rows.topk.rank() == 2, "{}: {}.topk is {}, expected i32 [T, K]", kOp, name, rows.topk.describe());
    check_view({kOp, "topk", rows.topk}, DType::kI32, {n_rows, rows.topk.dim(1)});
  } else {
    check_view({kOp, "end", rows.end}, DType::kI32, {n_rows});
    if (!rows.begin.empty()) check_view({kOp, "begin", rows.begin}, DType::kI32, {n_rows});
  }
  LEVIN_CHECK(rows.cache.tables.rank() == 2 && rows.cache.tables.dtype() == DType::kI32,
              "{}: {}.cache.tables is {}, expected i32 [B, pages]", kOp, name, rows.cache.tables.describe());
  LEVIN_CHECK(rows.cache.page_bytes >= format.page_bytes(), "{}: {}.cache has pages of {} bytes, the format needs {}",
              kOp, name, rows.cache.page_bytes, format.page_bytes());
}

void check(const SparseAttention& a) {
  LEVIN_CHECK(a.q_latent.rank() == 3 && (a.q_latent.dtype() == DType::kF32 || a.q_latent.dtype() == DType::kBF16),
              "sparse_attention: q_latent is {}, expected f32 or bf16 [T, H, Rk]", a.q_latent.describe());
  const int64_t n_rows = a.q_latent.dim(0), n_heads = a.q_latent.dim(1);
  const DType dtype = a.q_latent.dtype();
  check_view({"sparse_attention", "q_latent", a.q_latent}, dtype, {n_rows, n_heads, a.format.d_latent});
  check_view({"sparse_attention", "q_rope", a.q_rope}, dtype, {n_rows, n_heads, a.format.d_rope});
  check_view({"sparse_attention", "seq", a.seq}, DType::kI32, {n_rows});
  const DType out = a.out.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32;
  check_view({"sparse_attention", "out", a.out}, out, {n_rows, n_heads, a.format.d_value()});
  if (!a.sink.empty()) check_view({"sparse_attention", "sink", a.sink}, DType::kF32, {n_heads});
  LEVIN_CHECK(dtype == DType::kF32 || a.format.dtype != CacheDType::kF32,
              "sparse_attention: q_latent is bf16 over f32 cache rows, which take f32 queries");
  check_rows("rows", a.rows, a.format, n_rows);
  if (!a.more.empty()) check_rows("more", a.more, a.format, n_rows);
}

}  // namespace

void sparse_attention(OpContext& ctx, const SparseAttention& a) {
  OpTimer timer(ctx, OpKind::kSparseAttention);
  check(a);
  if (a.q_latent.dim(0) == 0) return;
  ctx.backend->sparse_attention(a);
  timer.add([&] { return ctx.backend->work(a); });
}

}  // namespace levin::ops
