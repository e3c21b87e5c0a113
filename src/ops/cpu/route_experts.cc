// The row-wise parts of moe.h: the activation, and which experts a token goes to.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"
#include "ops/moe.h"

namespace levin {
namespace {

// The chosen experts of every row, ascending: [T, A].
View chosen_experts(Arena& arena, const ops::RouteExperts& a, int64_t n_experts) {
  const int64_t n_rows = a.topk.dim(0), n_active = a.topk.dim(1);
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
void take_first_experts(const ops::RouteExperts& a, int64_t row) {
  int32_t* topk = a.topk.row<int32_t>(row);
  std::iota(topk, topk + a.topk.dim(1), 0);
  std::fill_n(a.weights.row<float>(row), a.weights.dim(1), 0.0f);
  mark_fault(a.faults, row);
}

}  // namespace

void CpuBackend::silu_mul(const ops::SiluMul& a) {
  const int64_t n_rows = a.gate.dim(0), d = a.gate.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    kernels_.rows.silu_mul({.gate = a.gate.row<float>(begin),
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

void CpuBackend::route_experts(const ops::RouteExperts& a) {
  const int64_t n_rows = a.logits.dim(0), n_experts = a.logits.dim(1), n_active = a.topk.dim(1);
  const ArenaScope scope(arena_);
  const View chosen = a.chosen.empty() ? View() : chosen_experts(arena_, a, n_experts);
  const View scratch = arena_.allocate(DType::kF32, {pool_.n_threads(), 3 * n_experts});
  // The kernel stops at a row that has no ranking; after that row it is called again.
  const auto route = [&](int64_t begin, int64_t end, int thread) {
    return kernels_.rows.route_experts({.logits = a.logits.row<float>(begin),
                                        .logits_stride = a.logits.stride(0),
                                        .softplus = a.score == ops::ExpertScore::kSqrtSoftplus,
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
                                        .topk = a.topk.row<int32_t>(begin),
                                        .topk_stride = a.topk.stride(0),
                                        .weights = a.weights.row<float>(begin),
                                        .weights_stride = a.weights.stride(0),
                                        .scratch = scratch.row<float>(thread)});
  };
  pool_.parallel_for(n_rows, row_grain(n_rows, n_experts), [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t bad = route(begin, end, thread);
      if (bad == kernels::kNoRow) return;
      take_first_experts(a, begin + bad);
      begin += bad + 1;
    }
  });
}

}  // namespace levin
