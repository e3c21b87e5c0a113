#include "ops/copies.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void copy_rows(OpContext& ctx, const CopyRows& a) {
  const OpTimer timer(ctx, OpKind::kCopies);
  LEVIN_CHECK(a.x.rank() == 2 && (a.x.dtype() == DType::kF32 || a.x.dtype() == DType::kI32),
              "copy_rows: x is {}, expected f32 or i32 [T, D]", a.x.describe());
  LEVIN_CHECK(a.repeat >= 1, "copy_rows: repeat is {}", a.repeat);
  const int64_t n_from = a.x.dim(0), d = a.x.dim(1);
  const int64_t n_rows = a.rows.empty() ? n_from * a.repeat : a.rows.dim(0);
  if (!a.rows.empty()) check_view({"copy_rows", "rows", a.rows}, DType::kI32, {n_rows});
  check_view({"copy_rows", "out", a.out}, a.x.dtype(), {n_rows, d});
  ctx.backend->copy_rows(a);
}

void scale_rows(OpContext& ctx, const ScaleRows& a) {
  const OpTimer timer(ctx, OpKind::kCopies);
  LEVIN_CHECK(a.x.rank() == 2, "scale_rows: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"scale_rows", "x", a.x}, DType::kF32, {n_rows, d});
  if (!a.scale.empty()) check_view({"scale_rows", "scale", a.scale}, DType::kF32, {n_rows, d});
  check_view({"scale_rows", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->scale_rows(a);
}

}  // namespace levin::ops
