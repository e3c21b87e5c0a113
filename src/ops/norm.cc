#include "ops/norm.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void rms_norm(OpContext& ctx, const RmsNorm& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "rms_norm: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"rms_norm", "x", a.x}, DType::kF32, {n_rows, d});
  if (!a.weight.empty()) check_view({"rms_norm", "weight", a.weight}, DType::kF32, {d});
  check_view({"rms_norm", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->rms_norm(a);
}

void layer_norm(OpContext& ctx, const LayerNorm& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "layer_norm: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"layer_norm", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"layer_norm", "weight", a.weight}, DType::kF32, {d});
  check_view({"layer_norm", "bias", a.bias}, DType::kF32, {d});
  check_view({"layer_norm", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->layer_norm(a);
}

void add_into(OpContext& ctx, const AddInto& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "add_into: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"add_into", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"add_into", "y", a.y}, DType::kF32, {n_rows, d});
  ctx.backend->add_into(a);
}

}  // namespace levin::ops
