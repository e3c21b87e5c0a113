#include "ops/norm.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

// Rows [begin, end) of what `a` describes.
kernels::NormRows rows_of(const LayerNorm& a, int64_t begin, int64_t end) {
  return {.x = a.x.row<float>(begin),
          .x_stride = a.x.stride(0),
          .weight = a.weight.empty() ? nullptr : a.weight.data<float>(),
          .bias = a.bias.empty() ? nullptr : a.bias.data<float>(),
          .eps = a.eps,
          .out = a.out.row<float>(begin),
          .out_stride = a.out.stride(0),
          .n_rows = end - begin,
          .d = a.x.dim(1)};
}

}  // namespace

void rms_norm(OpContext& ctx, const RmsNorm& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "rms_norm: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"rms_norm", "x", a.x}, DType::kF32, {n_rows, d});
  if (!a.weight.empty()) check_view({"rms_norm", "weight", a.weight}, DType::kF32, {d});
  check_view({"rms_norm", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->rms_norm(a);
  const LayerNorm rows{.x = a.x, .weight = a.weight, .bias = {}, .eps = a.eps, .out = a.out};
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d),
                         [&](int64_t begin, int64_t end, int) { ctx.cpu->rows.rms_norm(rows_of(rows, begin, end)); });
}

void layer_norm(OpContext& ctx, const LayerNorm& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "layer_norm: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"layer_norm", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"layer_norm", "weight", a.weight}, DType::kF32, {d});
  check_view({"layer_norm", "bias", a.bias}, DType::kF32, {d});
  check_view({"layer_norm", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->layer_norm(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d),
                         [&](int64_t begin, int64_t end, int) { ctx.cpu->rows.layer_norm(rows_of(a, begin, end)); });
}

void add_into(OpContext& ctx, const AddInto& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "add_into: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"add_into", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"add_into", "y", a.y}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->add_into(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    ctx.cpu->rows.add_into({.x = a.x.row<float>(begin),
                            .x_stride = a.x.stride(0),
                            .y = a.y.row<float>(begin),
                            .y_stride = a.y.stride(0),
                            .n_rows = end - begin,
                            .d = d});
  });
}

}  // namespace levin::ops
