// Experts: who runs a token, and the block around their grouped products.
#include "ops/moe.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/plain/faults.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"

namespace levin {
namespace {

constexpr std::string_view kOp = "expert_ffn";
constexpr int64_t kMaxPairs = 65535;  // rows of one launch around the grouped products

int64_t token_bytes(const ops::ExpertFfn& a, int64_t d_hidden) {
  return ops::tuned_token_bytes({.d_model = a.x.dim(1),
                                 .d_hidden = d_hidden,
                                 .d_shared = a.shared == nullptr ? 0 : a.shared->gate.n(),
                                 .n_active = a.topk.dim(1)});
}

ProductWeights group_weights(const ops::ExpertStack& stack, bool gate_up) {
  const Buffer& data = gate_up ? stack.gate_up : stack.down;
  const Buffer& scales = gate_up ? stack.gate_up_scales : stack.down_scales;
  return {.dtype = stack.dtype,
          .data = data.data(),
          .scales = reinterpret_cast<const float*>(scales.data()),
          .has_wide_scales = stack.has_wide_scales,
          .n = static_cast<int>(gate_up ? 2 * stack.d_hidden : stack.d_model),
          .k = static_cast<int>(gate_up ? stack.d_model : stack.d_hidden),
          .n_groups = static_cast<int>(stack.n_experts)};
}

// Whether one more matrix stands after a stack of such.
bool follows(const ProductWeights& w, const ProductWeights& stack) {
  const int64_t n_scales = (stack.n + kWeightBlock - 1) / kWeightBlock * ((stack.k + kWeightBlock - 1) / kWeightBlock);
  return w.dtype == stack.dtype && w.dtype == DType::kF8E4M3 && w.n == stack.n && w.k == stack.k &&
         w.data == stack.data + int64_t{stack.n_groups} * stack.n * stack.k &&
         w.scales == stack.scales + stack.n_groups * n_scales;
}

OpForm form_of(const ops::RouteExperts& a) {
  return {.op = "route_experts",
          .n_experts = a.logits.dim(1),
          .n_active = a.topk.dim(1),
          .n_groups = a.n_groups,
          .other_scores = a.score != ops::ExpertScore::kSigmoid || !a.chosen.empty()};
}

bool is_dense(const View& out) { return out.contiguous() && is_aligned_16(out.bytes()); }

bool takes_routing(const ops::RouteExperts& a) { return why_not_sm90(form_of(a)).empty() && a.logits.contiguous(); }

cuda::RouteTokens tuned(const ops::RouteExperts& a) {
  constexpr std::string_view kRoute = "route_experts";
  return {.logits = dense_data<float>(kRoute, "logits", a.logits),
          .bias = optional_data<float>(kRoute, "bias", a.bias),
          .slot = optional_data<int32_t>(kRoute, "slot", a.slot),
          .topk = dense_data<int32_t>(kRoute, "topk", a.topk),
          .weights = dense_data<float>(kRoute, "weights", a.weights),
          .fault = optional_data<int32_t>(kRoute, "faults", a.faults),
          .fault_bit = cuda::plain::kNanExpertScore,
          .n_tokens = static_cast<int>(a.logits.dim(0)),
          .n_experts = static_cast<int>(a.logits.dim(1)),
          .n_active = static_cast<int>(a.topk.dim(1)),
          .n_groups = a.n_groups,
          .n_groups_kept = a.n_groups_kept,
          .normalize = a.normalize,
          .factor = a.factor};
}

}  // namespace

void OpsOnCuda::route_experts(const ops::RouteExperts& a) {
  if (!takes_routing(a)) return PlainCuda::route_experts(a);
  const Scratch scratch(arena_);
  cuda::RouteTokens rows = tuned(a);
  if (rows.bias == nullptr) {
    std::byte* zeros = arena_.allocate_bytes(rows.n_experts * 4);
    cuda::fill_bytes(stream_, zeros, 0, rows.n_experts * 4);
    rows.bias = reinterpret_cast<const float*>(zeros);
  }
  cuda::route_tokens(rows, stream_.handle());
}

OpsOnCuda::BlockWeights OpsOnCuda::stack_weights(const ops::ExpertFfn& a) {
  const ops::ExpertStack& stack = *a.stack;
  LEVIN_CHECK(stack.d_model == a.x.dim(1), "{}: x is {}, the experts are {} wide", kOp, a.x.describe(), stack.d_model);
  LEVIN_CHECK(a.topk.dim(1) >= 1 && a.topk.dim(1) <= cuda::kMaxActive,
              "{}: {} top-k indices of a token; stacks have 1 to {}", kOp, a.topk.dim(1), cuda::kMaxActive);
  LEVIN_CHECK(!a.weigh_hidden, "{}: weights that multiply what goes into down, of experts in a stack", kOp);
  LEVIN_CHECK(a.shared == nullptr || a.shared->gate.dtype() == stack.dtype,
              "{}: the shared block is {}, the experts {}; with a stack they have one type", kOp,
              a.shared == nullptr ? "" : dtype_name(a.shared->gate.dtype()), dtype_name(stack.dtype));
  return {.dtype = stack.dtype,
          .gate = {},
          .up = {},
          .down = group_weights(stack, false),
          .gate_up = group_weights(stack, true),
          .d_hidden = stack.d_hidden};
}

// The rows of the products of all experts, each group's together.
ProductRows OpsOnCuda::expert_rows(const ops::ExpertFfn& a, DType weights, const cuda::PlanRows& plan,
                                   const cuda::RouteTokens* route) {
  const int n_rows = plan.n_rows(), d = static_cast<int>(a.x.dim(1));
  const ProductRows rows{
      .x = allocate_rounded(weights, n_rows, d),
      .n_rows = n_rows,
      .rows_per_group = (plan.n_tokens * plan.n_active + plan.n_experts_here - 1) / plan.n_experts_here,
      .group_begin = plan.plan.group_begin};
  if (plan.n_tokens <= cuda::kMaxTokensTogether) {
    const View x = aligned_rows(a.x);
    cuda::plan_and_round({.route = route != nullptr ? *route : cuda::RouteTokens{},
                          .plan = plan,
                          .input = {.x = device_bytes(kOp, "x", x),
                                    .x_is_f32 = x.dtype() == DType::kF32,
                                    .x_ld = x.stride(0),
                                    .out = rows.x,
                                    .n_tokens = plan.n_tokens,
                                    .k = d}},
                         stream_.handle());
    return rows;
  }
  const cuda::QuantizedRows x = round_input(kOp, a.x, weights);
  cuda::plan_rows(plan, stream_.handle());
  cuda::gather_rows(
      {.from = x, .plan = plan.plan, .out = rows.x, .n_rows = n_rows, .n_groups = plan.n_groups(), .k = d},
      stream_.handle());
  return rows;
}

// The same experts with the shared block as one more, where it stands after them and the products take so many.
std::optional<OpsOnCuda::BlockWeights> OpsOnCuda::with_shared(const ops::ExpertFfn& a, const BlockWeights& experts) {
  if (a.shared == nullptr || a.stack != nullptr) return std::nullopt;
  if (!cuda::shared_may_be_a_group(a.x.dim(0), experts.down.n_groups)) return std::nullopt;
  const BlockWeights shared = block_weights(*a.shared);
  if (shared.joined() != experts.joined()) return std::nullopt;
  BlockWeights all = experts;
  for (ProductWeights BlockWeights::* part :
       {&BlockWeights::gate, &BlockWeights::up, &BlockWeights::gate_up, &BlockWeights::down}) {
    if ((experts.*part).n == 0) continue;
    if (!follows(shared.*part, experts.*part)) return std::nullopt;
    ++(all.*part).n_groups;
  }
  return all;
}

void OpsOnCuda::run_experts(const ops::ExpertFfn& a, const BlockWeights& experts, const cuda::RouteTokens* route) {
  const int n_tokens = static_cast<int>(a.x.dim(0)), n_active = static_cast<int>(a.topk.dim(1));
  const int64_t d = a.x.dim(1);
  const Scratch scratch(arena_);
  const auto allocate_ids = [&](int64_t n) { return reinterpret_cast<int32_t*>(arena_.allocate_bytes(n * 4)); };
  const std::optional<BlockWeights> all = with_shared(a, experts);
  cuda::PlanRows plan = {.topk = dense_data<int32_t>(kOp, "topk", a.topk),
                         .n_tokens = n_tokens,
                         .n_active = n_active,
                         .n_experts_here = experts.down.n_groups,
                         .has_shared = all.has_value()};
  plan.plan = {.group_begin = allocate_ids(plan.n_groups() + 1),
               .token_of = allocate_ids(plan.n_rows()),
               .row_of = allocate_ids(n_tokens * n_active)};
  const ProductRows rows = expert_rows(a, experts.dtype, plan, route);
  std::byte* y = arena_.allocate_bytes(rows.n_rows * d * 2);
  run_block(rows, all ? *all : experts, a.limit, y, false);
  std::byte* shared = nullptr;
  if (a.shared != nullptr && !all) {
    shared = arena_.allocate_bytes(n_tokens * d * 2);
    const cuda::QuantizedRows x = round_input(kOp, a.x, experts.dtype);
    run_block({.x = x, .n_rows = n_tokens, .rows_per_group = n_tokens}, block_weights(*a.shared), a.limit, shared,
              false);
  }
  LEVIN_CHECK(!a.add || is_dense(a.out), "{}: rows are added to {}", kOp, a.out.describe());
  const View out = dense_out(a.out);
  cuda::combine_rows({.y = y,
                      .weights = dense_data<float>(kOp, "weights", a.weights),
                      .row_of = plan.plan.row_of,
                      .shared = shared,
                      .first_shared = all ? plan.plan.group_begin + plan.n_experts_here : nullptr,
                      .out = dense_data<float>(kOp, "out", out),
                      .add = a.add,
                      .n_tokens = n_tokens,
                      .n_active = n_active,
                      .d_model = static_cast<int>(d)},
                     stream_.handle());
  finish(out, a.out);
}

OpsOnCuda::BlockWeights OpsOnCuda::weights_of_experts(const ops::ExpertFfn& a) {
  return a.stack != nullptr ? stack_weights(a) : expert_weights(a);
}

// As half of the scratch has room for.
int64_t OpsOnCuda::tokens_at_once(const ops::ExpertFfn& a, const BlockWeights& experts) const {
  const int64_t fit = std::min(scratch_bytes_ / 2 / token_bytes(a, experts.d_hidden), kMaxPairs / a.topk.dim(1));
  return std::max<int64_t>(1, fit);
}

void OpsOnCuda::run_all_experts(const ops::ExpertFfn& a) {
  const BlockWeights experts = weights_of_experts(a);
  const int64_t step = even_step(a.x.dim(0), tokens_at_once(a, experts));
  for (int64_t t = 0; t < a.x.dim(0); t += step) {
    const int64_t n = std::min(step, a.x.dim(0) - t);
    ops::ExpertFfn slice = a;
    slice.x = a.x.slice_first(t, n);
    slice.topk = a.topk.slice_first(t, n);
    slice.weights = a.weights.slice_first(t, n);
    slice.out = a.out.slice_first(t, n);
    run_experts(slice, experts);
  }
}

void OpsOnCuda::expert_ffn(const ops::ExpertFfn& a) {
  takes_experts(a) ? run_all_experts(a) : PlainCuda::expert_ffn(a);
}

bool OpsOnCuda::add_expert_ffn(const ops::ExpertFfn& a) {
  if (!takes_experts(a) || !is_dense(a.out)) return false;
  run_all_experts(a);
  return true;
}

bool OpsOnCuda::routed_ffn(const ops::RoutedFfn& a) {
  const ops::ExpertFfn& experts = a.experts;
  const int64_t n_tokens = experts.x.dim(0);
  const bool fits = takes_routing(a.route) && !a.route.bias.empty() && takes_experts(experts) && n_tokens > 0 &&
                    n_tokens <= cuda::kMaxTokensRouted && (!experts.add || is_dense(experts.out));
  if (!fits) return false;
  const BlockWeights weights = weights_of_experts(experts);
  if (tokens_at_once(experts, weights) < n_tokens) return false;
  const cuda::RouteTokens route = tuned(a.route);
  run_experts(experts, weights, &route);
  return true;
}

}  // namespace levin
