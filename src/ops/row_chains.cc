#include "ops/row_chains.h"

#include <bit>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_input(std::string_view op, const View& x, int rank) {
  LEVIN_CHECK(x.rank() == rank && (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16),
              "{}: x is {}, expected f32 or bf16 of {} dimensions", op, x.describe(), rank);
}

DType f32_or_bf16(const View& v) { return v.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32; }

void check_rotation(std::string_view op, const Rotation& r, int64_t n_rows, int64_t d_rope) {
  if (r.cos.empty() && d_rope == 0) return;
  check_view({op, "cos", r.cos}, DType::kF32, {n_rows, d_rope / 2});
  check_view({op, "sin", r.sin}, DType::kF32, {n_rows, d_rope / 2});
}

// Of rows or heads x whose columns from `column` on are rotated.
void check_columns(std::string_view op, const Rotation& r, int64_t column, const View& x) {
  if (r.cos.empty()) return;
  LEVIN_CHECK(r.cos.rank() == 2 && column >= 0 && column + 2 * r.cos.dim(1) <= x.dim(-1),
              "{}: cos is {}, x {}, rotated from column {}", op, r.cos.describe(), x.describe(), column);
  check_rotation(op, r, x.dim(0), 2 * r.cos.dim(1));
}

void check_hadamard(std::string_view op, bool hadamard, int64_t d) {
  LEVIN_CHECK(!hadamard || std::has_single_bit(static_cast<uint64_t>(d)),
              "{}: a Hadamard rotation of {} columns, expected a power of two", op, d);
}

void check_slots(std::string_view op, const View& seq, const View& slot, int64_t n_rows) {
  check_view({op, "seq", seq}, DType::kI32, {n_rows});
  check_view({op, "slot", slot}, DType::kI32, {n_rows});
}

void check(const NormRows& a) {
  check_input("norm_rows", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  if (!a.residual.empty()) check_view({"norm_rows", "residual", a.residual}, DType::kF32, {n_rows, d});
  if (!a.weight.empty()) check_view({"norm_rows", "weight", a.weight}, DType::kF32, {d});
  if (!a.normed.empty()) check_view({"norm_rows", "normed", a.normed}, f32_or_bf16(a.normed), {n_rows, d});
  if (!a.codes.empty()) check_view({"norm_rows", "codes", a.codes}, DType::kF8E4M3, {n_rows, d});
  LEVIN_CHECK(a.codes.empty() == a.scale.empty(), "norm_rows: codes are {}, their scale {}", a.codes.describe(),
              a.scale.describe());
  if (a.scale_by_block) check_scales_by_block("norm_rows", a.scale, a.x);
}

void check(const RotateQueries& a) {
  check_input("rotate_queries", a.x, 3);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  check_rotation("rotate_queries", a.rotation, n_rows, d);
  check_view({"rotate_queries", "out", a.out}, f32_or_bf16(a.out), {n_rows, n_heads, d});
  LEVIN_CHECK(a.out.dtype() == DType::kBF16 || a.out.bytes() == a.x.bytes(),
              "rotate_queries: out is {}, expected bf16, or x itself", a.out.describe());
}

void check(const WriteLatent& a) {
  check_input("write_latent", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d_latent = a.format.d_latent, d_rope = a.format.d_rope;
  check_view({"write_latent", "x", a.x}, a.x.dtype(), {n_rows, d_latent + d_rope});
  if (!a.weight.empty()) {
    const bool whole_row = a.weight.dim(0) == d_latent + d_rope;
    check_view({"write_latent", "weight", a.weight}, DType::kF32, {whole_row ? d_latent + d_rope : d_latent});
  }
  if (!a.rotation.cos.empty()) check_rotation("write_latent", a.rotation, n_rows, d_rope);
  check_slots("write_latent", a.seq, a.slot, n_rows);
  check_cache("write_latent", a.cache, a.format.page_bytes());
}

void check(const IndexQueries& a) {
  check_input("index_queries", a.x, 3);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  check_columns("index_queries", a.rotation, a.rope_column, a.x);
  check_hadamard("index_queries", a.hadamard, d);
  check_view({"index_queries", "w", a.w}, DType::kF32, {n_rows, n_heads});
  check_view({"index_queries", "q", a.q}, a.q.dtype() == DType::kF8E4M3 ? DType::kF8E4M3 : f32_or_bf16(a.q),
             {n_rows, n_heads, d});
  check_view({"index_queries", "weights", a.weights}, DType::kF32, {n_rows, n_heads});
}

void check(const WriteIndexKeys& a) {
  check_input("write_index_keys", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d = a.format.d_index;
  check_view({"write_index_keys", "x", a.x}, a.x.dtype(), {n_rows, d});
  if (!a.weight.empty()) check_view({"write_index_keys", "weight", a.weight}, DType::kF32, {d});
  if (!a.bias.empty()) check_view({"write_index_keys", "bias", a.bias}, DType::kF32, {d});
  check_columns("write_index_keys", a.rotation, a.rope_column, a.x);
  check_hadamard("write_index_keys", a.hadamard, d);
  check_slots("write_index_keys", a.seq, a.slot, n_rows);
  check_cache("write_index_keys", a.cache, a.format.page_bytes());
}

}  // namespace

void norm_rows(OpContext& ctx, const NormRows& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  check(a);
  ctx.backend->norm_rows(a);
}

void rotate_queries(OpContext& ctx, const RotateQueries& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  check(a);
  ctx.backend->rotate_queries(a);
}

void write_latent(OpContext& ctx, const WriteLatent& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  check(a);
  ctx.backend->write_latent(a);
}

void index_queries(OpContext& ctx, const IndexQueries& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  check(a);
  ctx.backend->index_queries(a);
}

void write_index_keys(OpContext& ctx, const WriteIndexKeys& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  check(a);
  ctx.backend->write_index_keys(a);
}

void norm_and_append(OpContext& ctx, const NormAndAppend& a) {
  check(a.norm);
  check(a.latent);
  if (!a.keys.x.empty()) check(a.keys);
  if (!a.product.x.empty()) check_matmul(ctx, a.product);
  {
    const OpTimer timer(ctx, OpKind::kCacheRows);
    if (ctx.backend->norm_and_append(a)) return;
  }
  norm_rows(ctx, a.norm);
  write_latent(ctx, a.latent);
  if (!a.keys.x.empty()) write_index_keys(ctx, a.keys);
  if (!a.product.x.empty()) matmul(ctx, a.product);
}

void attention_queries(OpContext& ctx, const AttentionQueries& a) {
  check(a.rotate);
  check(a.index);
  {
    const OpTimer timer(ctx, OpKind::kRound);
    if (ctx.backend->attention_queries(a)) return;
  }
  rotate_queries(ctx, a.rotate);
  index_queries(ctx, a.index);
}

}  // namespace levin::ops
