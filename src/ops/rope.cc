#include "ops/rope.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void rope(OpContext& ctx, const Rope& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  LEVIN_CHECK(a.x.rank() == 3 && a.x.dim(2) % 2 == 0, "rope: x is {}, expected f32 [T, H, Dr] with even Dr",
              a.x.describe());
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  check_view({"rope", "x", a.x}, DType::kF32, {n_rows, n_heads, d});
  check_view({"rope", "cos", a.cos}, DType::kF32, {n_rows, d / 2});
  check_view({"rope", "sin", a.sin}, DType::kF32, {n_rows, d / 2});
  ctx.backend->rope(a);
}

void rope_table(OpContext& ctx, const RopeTable& a) {
  const OpTimer timer(ctx, OpKind::kRope);
  LEVIN_CHECK(a.positions.rank() == 1, "rope_table: positions is {}, expected i32 [T]", a.positions.describe());
  LEVIN_CHECK(a.frequencies != nullptr, "rope_table: frequencies is null");
  const int64_t n_rows = a.positions.dim(0), n_pairs = static_cast<int64_t>(a.frequencies->size());
  check_view({"rope_table", "positions", a.positions}, DType::kI32, {n_rows});
  check_view({"rope_table", "cos", a.cos}, DType::kF32, {n_rows, n_pairs});
  check_view({"rope_table", "sin", a.sin}, DType::kF32, {n_rows, n_pairs});
  ctx.backend->rope_table(a);
}

}  // namespace levin::ops
