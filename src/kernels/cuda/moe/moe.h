// Mixture of experts around the grouped products: choosing experts, sorting rows by expert, adding up what comes back.
//
//   route_tokens   selects and weights of each token, bit for bit as ops/moe.h, route_experts, on the CPU
//   plan_rows      sorts the (token, index) pairs by expert, ascending tokens within one: always one order. The shared expert
//                  may be one more group, of all tokens
//   gather_rows    copies the e4m3 row and scales of each planned row's token to its place: the input of gemm_fp8 with
//                  group_begin; or its bf16 row, for gemm_mxfp4
//   plan_and_round plan_rows, quantize_fp8 and gather_rows by one launch, of few tokens; of fewer, route_tokens too
//   combine_rows   total = fma(weight, y of the index, total) over t's top-k indices in ascending expert id, from zero,
//                  then + shared[t]; out[t] = total, or out[t] + total
//
// Experts of this device are first_expert .. first_expert + n_experts_here - 1; pairs of other experts have no row.
// Everything is read on the device: the same launches serve any routing, also in a graph.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/grouped_shape.h"
#include "kernels/cuda/rows/quantize_fp8.h"

struct CUstream_st;

namespace levin::cuda {

constexpr int kMaxExperts = 512;
constexpr int kMaxActive = 16;

struct RouteTokens {
  const float* logits = nullptr;  // [T, E]
  const float* bias = nullptr;    // [E]
  const int32_t* slot = nullptr;  // [T], may be null: a token with a negative slot is padding and selects -1
  int32_t* topk = nullptr;        // [T, A], ascending
  float* weights = nullptr;       // [T, A]
  // [T], may be null. A token with a score that is NaN selects the first experts with weight 0, and `fault_bit` is set here
  int32_t* fault = nullptr;
  int32_t fault_bit = 1;
  int n_tokens = 0;
  int n_experts = 0;  // E, up to kMaxExperts
  int n_active = 0;   // A, up to kMaxActive
  int n_groups = 1;   // divides E into groups of two or more, up to 32
  int n_groups_kept = 1;
  bool normalize = true;
  float factor = 1;
};
void route_tokens(const RouteTokens& a, CUstream_st* stream);

struct RowPlan {
  int32_t* group_begin = nullptr;  // [n_groups() + 1]
  int32_t* token_of =
      nullptr;  // [n_rows()]: the token of a sorted row; only the first group_begin[n_groups()] are written
  int32_t* row_of = nullptr;  // [T, A]: the sorted row of a pair, -1 for experts elsewhere
};

struct PlanRows {
  const int32_t* topk = nullptr;  // [T, A], each a row of different ids; those outside the experts here select none
  RowPlan plan;
  int n_tokens = 0;
  int n_active = 0;
  int first_expert = 0;
  int n_experts_here = 0;
  bool has_shared = false;  // the last group has all tokens, ascending

  int n_groups() const { return n_experts_here + (has_shared ? 1 : 0); }
  int n_rows() const { return n_tokens * (n_active + (has_shared ? 1 : 0)); }  // at most
};
void plan_rows(const PlanRows& a, CUstream_st* stream);

struct GatherRows {
  QuantizedRows from;  // [T, K], in either form
  RowPlan plan;
  QuantizedRows out;  // [n_rows, K] in the same form, only planned rows are written
  int n_rows = 0;     // of the plan, at most
  int n_groups = 0;   // of the plan
  int k = 0;          // a multiple of 16
};
void gather_rows(const GatherRows& a, CUstream_st* stream);

// Tokens up to which the shared block is one more expert: of more it reads its weights fewer times as a product of its own.
constexpr int kMaxTokensOfShared = 32;
// The same, and that the products have a group left for it.
constexpr bool shared_may_be_a_group(int64_t n_tokens, int n_experts) {
  return n_tokens <= kMaxTokensOfShared && n_experts < kMaxGroups;
}
constexpr int kMaxTokensTogether = 128;  // beyond, plans of all blocks take longer than two launches,
constexpr int kMaxTokensRouted = 32;     // and choices of all blocks than one
struct PlanAndRound {
  RouteTokens route;  // of the same tokens, whose topk the plan reads; without logits they are routed
  PlanRows plan;
  QuantizeFp8 input;  // of x [T, K]; `out` has the planned rows
};
void plan_and_round(const PlanAndRound& a, CUstream_st* stream);

struct CombineRows {
  const void* y = nullptr;                // [rows, D] bf16, by sorted row
  const float* weights = nullptr;         // [T, A]
  const int32_t* row_of = nullptr;        // [T, A]
  const void* shared = nullptr;           // [T, D] bf16, may be null
  const int32_t* first_shared = nullptr;  // instead: on the device, the row of y from which those of the tokens follow
  float* out = nullptr;                   // [T, D], overwritten,
  bool add = false;                       // or added to
  int n_tokens = 0;
  int n_active = 0;
  int d_model = 0;  // D, a multiple of 8
};
void combine_rows(const CombineRows& a, CUstream_st* stream);

}  // namespace levin::cuda
