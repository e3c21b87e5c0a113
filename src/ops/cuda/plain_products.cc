// Products with weights, and the feed-forward blocks that are made of them.
#include <algorithm>

#include "kernels/cuda/plain/moe.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/matmul.h"
#include "ops/moe.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

plain::ProductInput product_input(std::string_view op, const View& x, const View& scale) {
  plain::ProductInput input{.x = device_bytes(op, "x", x), .dtype = x.dtype(), .ld = x.stride(0)};
  if (scale.empty()) return input;
  input.scale = device_data<float>(op, "x_scale", scale);
  input.scale_ld = scale.stride(0);
  return input;
}

plain::Operand plain_operand(ops::Operand operand) {
  switch (operand) {
    case ops::Operand::kF32:
      return plain::Operand::kF32;
    case ops::Operand::kBF16:
      return plain::Operand::kBF16;
    case ops::Operand::kFp8:
      return plain::Operand::kFp8;
    case ops::Operand::kFp8By32:
      break;
  }
  LEVIN_CHECK(operand == ops::Operand::kF32, "inputs rounded to fp8 in groups of 32, which CUDA has no kernel for");
  return plain::Operand::kF32;
}

plain::FfnWeights ffn_weights(const ops::FfnWeights& w) {
  return {.gate = plain_weights(w.gate),
          .up = plain_weights(w.up),
          .down = plain_weights(w.down),
          .input = plain_operand(w.input),
          .hidden = plain_operand(w.hidden)};
}

plain::FfnWeights expert_weights(std::string_view op, std::span<const ops::FfnWeights> experts) {
  const ops::FfnWeights &first = experts.front(), &last = experts.back();
  const int64_t n = std::ssize(experts);
  return {.gate = plain_weights(op, first.gate, last.gate, n),
          .up = plain_weights(op, first.up, last.up, n),
          .down = plain_weights(op, first.down, last.down, n),
          .input = plain_operand(first.input),
          .hidden = plain_operand(first.hidden)};
}

// Calls run(first row, rows) for as many rows at a time as fit kExpertScratchBytes; at least one.
template <class Run>
void in_slices(int64_t n_rows, int64_t row_bytes, const Run& run) {
  const int64_t step = std::max<int64_t>(1, ops::kExpertScratchBytes / std::max<int64_t>(row_bytes, 1));
  for (int64_t t = 0; t < n_rows; t += step) run(t, std::min(step, n_rows - t));
}

}  // namespace

void PlainCuda::matmul(const ops::Matmul& a) {
  plain::matmul({.x = product_input("matmul", a.x, a.x_scale),
                 .w = plain_weights(*a.w),
                 .out = device_data<float>("matmul", "out", a.out),
                 .out_ld = a.out.stride(0),
                 .n_rows = a.x.dim(0)},
                stream_.handle());
}

void PlainCuda::matmul_per_head(const ops::MatmulPerHead& a) {
  constexpr std::string_view kOp = "matmul_per_head";
  plain::matmul_per_head({.x = product_input(kOp, a.x, View()),
                          .x_head_ld = a.x.stride(1),
                          .w = plain_weights(kOp, a.w.front(), a.w.back(), std::ssize(a.w)),
                          .out = device_data<float>(kOp, "out", a.out),
                          .out_ld = a.out.stride(0),
                          .out_head_ld = a.out.stride(1),
                          .n_rows = a.x.dim(0),
                          .n_heads = a.x.dim(1)},
                         stream_.handle());
}

void PlainCuda::silu_mul(const ops::SiluMul& a) {
  plain::silu_mul({.gate = dense_data<float>("silu_mul", "gate", a.gate),
                   .up = dense_data<float>("silu_mul", "up", a.up),
                   .limit = a.limit,
                   .out = dense_data<float>("silu_mul", "out", a.out),
                   .n_rows = a.gate.dim(0),
                   .d = a.gate.dim(1)},
                  stream_.handle());
}

void PlainCuda::route_experts(const ops::RouteExperts& a) {
  constexpr std::string_view kOp = "route_experts";
  plain::route_experts({.logits = device_data<float>(kOp, "logits", a.logits),
                        .logits_ld = a.logits.stride(0),
                        .softplus = a.score == ops::ExpertScore::kSqrtSoftplus,
                        .bias = optional_data<float>(kOp, "bias", a.bias),
                        .chosen = optional_data<int32_t>(kOp, "chosen", a.chosen),
                        .tokens = optional_data<int32_t>(kOp, "tokens", a.tokens),
                        .slot = optional_data<int32_t>(kOp, "slot", a.slot),
                        .n_groups = a.n_groups,
                        .n_groups_kept = a.n_groups_kept,
                        .normalize = a.normalize,
                        .factor = a.factor,
                        .topk = dense_data<int32_t>(kOp, "topk", a.topk),
                        .weights = dense_data<float>(kOp, "weights", a.weights),
                        .n_rows = a.logits.dim(0),
                        .n_experts = a.logits.dim(1),
                        .n_active = a.topk.dim(1),
                        .fault = optional_data<int32_t>(kOp, "faults", a.faults)},
                       stream_.handle());
}

void PlainCuda::ffn(const ops::Ffn& a) {
  plain::Ffn rows{.x = device_data<float>("ffn", "x", a.x),
                  .x_ld = a.x.stride(0),
                  .weights = ffn_weights(*a.weights),
                  .limit = a.limit,
                  .out = device_data<float>("ffn", "out", a.out),
                  .out_ld = a.out.stride(0)};
  in_slices(a.x.dim(0), plain::ffn_scratch_bytes(rows.weights, 1), [&](int64_t begin, int64_t n) {
    plain::Ffn slice = rows;
    slice.x += begin * rows.x_ld;
    slice.out += begin * rows.out_ld;
    slice.n_rows = n;
    const ArenaScope scope(arena());
    slice.scratch = arena().allocate_bytes(plain::ffn_scratch_bytes(rows.weights, n));
    plain::ffn(slice, stream_.handle());
  });
}

void PlainCuda::expert_ffn(const ops::ExpertFfn& a) {
  constexpr std::string_view kOp = "expert_ffn";
  LEVIN_CHECK(!a.experts.empty(), "{}: no experts", kOp);
  plain::FfnWeights shared;
  if (a.shared != nullptr) shared = ffn_weights(*a.shared);
  plain::ExpertFfn rows{.x = device_data<float>(kOp, "x", a.x),
                        .x_ld = a.x.stride(0),
                        .topk = dense_data<int32_t>(kOp, "topk", a.topk),
                        .weights = dense_data<float>(kOp, "weights", a.weights),
                        .n_active = a.topk.dim(1),
                        .experts = expert_weights(kOp, a.experts),
                        .n_experts = std::ssize(a.experts),
                        .shared = a.shared != nullptr ? &shared : nullptr,
                        .limit = a.limit,
                        .weigh_hidden = a.weigh_hidden,
                        .out = device_data<float>(kOp, "out", a.out),
                        .out_ld = a.out.stride(0),
                        .n_rows = 1};
  in_slices(a.x.dim(0), plain::expert_ffn_scratch_bytes(rows), [&](int64_t begin, int64_t n) {
    plain::ExpertFfn slice = rows;
    slice.x += begin * rows.x_ld;
    slice.topk += begin * rows.n_active;
    slice.weights += begin * rows.n_active;
    slice.out += begin * rows.out_ld;
    slice.n_rows = n;
    const ArenaScope scope(arena());
    slice.scratch = arena().allocate_bytes(plain::expert_ffn_scratch_bytes(slice));
    plain::expert_ffn(slice, stream_.handle());
  });
}

}  // namespace levin
