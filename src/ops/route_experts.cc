// The row-wise parts of moe.h: the activation, and which experts a token goes to.

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/moe.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_groups(const RouteExperts& a, int64_t n_experts, int64_t n_active) {
  LEVIN_CHECK(a.n_groups >= 1 && n_experts % a.n_groups == 0 && (a.n_groups == 1 || n_experts >= 2 * a.n_groups),
              "route_experts: n_groups is {}, which does not cut {} experts into equal groups of two or more",
              a.n_groups, n_experts);
  LEVIN_CHECK(a.n_groups_kept >= 1 && a.n_groups_kept <= a.n_groups, "route_experts: n_groups_kept is {} of {} groups",
              a.n_groups_kept, a.n_groups);
  LEVIN_CHECK(n_active >= 1 && n_active <= n_experts / a.n_groups * a.n_groups_kept,
              "route_experts: {} top-k indices from {} groups of {} experts", n_active, a.n_groups_kept,
              n_experts / a.n_groups);
}

}  // namespace

void silu_mul(OpContext& ctx, const SiluMul& a) {
  const OpTimer timer(ctx, OpKind::kFfn);
  LEVIN_CHECK(a.gate.rank() == 2, "silu_mul: gate is {}, expected f32 [T, F]", a.gate.describe());
  const int64_t n_rows = a.gate.dim(0), d = a.gate.dim(1);
  check_view({"silu_mul", "gate", a.gate}, DType::kF32, {n_rows, d});
  check_view({"silu_mul", "up", a.up}, DType::kF32, {n_rows, d});
  check_view({"silu_mul", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->silu_mul(a);
}

void route_experts(OpContext& ctx, const RouteExperts& a) {
  const OpTimer timer(ctx, OpKind::kRouteExperts);
  LEVIN_CHECK(a.logits.rank() == 2, "route_experts: logits is {}, expected f32 [T, E]", a.logits.describe());
  LEVIN_CHECK(a.topk.rank() == 2, "route_experts: topk is {}, expected i32 [T, A]", a.topk.describe());
  const int64_t n_rows = a.logits.dim(0), n_experts = a.logits.dim(1), n_active = a.topk.dim(1);
  check_view({"route_experts", "logits", a.logits}, DType::kF32, {n_rows, n_experts});
  if (!a.bias.empty()) check_view({"route_experts", "bias", a.bias}, DType::kF32, {n_experts});
  check_view({"route_experts", "topk", a.topk}, DType::kI32, {n_rows, n_active});
  check_view({"route_experts", "weights", a.weights}, DType::kF32, {n_rows, n_active});
  if (!a.faults.empty()) check_view({"route_experts", "faults", a.faults}, DType::kI32, {n_rows});
  if (!a.chosen.empty()) {
    check_view({"route_experts", "chosen", a.chosen}, DType::kI32, {a.chosen.dim(0), n_active});
    LEVIN_CHECK(!a.tokens.empty() || a.chosen.dim(0) == n_rows,
                "route_experts: chosen is {} for {} rows without tokens", a.chosen.describe(), n_rows);
  }
  if (!a.tokens.empty()) check_view({"route_experts", "tokens", a.tokens}, DType::kI32, {n_rows});
  if (!a.slot.empty()) check_view({"route_experts", "slot", a.slot}, DType::kI32, {n_rows});
  check_groups(a, n_experts, n_active);
  ctx.backend->route_experts(a);
}

}  // namespace levin::ops
