// On the CPU a chain is the ops it is made of.
#include "ops/row_chains.h"

#include "base/check.h"
#include "base/numbers.h"
#include "ops/cache_rows.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/norm.h"
#include "ops/op_times.h"
#include "ops/quantize.h"

namespace levin::ops {
namespace {

void check_input(std::string_view op, const View& x, int rank) {
  LEVIN_CHECK(x.rank() == rank && (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16),
              "{}: x is {}, expected f32 or bf16 of {} dimensions", op, x.describe(), rank);
}

void check_rotation(std::string_view op, const Rotation& r, int64_t n_rows, int64_t d_rope) {
  check_view({op, "cos", r.cos}, DType::kF32, {n_rows, d_rope / 2});
  check_view({op, "sin", r.sin}, DType::kF32, {n_rows, d_rope / 2});
}

void check_slots(std::string_view op, const View& seq, const View& slot, int64_t n_rows) {
  check_view({op, "seq", seq}, DType::kI32, {n_rows});
  check_view({op, "slot", slot}, DType::kI32, {n_rows});
}

// x [T, H, D] as f32 values of its own, dense.
View widened(OpContext& ctx, const View& x) {
  const View out = ctx.arena->allocate(DType::kF32, {x.dim(0), x.dim(1), x.dim(2)});
  ctx.pool->parallel_for(x.dim(0), row_grain(x.dim(0), x.dim(1) * x.dim(2)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < x.dim(1); ++h) {
        float* to = out.row<float>(t, h);
        for (int64_t i = 0; i < x.dim(2); ++i) {
          to[i] = x.dtype() == DType::kF32 ? x.row<float>(t, h)[i] : bf16_to_f32(x.row<uint16_t>(t, h)[i]);
        }
      }
    }
  });
  return out;
}

View widened_rows(OpContext& ctx, const View& x) { return widened(ctx, x.split_last(1, x.dim(1))).merged_first(); }

void rotate(OpContext& ctx, const View& x, const Rotation& r) {
  rope(ctx, {.x = x, .cos = r.cos, .sin = r.sin, .pairing = r.pairing});
}

}  // namespace

