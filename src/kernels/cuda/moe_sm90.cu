// Routing, sorting, gathering and combining for the experts; contracts in moe.h.
//
//   route    a warp a token: scores in shared memory, groups one a lane, then n_active rounds of a warp-wide maximum
//   plan     a warp an expert, twice: count the tokens that selected it, then number them; 32 tokens a step, ranks from
//   ballots gather   a block a sorted row, 16 bytes a thread combine  a thread 8 columns of a token
#include <cuda_bf16.h>

#include "kernels/cuda/moe.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/tiles/f32_math.cuh"

namespace levin::cuda {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kLaneExperts = kMaxExperts / 32;
constexpr float kMinusInfinity = -__builtin_huge_valf();

struct RouteScores {
  float score[kMaxExperts];
  float biased[kMaxExperts];
};

// Sets to -infinity what lies outside the best groups; lane g holds group g.
__device__ __forceinline__ void mask_groups(const RouteTokens& a, RouteScores& s, int lane) {
  const int size = a.n_experts / a.n_groups;
  float sum = kMinusInfinity;
  if (lane < a.n_groups) {
    const float* x = s.biased + lane * size;
    float first = x[0] > x[1] ? x[0] : x[1], second = x[0] > x[1] ? x[1] : x[0];
    for (int i = 2; i < size; ++i) {
      if (x[i] > first) {
        second = first;
        first = x[i];
      } else if (x[i] > second) {
        second = x[i];
      }
    }
    sum = __fadd_rn(first, second);
  }
  int n_better = 0;
  for (int other = 0; other < a.n_groups; ++other) {
    const float value = __shfl_sync(0xffffffff, sum, other);
    n_better += value > sum || (value == sum && other < lane);
  }
  __syncwarp();  // groups are read across lanes before they are masked
  const uint32_t kept = __ballot_sync(0xffffffff, lane < a.n_groups && n_better < a.n_groups_kept);
  for (int e = lane; e < a.n_experts; e += 32)
    if (!(kept >> (e / size) & 1)) s.biased[e] = kMinusInfinity;
  __syncwarp();
}

// The n_active experts with the largest values, ties to the lower id; lane i gets the i-th in ascending id.
__device__ __forceinline__ int pick_experts(const RouteTokens& a, const RouteScores& s, int lane) {
  uint32_t taken = 0;        // bit i: expert lane + 32 * i
  int picked = kMaxExperts;  // of round `lane`
  for (int round = 0; round < a.n_active; ++round) {
    float best = kMinusInfinity;
    int best_expert = kMaxExperts;
    for (int i = 0; i < kLaneExperts && lane + 32 * i < a.n_experts; ++i) {
      const float value = s.biased[lane + 32 * i];
      if (!(taken >> i & 1) && (best_expert == kMaxExperts || value > best)) {
        best = value;
        best_expert = lane + 32 * i;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float value = __shfl_xor_sync(0xffffffff, best, step);
      const int expert = __shfl_xor_sync(0xffffffff, best_expert, step);
      const bool better = value > best || (value == best && expert < best_expert) || best_expert == kMaxExperts;
      if (expert != kMaxExperts && better) {
        best = value;
        best_expert = expert;
      }
    }
    if (best_expert % 32 == lane) taken |= 1u << (best_expert / 32);
    if (lane == round) picked = best_expert;
  }
  int sorted = kMaxExperts;
  for (int i = 0; i < a.n_active; ++i) {
    const int expert = __shfl_sync(0xffffffff, picked, i);
    const int rank = __popc(__ballot_sync(0xffffffff, picked < expert));
    if (rank == lane) sorted = expert;
  }
  return sorted;
}

// Of a token that nothing is to be computed for: no experts, or the first ones with weight 0.
__device__ __forceinline__ void fill_picks(const RouteTokens& a, int t, int lane, bool with_experts) {
  if (lane >= a.n_active) return;
  a.topk[int64_t{t} * a.n_active + lane] = with_experts ? lane : -1;
  a.weights[int64_t{t} * a.n_active + lane] = 0;
}

__global__ void __launch_bounds__(kRouteWarps * 32) route_tokens_kernel(RouteTokens a) {
  __shared__ RouteScores shared[kRouteWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int t = static_cast<int>(blockIdx.x) * kRouteWarps + warp;
  if (t >= a.n_tokens) return;
  if (a.slot != nullptr && a.slot[t] < 0) return fill_picks(a, t, lane, false);
  RouteScores& s = shared[warp];
  bool is_nan = false;
  for (int e = lane; e < a.n_experts; e += 32) {
    const float score = sigmoid_f32(a.logits[int64_t{t} * a.n_experts + e]);
    const float biased = __fadd_rn(score, a.bias[e]);
    s.score[e] = score;
    s.biased[e] = biased;
    is_nan |= biased != biased;
  }
  __syncwarp();
  if (__any_sync(0xffffffff, is_nan)) {
    if (lane == 0 && a.fault != nullptr) a.fault[t] |= a.fault_bit;
    return fill_picks(a, t, lane, true);
  }
  if (a.n_groups > 1) mask_groups(a, s, lane);
  const int expert = pick_experts(a, s, lane);
  const float score = lane < a.n_active ? s.score[expert] : 0;
  float sum = 0;
  for (int i = 0; i < a.n_active; ++i) sum = __fadd_rn(sum, __shfl_sync(0xffffffff, score, i));
  if (lane >= a.n_active) return;
  const float divisor = a.normalize ? __fadd_rn(sum, 1e-20f) : 1.0f;
  a.topk[int64_t{t} * a.n_active + lane] = expert;
  a.weights[int64_t{t} * a.n_active + lane] = __fmul_rn(__fdiv_rn(score, divisor), a.factor);
}

// The index of token t that is `expert`, or -1.
__device__ __forceinline__ int pick_of(const PlanRows& a, int t, int expert) {
  int found = -1;
  if (t < a.n_tokens)
    for (int i = 0; i < a.n_active; ++i)
      if (a.topk[int64_t{t} * a.n_active + i] == expert) found = i;
  return found;
}

constexpr int kPlanWarps = 4;

__device__ __forceinline__ int plan_expert() {
  return static_cast<int>(blockIdx.x) * kPlanWarps + static_cast<int>(threadIdx.x) / 32;
}

__global__ void __launch_bounds__(kPlanWarps * 32) count_rows_kernel(PlanRows a) {
  const int here = plan_expert(), lane = static_cast<int>(threadIdx.x) % 32;
  if (here >= a.n_experts_here) return;
  int count = 0;
  for (int base = 0; base < a.n_tokens; base += 32)
    count += __popc(__ballot_sync(0xffffffff, pick_of(a, base + lane, a.first_expert + here) >= 0));
  if (lane == 0) a.counts[here] = count;
}

__global__ void __launch_bounds__(kPlanWarps * 32) place_rows_kernel(PlanRows a) {
  const int here = plan_expert(), lane = static_cast<int>(threadIdx.x) % 32;
  if (here >= a.n_experts_here) return;
  int row = 0;
  for (int e = lane; e < here; e += 32) row += a.counts[e];
  for (int step = 16; step > 0; step /= 2) row += __shfl_xor_sync(0xffffffff, row, step);
  if (lane == 0) {
    a.plan.group_begin[here] = row;
    if (here + 1 == a.n_experts_here) a.plan.group_begin[here + 1] = row + a.counts[here];
  }
  for (int base = 0; base < a.n_tokens; base += 32) {
    const int pick = pick_of(a, base + lane, a.first_expert + here);
    const uint32_t chosen = __ballot_sync(0xffffffff, pick >= 0);
    if (pick >= 0) {
      const int own = row + __popc(chosen & ((1u << lane) - 1));
      a.plan.token_of[own] = base + lane;
      a.plan.row_of[int64_t{base + lane} * a.n_active + pick] = own;
    }
    row += __popc(chosen);
  }
}

// Pairs of experts elsewhere have no row.
__global__ void clear_rows_kernel(PlanRows a) {
  const int pair = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (pair >= a.n_tokens * a.n_active) return;
  const int here = a.topk[pair] - a.first_expert;
  if (here < 0 || here >= a.n_experts_here) a.plan.row_of[pair] = -1;
}

// Both 16-byte aligned, n_pieces of 16 bytes.
__device__ __forceinline__ void copy_row(void* to, const void* from, int n_pieces) {
  for (int i = static_cast<int>(threadIdx.x); i < n_pieces; i += static_cast<int>(blockDim.x))
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
}

__global__ void gather_rows_kernel(GatherRows a) {
  const int row = static_cast<int>(blockIdx.x);
  if (row >= a.plan.group_begin[a.n_experts_here]) return;
  const int token = a.plan.token_of[row];
  if (a.from.values != nullptr)
    return copy_row(a.out.values + row * a.out.values_ld, a.from.values + token * a.from.values_ld, a.k / 8);
  copy_row(a.out.codes + row * a.out.code_row_bytes, a.from.codes + token * a.from.code_row_bytes, a.k / 16);
  for (int b = static_cast<int>(threadIdx.x); b < (a.k + 127) / 128; b += static_cast<int>(blockDim.x))
    a.out.scale[b * a.out.scale_ld + row] = a.from.scale[b * a.from.scale_ld + token];
}

__device__ __forceinline__ void load_bf16x8(float (&v)[8], const void* from, int64_t at) {
  const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(from) + at);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__global__ void combine_rows_kernel(CombineRows a) {
  const int t = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (column >= a.d_model) return;
  float total[8] = {}, v[8];
  for (int i = 0; i < a.n_active; ++i) {
    const int row = a.row_of[int64_t{t} * a.n_active + i];
    if (row < 0) continue;
    const float weight = a.weights[int64_t{t} * a.n_active + i];
    load_bf16x8(v, a.y, int64_t{row} * a.d_model + column);
#pragma unroll
    for (int c = 0; c < 8; ++c) total[c] = __fmaf_rn(weight, v[c], total[c]);
  }
  if (a.shared) {
    load_bf16x8(v, a.shared, int64_t{t} * a.d_model + column);
#pragma unroll
    for (int c = 0; c < 8; ++c) total[c] = __fadd_rn(total[c], v[c]);
  }
  auto* to = reinterpret_cast<float4*>(a.out + int64_t{t} * a.d_model + column);
  to[0] = {total[0], total[1], total[2], total[3]};
  to[1] = {total[4], total[5], total[6], total[7]};
}

Launch make_launch(int n_blocks, int n_threads, cudaStream_t stream) {
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(static_cast<unsigned>(n_threads));
  l.stream = stream;
  return l;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

void route_tokens(const RouteTokens& a, CUstream_st* stream) {
  if (a.n_tokens > 0)
    launch_kernel(route_tokens_kernel, make_launch(ceil_div(a.n_tokens, kRouteWarps), kRouteWarps * 32, stream), a);
}

void plan_rows(const PlanRows& a, CUstream_st* stream) {
  const Launch per_expert = make_launch(ceil_div(a.n_experts_here, kPlanWarps), kPlanWarps * 32, stream);
  launch_kernel(count_rows_kernel, per_expert, a);
  launch_kernel(place_rows_kernel, per_expert, a);
  if (a.n_tokens > 0)
    launch_kernel(clear_rows_kernel, make_launch(ceil_div(a.n_tokens * a.n_active, 256), 256, stream), a);
}

void gather_rows(const GatherRows& a, CUstream_st* stream) {
  if (a.n_pairs > 0) launch_kernel(gather_rows_kernel, make_launch(a.n_pairs, 256, stream), a);
}

void combine_rows(const CombineRows& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  Launch l = make_launch(ceil_div(a.d_model / 8, 128), 128, stream);
  l.grid.y = static_cast<unsigned>(a.n_tokens);
  launch_kernel(combine_rows_kernel, l, a);
}

}  // namespace levin::cuda
