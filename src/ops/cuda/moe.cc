#include "ops/moe.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/moe.h"
#include "ops/cuda/ops_on_cuda.h"

namespace levin {
namespace {

constexpr std::string_view kOp = "expert_ffn";
constexpr int64_t kMaxPairs = 65535;  // rows of one launch around the grouped products

// Scratch of one token, for each index and once: rounded inputs, gate and up, hidden values, what experts give.
int64_t token_bytes(const ops::ExpertFfn& a) {
  const int64_t d = a.stack->d_model, f = a.stack->d_hidden;
  const int64_t f_shared = a.shared == nullptr ? 0 : a.shared->gate.n();
  return a.topk.dim(1) * (2 * d + 4 * f + 2 * f + 2 * d + 16) + 4 * d + 6 * f_shared + 64;
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

void check_form(const ops::ExpertFfn& a) {
  const ops::ExpertStack& stack = *a.stack;
  LEVIN_CHECK(stack.d_model == a.x.dim(1), "{}: x is {}, the experts are {} wide", kOp, a.x.describe(), stack.d_model);
  LEVIN_CHECK(a.topk.dim(1) >= 1 && a.topk.dim(1) <= cuda::kMaxActive,
              "{}: {} top-k indices of a token; on CUDA 1 to {}", kOp, a.topk.dim(1), cuda::kMaxActive);
  LEVIN_CHECK(!a.weigh_hidden, "{}: there is no CUDA kernel for weights that multiply what goes into down", kOp);
  LEVIN_CHECK(a.shared == nullptr || a.shared->gate.dtype() == stack.dtype,
              "{}: the shared block is {}, the experts {}; on CUDA they have one type", kOp,
              a.shared == nullptr ? "" : dtype_name(a.shared->gate.dtype()), dtype_name(stack.dtype));
}

}  // namespace

void OpsOnCuda::route_experts(const ops::RouteExperts& a) {
  constexpr std::string_view kRoute = "route_experts";
  const int64_t n_experts = a.logits.dim(1), n_active = a.topk.dim(1);
  LEVIN_CHECK(a.score == ops::ExpertScore::kSigmoid && a.chosen.empty() && a.slot.empty(),
              "{}: on CUDA scores are sigmoid, the best experts win, and no row is padding", kRoute);
  LEVIN_CHECK(n_experts <= cuda::kMaxExperts && n_active <= cuda::kMaxActive && a.n_groups <= 32,
              "{}: {} top-k indices of {} experts in {} groups; on CUDA up to {} of {} in 32", kRoute, n_active,
              n_experts, a.n_groups, cuda::kMaxActive, cuda::kMaxExperts);
  const Scratch scratch(arena_);
  const float* bias = nullptr;
  if (a.bias.empty()) {
    std::byte* zeros = arena_.allocate_bytes(n_experts * 4);
    cuda::fill_bytes(stream_, zeros, 0, n_experts * 4);
    bias = reinterpret_cast<const float*>(zeros);
  } else {
    bias = dense_data<float>(kRoute, "bias", a.bias);
  }
  cuda::RouteTokens rows;
  rows.logits = dense_data<float>(kRoute, "logits", a.logits);
  rows.bias = bias;
  rows.topk = dense_data<int32_t>(kRoute, "topk", a.topk);
  rows.weights = dense_data<float>(kRoute, "weights", a.weights);
  rows.nan_row = &faults()->nan_row;
  rows.n_tokens = static_cast<int>(a.logits.dim(0));
  rows.n_experts = static_cast<int>(n_experts);
  rows.n_active = static_cast<int>(n_active);
  rows.n_groups = a.n_groups;
  rows.n_groups_kept = a.n_groups_kept;
  rows.normalize = a.normalize;
  rows.factor = a.factor;
  cuda::route_tokens(rows, stream_.handle());
}

void OpsOnCuda::run_experts(const ops::ExpertFfn& a) {
  const ops::ExpertStack& stack = *a.stack;
  const int n_tokens = static_cast<int>(a.x.dim(0)), n_active = static_cast<int>(a.topk.dim(1));
  const int n_pairs = n_tokens * n_active, n_experts = static_cast<int>(stack.n_experts);
  const int64_t d = stack.d_model, f = stack.d_hidden;
  const Scratch scratch(arena_);
  const auto allocate_ids = [&](int64_t n) { return reinterpret_cast<int32_t*>(arena_.allocate_bytes(n * 4)); };
  const cuda::QuantizedRows x = round_input(kOp, a.x, stack.dtype);
  const cuda::RowPlan plan = {
      .group_begin = allocate_ids(n_experts + 1), .token_of = allocate_ids(n_pairs), .row_of = allocate_ids(n_pairs)};
  cuda::plan_rows({.topk = dense_data<int32_t>(kOp, "topk", a.topk),
                   .counts = allocate_ids(n_experts),
                   .plan = plan,
                   .n_tokens = n_tokens,
                   .n_active = n_active,
                   .n_experts_here = n_experts},
                  stream_.handle());
  ProductRows rows{.x = allocate_rounded(stack.dtype, n_pairs, d),
                   .n_rows = n_pairs,
                   .rows_per_group = (n_pairs + n_experts - 1) / n_experts,
                   .group_begin = plan.group_begin};
  cuda::gather_rows({.from = x,
                     .plan = plan,
                     .out = rows.x,
                     .n_pairs = n_pairs,
                     .n_experts_here = n_experts,
                     .k = static_cast<int>(d)},
                    stream_.handle());
  std::byte* gate_up = arena_.allocate_bytes(int64_t{n_pairs} * 2 * f * 2);
  multiply(rows, group_weights(stack, true), gate_up, false);
  rows.x = allocate_rounded(stack.dtype, n_pairs, f);
  cuda::silu_mul_quantize({.gate = gate_up,
                           .up = gate_up + f * 2,
                           .ld = 2 * f,
                           .limit = a.limit,
                           .out = rows.x,
                           .n_tokens = n_pairs,
                           .d_hidden = static_cast<int>(f)},
                          stream_.handle());
  std::byte* y = arena_.allocate_bytes(int64_t{n_pairs} * d * 2);
  multiply(rows, group_weights(stack, false), y, false);
  std::byte* shared = nullptr;
  if (a.shared != nullptr) {
    shared = arena_.allocate_bytes(int64_t{n_tokens} * d * 2);
    run_ffn(kOp, {.x = a.x, .weights = a.shared, .limit = a.limit}, x, shared, false);
  }
  cuda::combine_rows({.y = y,
                      .weights = dense_data<float>(kOp, "weights", a.weights),
                      .row_of = plan.row_of,
                      .shared = shared,
                      .out = dense_data<float>(kOp, "out", a.out),
                      .n_tokens = n_tokens,
                      .n_active = n_active,
                      .d_model = static_cast<int>(d)},
                     stream_.handle());
}

// As many tokens at a time as half of the scratch has room for.
void OpsOnCuda::expert_ffn(const ops::ExpertFfn& a) {
  if (a.stack == nullptr) return PlainCuda::expert_ffn(a);
  check_form(a);
  const int64_t n_tokens = a.x.dim(0);
  const int64_t fit = std::min(scratch_bytes_ / 2 / token_bytes(a), kMaxPairs / a.topk.dim(1));
  const int64_t step = std::max<int64_t>(1, fit);
  for (int64_t t = 0; t < n_tokens; t += step) {
    const int64_t n = std::min(step, n_tokens - t);
    ops::ExpertFfn slice = a;
    slice.x = a.x.slice_first(t, n);
    slice.topk = a.topk.slice_first(t, n);
    slice.weights = a.weights.slice_first(t, n);
    slice.out = a.out.slice_first(t, n);
    run_experts(slice);
  }
}

}  // namespace levin