void norm_rows(OpContext& ctx, const NormRows& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  check_input("norm_rows", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  if (!a.residual.empty()) check_view({"norm_rows", "residual", a.residual}, DType::kF32, {n_rows, d});
  check_view({"norm_rows", "weight", a.weight}, DType::kF32, {d});
  if (!a.normed.empty()) check_view({"norm_rows", "normed", a.normed}, DType::kBF16, {n_rows, d});
  if (!a.codes.empty()) check_view({"norm_rows", "codes", a.codes}, DType::kF8E4M3, {n_rows, d});
  LEVIN_CHECK(a.codes.empty() == a.scale.empty(), "norm_rows: codes are {}, their scale {}", a.codes.describe(),
              a.scale.describe());
  if (ctx.device == Device::kCuda) return ctx.cuda->norm_rows(a);
  const ArenaScope scope(*ctx.arena);
  View x = widened_rows(ctx, a.x);
  if (!a.residual.empty()) {
    add_into(ctx, {.x = a.residual, .y = x});
    rms_norm(ctx, {.x = a.residual, .weight = a.weight, .eps = a.eps, .out = x});
  } else {
    rms_norm(ctx, {.x = x, .weight = a.weight, .eps = a.eps, .out = x});
  }
  if (!a.normed.empty()) round_to_bf16(ctx, {.x = x, .out = a.normed});
  if (!a.codes.empty()) quantize_fp8(ctx, {.x = x, .out = a.codes, .scale = a.scale});
}

void rotate_queries(OpContext& ctx, const RotateQueries& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  check_input("rotate_queries", a.x, 3);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  check_rotation("rotate_queries", a.rotation, n_rows, d);
  check_view({"rotate_queries", "out", a.out}, DType::kBF16, {n_rows, n_heads, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->rotate_queries(a);
  const ArenaScope scope(*ctx.arena);
  const View x = widened(ctx, a.x);
  rotate(ctx, x, a.rotation);
  round_to_bf16(ctx, {.x = x.merged_first(), .out = a.out.merged_first()});
}

void write_latent(OpContext& ctx, const WriteLatent& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  check_input("write_latent", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d_latent = a.format.d_latent, d_rope = a.format.d_rope;
  check_view({"write_latent", "x", a.x}, a.x.dtype(), {n_rows, d_latent + d_rope});
  check_view({"write_latent", "weight", a.weight}, DType::kF32, {d_latent});
  check_rotation("write_latent", a.rotation, n_rows, d_rope);
  check_slots("write_latent", a.seq, a.slot, n_rows);
  if (ctx.device == Device::kCuda) return ctx.cuda->write_latent(a);
  const ArenaScope scope(*ctx.arena);
  const View x = widened_rows(ctx, a.x);
  const View latent = x.slice_last(0, d_latent), rope = x.slice_last(d_latent, d_rope);
  rms_norm(ctx, {.x = latent, .weight = a.weight, .eps = a.eps, .out = latent});
  rotate(ctx, rope.split_last(1, d_rope), a.rotation);
  append_latent(ctx,
                {.c_kv = latent, .k_rope = rope, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

void index_queries(OpContext& ctx, const IndexQueries& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  check_input("index_queries", a.x, 3);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  LEVIN_CHECK(a.rotation.cos.rank() == 2 && 2 * a.rotation.cos.dim(1) <= d, "index_queries: cos is {}, x {}",
              a.rotation.cos.describe(), a.x.describe());
  const int64_t d_rope = 2 * a.rotation.cos.dim(1);
  check_rotation("index_queries", a.rotation, n_rows, d_rope);
  check_view({"index_queries", "w", a.w}, DType::kF32, {n_rows, n_heads});
  check_view({"index_queries", "codes", a.codes}, DType::kF8E4M3, {n_rows, n_heads, d});
  check_view({"index_queries", "weights", a.weights}, DType::kF32, {n_rows, n_heads});
  if (ctx.device == Device::kCuda) return ctx.cuda->index_queries(a);
  LEVIN_CHECK(d <= kQuantBlock, "index_queries: heads of {} with one scale, at most {} columns share one", d,
              kQuantBlock);
  const ArenaScope scope(*ctx.arena);
  const View x = widened(ctx, a.x), scale = ctx.arena->allocate(DType::kF32, {n_rows * n_heads, 1});
  rotate(ctx, x.slice_last(0, d_rope), a.rotation);
  if (a.hadamard) hadamard(ctx, {.x = x});
  quantize_fp8(ctx, {.x = x.merged_first(), .out = a.codes.merged_first(), .scale = scale});
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t h = 0; h < n_heads; ++h) {
      a.weights.row<float>(t)[h] = a.w.row<float>(t)[h] * a.factor * scale.data<float>()[t * n_heads + h];
    }
  }
}

void write_index_keys(OpContext& ctx, const WriteIndexKeys& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  check_input("write_index_keys", a.x, 2);
  const int64_t n_rows = a.x.dim(0), d = a.format.d_index;
  check_view({"write_index_keys", "x", a.x}, a.x.dtype(), {n_rows, d});
  check_view({"write_index_keys", "weight", a.weight}, DType::kF32, {d});
  check_view({"write_index_keys", "bias", a.bias}, DType::kF32, {d});
  LEVIN_CHECK(a.rotation.cos.rank() == 2 && 2 * a.rotation.cos.dim(1) <= d, "write_index_keys: cos is {}, x {}",
              a.rotation.cos.describe(), a.x.describe());
  const int64_t d_rope = 2 * a.rotation.cos.dim(1);
  check_rotation("write_index_keys", a.rotation, n_rows, d_rope);
  check_slots("write_index_keys", a.seq, a.slot, n_rows);
  if (ctx.device == Device::kCuda) return ctx.cuda->write_index_keys(a);
  const ArenaScope scope(*ctx.arena);
  const View x = widened_rows(ctx, a.x);
  layer_norm(ctx, {.x = x, .weight = a.weight, .bias = a.bias, .eps = a.eps, .out = x});
  rotate(ctx, x.slice_last(0, d_rope).split_last(1, d_rope), a.rotation);
  if (a.hadamard) hadamard(ctx, {.x = x.split_last(1, d)});
  append_index_keys(ctx, {.keys = x, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

}  // namespace levin::ops
