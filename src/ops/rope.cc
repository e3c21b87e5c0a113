#include "ops/rope.h"

#include "base/check.h"
#include "base/math.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

constexpr int64_t kSinCosCost = 32;  // of an exact sine and cosine, in values rotated

}  // namespace

void rope(OpContext& ctx, const Rope& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  LEVIN_CHECK(a.x.rank() == 3 && a.x.dim(2) % 2 == 0, "rope: x is {}, expected f32 [T, H, Dr] with even Dr",
              a.x.describe());
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  check_view({"rope", "x", a.x}, DType::kF32, {n_rows, n_heads, d});
  check_view({"rope", "cos", a.cos}, DType::kF32, {n_rows, d / 2});
  check_view({"rope", "sin", a.sin}, DType::kF32, {n_rows, d / 2});
  if (ctx.device == Device::kCuda) return ctx.cuda->rope(a);
  const auto rotate =
      a.pairing == RopePairing::kInterleaved ? ctx.cpu->rows.rope_interleaved : ctx.cpu->rows.rope_half_split;
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, n_heads * d), [&](int64_t begin, int64_t end, int) {
    rotate({.x = a.x.row<float>(begin),
            .row_stride = a.x.stride(0),
            .head_stride = a.x.stride(1),
            .cos = a.cos.row<float>(begin),
            .cos_stride = a.cos.stride(0),
            .sin = a.sin.row<float>(begin),
            .sin_stride = a.sin.stride(0),
            .n_rows = end - begin,
            .n_heads = n_heads,
            .d = d});
  });
}

void rope_table(OpContext& ctx, const RopeTable& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  LEVIN_CHECK(a.positions.rank() == 1, "rope_table: positions is {}, expected i32 [T]", a.positions.describe());
  LEVIN_CHECK(a.frequencies != nullptr, "rope_table: frequencies is null");
  const int64_t n_rows = a.positions.dim(0), n_pairs = static_cast<int64_t>(a.frequencies->size());
  check_view({"rope_table", "positions", a.positions}, DType::kI32, {n_rows});
  check_view({"rope_table", "cos", a.cos}, DType::kF32, {n_rows, n_pairs});
  check_view({"rope_table", "sin", a.sin}, DType::kF32, {n_rows, n_pairs});
  if (ctx.device == Device::kCuda) return ctx.cuda->rope_table(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, kSinCosCost * n_pairs), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float position = static_cast<float>(a.positions.data<int32_t>()[t]);
      for (int64_t j = 0; j < n_pairs; ++j) {
        const float angle = position * (*a.frequencies)[j];
        const SinCos exact = sin_cos_exact(angle);
        a.cos.row<float>(t)[j] = static_cast<float>(exact.cos);
        a.sin.row<float>(t)[j] = static_cast<float>(exact.sin);
      }
    }
  });
}

}  // namespace levin::ops
