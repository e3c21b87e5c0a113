// The row-wise parts of moe.h: the activation, and which experts a token goes to.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/moe.h"
#include "ops/op_times.h"

namespace levin::ops {

void silu_mul(OpContext& ctx, const SiluMul& a) {
  const OpTimer timer(ctx, OpKind::kFfn);
  LEVIN_CHECK(a.gate.rank() == 2, "silu_mul: gate is {}, expected f32 [T, F]", a.gate.describe());
  const int64_t n_rows = a.gate.dim(0), d = a.gate.dim(1);
  check_view({"silu_mul", "gate", a.gate}, DType::kF32, {n_rows, d});
  check_view({"silu_mul", "up", a.up}, DType::kF32, {n_rows, d});
  check_view({"silu_mul", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->silu_mul(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    ctx.cpu->rows.silu_mul({.gate = a.gate.row<float>(begin),
                            .gate_stride = a.gate.stride(0),
                            .up = a.up.row<float>(begin),
                            .up_stride = a.up.stride(0),
                            .limit = a.limit,
                            .out = a.out.row<float>(begin),
                            .out_stride = a.out.stride(0),
                            .n_rows = end - begin,
                            .d = d});
  });
}

namespace {

void check_groups(const RouteExperts& a, int64_t n_experts, int64_t n_active) {
  LEVIN_CHECK(a.n_groups >= 1 && n_experts % a.n_groups == 0 && (a.n_groups == 1 || n_experts >= 2 * a.n_groups),
              "route_experts: n_groups is {}, which does not cut {} experts into equal groups of two or more",
              a.n_groups, n_experts);
  LEVIN_CHECK(a.n_groups_kept >= 1 && a.n_groups_kept <= a.n_groups, "route_experts: n_groups_kept is {} of {} groups",
              a.n_groups_kept, a.n_groups);
  LEVIN_CHECK(n_active >= 1 && n_active <= n_experts / a.n_groups * a.n_groups_kept,
              "route_experts: {} picks from {} groups of {} experts", n_active, a.n_groups_kept,
              n_experts / a.n_groups);
}

// The chosen experts of every row, ascending: [T, A].
View chosen_experts(Arena& arena, const RouteExperts& a, int64_t n_experts) {
  const int64_t n_rows = a.picks.dim(0), n_active = a.picks.dim(1);
  const View out = arena.allocate(DType::kI32, {n_rows, n_active});
  for (int64_t t = 0; t < n_rows; ++t) {
    const int64_t from = a.tokens.empty() ? t : a.tokens.data<int32_t>()[t];
    LEVIN_CHECK(from >= 0 && from < a.chosen.dim(0), "route_experts: tokens[{}] is {}, chosen is {}", t, from,
                a.chosen.describe());
    int32_t* experts = out.row<int32_t>(t);
    std::copy_n(a.chosen.row<int32_t>(from), n_active, experts);
    std::sort(experts, experts + n_active);
    for (int64_t i = 0; i < n_active; ++i) {
      LEVIN_CHECK(experts[i] >= 0 && experts[i] < n_experts && (i == 0 || experts[i - 1] < experts[i]),
                  "route_experts: chosen[{}] has {}, expected different ids below {}", from, experts[i], n_experts);
    }
  }
  return out;
}

// What a row gets whose scores cannot be ranked.
void take_first_experts(const RouteExperts& a, int64_t row) {
  int32_t* picks = a.picks.row<int32_t>(row);
  std::iota(picks, picks + a.picks.dim(1), 0);
  std::fill_n(a.weights.row<float>(row), a.weights.dim(1), 0.0f);
  mark_fault(a.faults, row);
}

}  // namespace

void route_experts(OpContext& ctx, const RouteExperts& a) {
  const OpTimer timer(ctx, OpKind::kRouteExperts);
  LEVIN_CHECK(a.logits.rank() == 2, "route_experts: logits is {}, expected f32 [T, E]", a.logits.describe());
  LEVIN_CHECK(a.picks.rank() == 2, "route_experts: picks is {}, expected i32 [T, A]", a.picks.describe());
  const int64_t n_rows = a.logits.dim(0), n_experts = a.logits.dim(1), n_active = a.picks.dim(1);
  check_view({"route_experts", "logits", a.logits}, DType::kF32, {n_rows, n_experts});
  if (!a.bias.empty()) check_view({"route_experts", "bias", a.bias}, DType::kF32, {n_experts});
  check_view({"route_experts", "picks", a.picks}, DType::kI32, {n_rows, n_active});
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
  if (ctx.device == Device::kCuda) return ctx.cuda->route_experts(a);

  const ArenaScope scope(*ctx.arena);
  const View chosen = a.chosen.empty() ? View() : chosen_experts(*ctx.arena, a, n_experts);
  const View scratch = ctx.arena->allocate(DType::kF32, {ctx.pool->n_threads(), 3 * n_experts});
  // The kernel stops at a row that has no ranking; behind that it is called again.
  const auto route = [&](int64_t begin, int64_t end, int thread) {
    return ctx.cpu->rows.route_experts({.logits = a.logits.row<float>(begin),
                                        .logits_stride = a.logits.stride(0),
                                        .softplus = a.score == ExpertScore::kSqrtSoftplus,
                                        .bias = a.bias.empty() ? nullptr : a.bias.data<float>(),
                                        .chosen = chosen.empty() ? nullptr : chosen.row<int32_t>(begin),
                                        .chosen_stride = chosen.empty() ? 0 : chosen.stride(0),
                                        .n_rows = end - begin,
                                        .n_experts = n_experts,
                                        .n_groups = a.n_groups,
                                        .n_groups_kept = a.n_groups_kept,
                                        .n_active = n_active,
                                        .normalize = a.normalize,
                                        .factor = a.factor,
                                        .picks = a.picks.row<int32_t>(begin),
                                        .picks_stride = a.picks.stride(0),
                                        .weights = a.weights.row<float>(begin),
                                        .weights_stride = a.weights.stride(0),
                                        .scratch = scratch.row<float>(thread)});
  };
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, n_experts), [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t bad = route(begin, end, thread);
      if (bad == kernels::kNoRow) return;
      take_first_experts(a, begin + bad);
      begin += bad + 1;
    }
  });
}

}  // namespace levin::ops
