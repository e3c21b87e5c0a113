// Routing, sorting, gathering and combining for the experts; contracts in moe.h.
//
//   route    a warp a token: scores in shared memory, a few lanes a group, then n_active rounds of a warp-wide maximum
//   plan     a block: who selected an expert, as a bit for each token, and rows numbered by counting bits, so that no order
//            of threads shows. Alone a block of 1024 threads, as many tokens at a time; together with the rounding of rows
//            blocks share out the sorted rows, each with a plan of its own, and choices: few tokens are routed and planned in
//            the time that a launch takes
//   gather   a block a sorted row, 16 bytes a thread
//   combine  a thread 8 columns of a token
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/tiles/f32_math.cuh"
#include "kernels/cuda/tiles/quantize_row.cuh"
#include "kernels/cuda/tiles/score_key.cuh"

namespace levin::cuda {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kLaneExperts = kMaxExperts / 32;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// Of a warp's token, [E] each.
struct RouteScores {
  float* score;
  float* biased;

  __device__ __forceinline__ RouteScores(float* memory, int warp, int n_experts)
      : score(memory + warp * 2 * n_experts), biased(score + n_experts) {}
};
constexpr int route_scores_bytes(int n_experts, int n_warps) { return n_warps * 2 * n_experts * 4; }

// A lane's of a row of a value for each expert: of experts lane, lane + 32 ... They are all on their way together.
struct LaneExperts {
  float of[kLaneExperts] = {};

  __device__ __forceinline__ LaneExperts(const float* row, int n_experts) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kLaneExperts; ++i)
      if (lane + 32 * i < n_experts) of[i] = row[lane + 32 * i];
  }
};

// What a lane has of a token's choice: index `lane` of it, where there are as many.
struct Pick {
  int expert;
  float weight;
  bool is_nan;  // of the token: a score is
};

// Sets to -infinity what lies outside the best groups. A power of two of lanes shares each group; groups begin at different
// offsets, so that lanes read different banks.
__device__ __forceinline__ void mask_groups(const RouteTokens& a, const RouteScores& s, int lane) {
  const int size = a.n_experts / a.n_groups, n_lanes = 1 << (31 - __clz(32 / a.n_groups));
  const int group = lane / n_lanes, n_turns = group < a.n_groups ? (size + n_lanes - 1) / n_lanes : 0;
  const int first_turn = n_turns > 0 ? group % n_turns : 0;
  float* own = s.biased + group * size;
  // Of the group, in the i-th turn; from `size` on there is none.
  const auto expert_at = [&](int i) {
    const int turn = first_turn + i < n_turns ? first_turn + i : first_turn + i - n_turns;
    return turn * n_lanes + lane % n_lanes;
  };
  float first = kMinusInfinity, second = kMinusInfinity;
#pragma unroll 4
  for (int i = 0; i < n_turns; ++i) {  // without branches, at which the compiler would wait for each value
    const int expert = expert_at(i);
    const float value = own[min(expert, size - 1)], x = expert < size ? value : kMinusInfinity;
    second = fmaxf(second, fminf(first, x));
    first = fmaxf(first, x);
  }
  for (int step = 1; step < n_lanes; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffff, first, step);
    second = fmaxf(fminf(first, other), fmaxf(second, __shfl_xor_sync(0xffffffff, second, step)));
    first = fmaxf(first, other);
  }
  const float sum = __fadd_rn(first, second);
  int n_better = 0;
#pragma unroll 8
  for (int other = 0; other < a.n_groups; ++other) {
    const float value = __shfl_sync(0xffffffff, sum, other * n_lanes);
    n_better += value > sum || (value == sum && other < group);
  }
  __syncwarp();  // lanes without an expert of their own have read another's
  if (n_better >= a.n_groups_kept) {
    for (int i = 0; i < n_turns; ++i)
      if (expert_at(i) < size) own[expert_at(i)] = kMinusInfinity;
  }
  __syncwarp();
}

// A value for each of kCount experts of a lane, and the largest of them: the first, where there are several.
template <int kCount>
__device__ __forceinline__ int largest_of(const uint32_t (&key)[kCount], uint32_t& value) {
  uint32_t best[kCount];
  int at[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) best[i] = key[i], at[i] = i;
#pragma unroll
  for (int step = 1; step < kCount; step *= 2)
#pragma unroll
    for (int i = 0; i + step < kCount; i += 2 * step)
      if (best[i + step] > best[i]) best[i] = best[i + step], at[i] = at[i + step];
  value = best[0];
  return at[0];
}

// The n_active experts with the largest values, ties to the lower id; lane i gets the i-th in ascending id. A lane has up to
// kCount experts.
template <int kCount>
__device__ __forceinline__ int pick_experts(const RouteTokens& a, const RouteScores& s, int lane) {
  uint32_t key[kCount];  // of expert lane + 32 * i; 0 of one that is taken or does not exist
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t own = score_key(s.biased[min(lane + 32 * i, a.n_experts - 1)]);
    key[i] = lane + 32 * i < a.n_experts ? own : 0;
  }
  int picked = kMaxExperts;  // of round `lane`
  for (int round = 0; round < a.n_active; ++round) {
    uint32_t own;
    const int own_expert = lane + 32 * largest_of(key, own);
    const uint32_t best = __reduce_max_sync(0xffffffff, own);
    const int expert = __reduce_min_sync(0xffffffff, own == best && own > 0 ? own_expert : kMaxExperts);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (expert == lane + 32 * i) key[i] = 0;
    if (lane == round) picked = expert;
  }
  int sorted = kMaxExperts;
#pragma unroll 8
  for (int i = 0; i < a.n_active; ++i) {
    const int expert = __shfl_sync(0xffffffff, picked, i);
    const int rank = __popc(__ballot_sync(0xffffffff, picked < expert));
    if (rank == lane) sorted = expert;
  }
  return sorted;
}

// A warp routes a token. One that nothing is to be computed for gets no experts, or the first ones with weight 0.
__device__ __forceinline__ Pick route_token(const RouteTokens& a, const RouteScores& s, const LaneExperts& bias,
                                            int t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const LaneExperts logits(a.logits + int64_t{t} * a.n_experts, a.n_experts);  // on their way with the slot
  if (a.slot != nullptr && a.slot[t] < 0) return {-1, 0, false};
  bool is_nan = false;
#pragma unroll
  for (int i = 0; i < kLaneExperts; ++i) {
    const int e = lane + 32 * i;
    if (e >= a.n_experts) continue;
    const float score = sigmoid_f32(logits.of[i]), biased = __fadd_rn(score, bias.of[i]);
    s.score[e] = score;
    s.biased[e] = biased;
    is_nan |= biased != biased;
  }
  __syncwarp();
  if (__any_sync(0xffffffff, is_nan)) return {lane, 0, true};
  if (a.n_groups > 1) mask_groups(a, s, lane);
  constexpr int kFewLaneExperts = kLaneExperts / 2;
  const int expert = a.n_experts <= 32 * kFewLaneExperts ? pick_experts<kFewLaneExperts>(a, s, lane)
                                                         : pick_experts<kLaneExperts>(a, s, lane);
  const float score = lane < a.n_active ? s.score[expert] : 0;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < a.n_active; ++i) sum = __fadd_rn(sum, __shfl_sync(0xffffffff, score, i));
  const float divisor = a.normalize ? __fadd_rn(sum, 1e-20f) : 1.0f;
  return {expert, __fmul_rn(__fdiv_rn(score, divisor), a.factor), false};
}

__device__ __forceinline__ void write_pick(const RouteTokens& a, int t, const Pick& pick) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0 && pick.is_nan && a.fault != nullptr) a.fault[t] |= a.fault_bit;
  if (lane >= a.n_active) return;
  a.topk[int64_t{t} * a.n_active + lane] = pick.expert;
  a.weights[int64_t{t} * a.n_active + lane] = pick.weight;
}

__global__ void __launch_bounds__(kRouteWarps * 32) route_tokens_kernel(const __grid_constant__ RouteTokens a) {
  extern __shared__ float scores[];
  const int warp = static_cast<int>(threadIdx.x) / 32, t = static_cast<int>(blockIdx.x) * kRouteWarps + warp;
  launch_dependents();
  const LaneExperts bias(a.bias, a.n_experts);  // which no kernel writes
  grid_dependency_wait();
  if (t < a.n_tokens) write_pick(a, t, route_token(a, RouteScores(scores, warp, a.n_experts), bias, t));
}

constexpr int kPlanThreads = 1024;
// Of a block that plans and rounds, and of one that routes more tokens than the first has warps.
constexpr int kTogetherThreads = 256, kRoutingThreads = 1024;

// Who selected which expert, of a chunk of as many tokens as the block has threads: a bit for each, in words of 32.
struct PlanTables {
  int32_t* next;       // [E]: at first how many selected it, then the row after those placed so far
  uint32_t* selected;  // [words, E]
  int32_t* first_row;  // [words, E]: of the first of them

  __device__ __forceinline__ PlanTables(int32_t* memory, int n_experts, int n_words)
      : next(memory),
        selected(reinterpret_cast<uint32_t*>(memory + n_experts)),
        first_row(memory + n_experts + n_words * n_experts) {}
};
int plan_tables_bytes(int n_experts, int n_words) { return 4 * n_experts * (1 + 2 * n_words); }

// A block that plans all rows; its threads call together.
class Planner {
 public:
  __device__ __forceinline__ Planner(const PlanRows& p, int32_t* memory)
      : p_(p),
        n_words_((min(p.n_tokens, static_cast<int>(blockDim.x)) + 31) / 32),
        tables_(memory, p.n_experts_here, n_words_),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32) {}

  // Calls place(token, pair, row) for each pair, -1 being the row of those without one; returns the number of rows.
  // `group_begin` may be null.
  template <class Place>
  __device__ __forceinline__ int run(int32_t* group_begin, Place place) {
    const int n_chunks = (p_.n_tokens + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
    for_each_expert([&](int e) { tables_.next[e] = 0; });
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      if (chunk > 0) __syncthreads();  // of the one before everything is read
      mark(chunk);
      for_each_expert([&](int e) {
        for (int w = 0; w < n_words_; ++w) tables_.next[e] += __popc(tables_.selected[w * p_.n_experts_here + e]);
      });
    }
    const int n_rows = begin_groups(group_begin);
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      if (n_chunks > 1) {
        __syncthreads();
        mark(chunk);
      }
      for_each_expert([&](int e) { number_rows(e); });
      __syncthreads();
      for_each_pair(chunk, [&](int token, int pair, int e) { place(token, pair, e < 0 ? -1 : row_of(token, e)); });
    }
    return n_rows;
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_expert(F f) {
    for (int e = static_cast<int>(threadIdx.x); e < p_.n_experts_here; e += static_cast<int>(blockDim.x)) f(e);
  }

  // Of the chunk's tokens; e is -1 for experts elsewhere.
  template <class F>
  __device__ __forceinline__ void for_each_pair(int chunk, F f) {
    const int n_chunk = static_cast<int>(blockDim.x), first = chunk * n_chunk * p_.n_active;
    const int end = min(p_.n_tokens, (chunk + 1) * n_chunk) * p_.n_active;
    for (int pair = first + static_cast<int>(threadIdx.x); pair < end; pair += static_cast<int>(blockDim.x)) {
      const int e = p_.topk[pair] - p_.first_expert;
      f(pair / p_.n_active, pair, e >= 0 && e < p_.n_experts_here ? e : -1);
    }
  }
  // Where a token's bit is in the tables of its chunk, of a power of two of tokens.
  __device__ __forceinline__ int table_at(int token, int e) const {
    return (token & (static_cast<int>(blockDim.x) - 1)) / 32 * p_.n_experts_here + e;
  }
  static __device__ __forceinline__ uint32_t bit_of(int token) { return 1u << token % 32; }

  __device__ __forceinline__ void mark(int chunk) {
    for (int i = static_cast<int>(threadIdx.x); i < n_words_ * p_.n_experts_here; i += static_cast<int>(blockDim.x))
      tables_.selected[i] = 0;
    __syncthreads();
    for_each_pair(chunk, [&](int token, int, int e) {
      if (e >= 0) atomicOr(&tables_.selected[table_at(token, e)], bit_of(token));
    });
    __syncthreads();
  }

  // From counts to first rows; returns how many rows there are.
  __device__ __forceinline__ int begin_groups(int32_t* group_begin) {
    __shared__ int of_warp[32];
    const int n_warps = static_cast<int>(blockDim.x) / 32;
    int before = 0;
    for (int base = 0; base < p_.n_experts_here; base += static_cast<int>(blockDim.x)) {
      if (base > 0) __syncthreads();  // the sums of warps have been read
      const int e = base + static_cast<int>(threadIdx.x), own = e < p_.n_experts_here ? tables_.next[e] : 0;
      int upto = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffff, upto, step);
        if (lane_ >= step) upto += other;
      }
      if (lane_ == 31) of_warp[warp_] = upto;
      __syncthreads();
      const int sum = lane_ < n_warps ? of_warp[lane_] : 0;
      const int first = before + __reduce_add_sync(0xffffffff, lane_ < warp_ ? sum : 0) + upto - own;
      if (e < p_.n_experts_here) {
        tables_.next[e] = first;
        if (group_begin != nullptr) group_begin[e] = first;
      }
      before += __reduce_add_sync(0xffffffff, sum);
    }
    if (threadIdx.x == 0 && group_begin != nullptr) {
      group_begin[p_.n_experts_here] = before;
      if (p_.has_shared) group_begin[p_.n_experts_here + 1] = before + p_.n_tokens;
    }
    return before;
  }

  __device__ __forceinline__ void number_rows(int e) {
    int row = tables_.next[e];
    for (int at = e; at < n_words_ * p_.n_experts_here; at += p_.n_experts_here) {
      tables_.first_row[at] = row;
      row += __popc(tables_.selected[at]);
    }
    tables_.next[e] = row;
  }

  __device__ __forceinline__ int row_of(int token, int e) const {
    const int at = table_at(token, e);
    return tables_.first_row[at] + __popc(tables_.selected[at] & (bit_of(token) - 1));
  }

  const PlanRows& p_;
  int n_words_;
  PlanTables tables_;
  int lane_, warp_;
};

__device__ __forceinline__ void write_pair(const RowPlan& plan, int token, int pair, int row) {
  plan.row_of[pair] = row;
  if (row >= 0) plan.token_of[row] = token;
}

__device__ __forceinline__ void write_shared(const PlanRows& p, int n_rows) {
  if (!p.has_shared) return;
  for (int t = static_cast<int>(threadIdx.x); t < p.n_tokens; t += static_cast<int>(blockDim.x))
    p.plan.token_of[n_rows + t] = t;
}

__global__ void __launch_bounds__(kPlanThreads) plan_rows_kernel(const __grid_constant__ PlanRows p) {
  extern __shared__ int32_t tables[];
  launch_dependents();
  grid_dependency_wait();
  const int n_rows = Planner(p, tables).run(
      p.plan.group_begin, [&](int token, int pair, int row) { write_pair(p.plan, token, pair, row); });
  write_shared(p, n_rows);
}

// What is needed of a bias to route all tokens, and where they are routed already nothing.
__device__ __forceinline__ LaneExperts bias_of(const RouteTokens& a) {
  return LaneExperts(a.bias, a.logits != nullptr ? a.n_experts : 0);
}

// Chooses the experts of all tokens, here and, where `writes`, for those who come later. Where warps have several tokens they read
// the bias again for each: there are no registers to keep it in.
template <int kThreads>
__device__ __forceinline__ void route_all(const RouteTokens& a, const LaneExperts& early_bias, int32_t* topk,
                                          float* scores, bool writes) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int t = warp; t < a.n_tokens; t += kThreads / 32) {
    __syncwarp();  // scores of the token before have been read
    const LaneExperts bias = kThreads == kTogetherThreads ? early_bias : bias_of(a);
    const Pick pick = route_token(a, RouteScores(scores, warp, a.n_experts), bias, t);
    if (lane < a.n_active) topk[t * a.n_active + lane] = pick.expert;
    if (writes) write_pick(a, t, pick);
  }
  __syncthreads();
}

// A thread's columns of a row that the block rounds, in turns of all threads. They are all on their way together.
template <int kThreads>
struct RowPieces {
  static constexpr int kTurns = kRoutingThreads / kThreads, kTurnColumns = kThreads * kLaneColumns,
                       kColumns = kTurns * kTurnColumns;
  float v[kTurns][kLaneColumns];

  static __device__ __forceinline__ int column(int first, int turn) {
    return first + turn * kTurnColumns + static_cast<int>(threadIdx.x) * kLaneColumns;
  }
  // Columns beyond the row are its last ones again: at a branch the compiler would wait for those before it.
  template <class X>
  __device__ __forceinline__ void load(const X* row, int first, int k) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) load_8(v[i], row + min(column(first, i), k - kLaneColumns));
  }
  __device__ __forceinline__ void load(const QuantizeFp8& in, int token, int first) {
    if (in.x_is_f32)
      load(static_cast<const float*>(in.x) + token * in.x_ld, first, in.k);
    else
      load(static_cast<const __nv_bfloat16*>(in.x) + token * in.x_ld, first, in.k);
  }
  // Blocks of a scale share a warp, so all threads call.
  __device__ __forceinline__ void round(const QuantizeFp8& in, int row, int first) const {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) round_8(v[i], in.out, row, column(first, i), in.k);
  }
};

// Every block routes and plans for itself, the first one for those who come later too; then it rounds every gridDim-th row.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) plan_and_round_kernel(const __grid_constant__ PlanAndRound a) {
  // Choices and scores, if the tokens are to be routed; the tokens of the experts' rows; tables.
  extern __shared__ int32_t memory[];
  launch_dependents();
  const LaneExperts bias = bias_of(a.route);
  grid_dependency_wait();
  PlanRows p = a.plan;
  RowPieces<kThreads> pieces;
  // All rows are a lone token's, and a block has one of them: it need not wait for the plan.
  const bool is_lone = kThreads == kTogetherThreads && p.n_tokens == 1;
  if (is_lone) pieces.load(a.input, 0, 0);
  int32_t* token_of = memory;
  const bool writes = blockIdx.x == 0;
  if (a.route.logits != nullptr) {
    auto* scores = reinterpret_cast<float*>(memory + p.n_tokens * p.n_active);
    route_all<kThreads>(a.route, bias, memory, scores, writes);
    p.topk = memory;
    token_of += p.n_tokens * p.n_active + route_scores_bytes(a.route.n_experts, kThreads / 32) / 4;
  }
  int32_t* tables = token_of + p.n_tokens * p.n_active;
  const int n_rows = Planner(p, tables).run(writes ? p.plan.group_begin : nullptr, [&](int token, int pair, int row) {
    if (row >= 0) token_of[row] = token;
    if (writes) write_pair(p.plan, token, pair, row);
  });
  if (writes) write_shared(p, n_rows);
  __syncthreads();
  const int n_all = n_rows + (p.has_shared ? p.n_tokens : 0);
  for (int row = static_cast<int>(blockIdx.x); row < n_all; row += static_cast<int>(gridDim.x)) {
    const int token = row < n_rows ? token_of[row] : row - n_rows;
    for (int first = 0; first < a.input.k; first += RowPieces<kThreads>::kColumns) {
      if (!is_lone || first > 0) pieces.load(a.input, token, first);
      pieces.round(a.input, row, first);
    }
  }
}

// Both 16-byte aligned, n_pieces of 16 bytes.
__device__ __forceinline__ void copy_row(void* to, const void* from, int n_pieces) {
  for (int i = static_cast<int>(threadIdx.x); i < n_pieces; i += static_cast<int>(blockDim.x))
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
}

__global__ void gather_rows_kernel(GatherRows a) {
  launch_dependents();
  grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x);
  if (row >= a.plan.group_begin[a.n_groups]) return;
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

// A lane has the row and the weight of one of the token's experts; rows are loaded several at a time, since each would wait
// for memory by itself, and so is all else that is added.
__global__ void combine_rows_kernel(CombineRows a) {
  constexpr int kAtOnce = 8;
  launch_dependents();
  grid_dependency_wait();
  const int t = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  const bool is_column = column < a.d_model;
  int own_row = -1;
  float own_weight = 0, total[8] = {}, v[kAtOnce][8] = {}, shared[8], before[8];
  const bool has_shared = a.shared != nullptr || a.first_shared != nullptr;
  const int first_shared = a.first_shared != nullptr ? *a.first_shared : 0;
  float* out = a.out + int64_t{t} * a.d_model + column;
  if (a.add && is_column) load_8(before, out);
  if (lane < a.n_active) {
    own_row = a.row_of[int64_t{t} * a.n_active + lane];
    own_weight = a.weights[int64_t{t} * a.n_active + lane];
  }
  if (has_shared && is_column)
    load_bf16x8(shared, a.shared != nullptr ? a.shared : a.y, int64_t{first_shared + t} * a.d_model + column);
  for (int first = 0; first < a.n_active; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = __shfl_sync(0xffffffff, own_row, first + i);
      if (row >= 0 && is_column) load_bf16x8(v[i], a.y, int64_t{row} * a.d_model + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = __shfl_sync(0xffffffff, own_weight, first + i);
      if (__shfl_sync(0xffffffff, own_row, first + i) < 0) continue;
#pragma unroll
      for (int c = 0; c < 8; ++c) total[c] = __fmaf_rn(weight, v[i][c], total[c]);
    }
  }
  if (!is_column) return;
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (has_shared) total[c] = __fadd_rn(total[c], shared[c]);
    if (a.add) total[c] = __fadd_rn(before[c], total[c]);
  }
  auto* to = reinterpret_cast<float4*>(out);
  to[0] = {total[0], total[1], total[2], total[3]};
  to[1] = {total[4], total[5], total[6], total[7]};
}

Launch make_launch(int n_blocks, int n_threads, cudaStream_t stream) {
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(static_cast<unsigned>(n_threads));
  l.pdl = true;
  l.stream = stream;
  return l;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

void route_tokens(const RouteTokens& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  Launch l = make_launch(ceil_div(a.n_tokens, kRouteWarps), kRouteWarps * 32, stream);
  l.shared_bytes = route_scores_bytes(a.n_experts, kRouteWarps);
  launch_kernel(route_tokens_kernel, l, a);
}

void plan_rows(const PlanRows& a, CUstream_st* stream) {
  Launch l = make_launch(1, kPlanThreads, stream);
  l.shared_bytes = plan_tables_bytes(a.n_experts_here, ceil_div(std::min(a.n_tokens, kPlanThreads), 32));
  launch_kernel(plan_rows_kernel, l, a);
}

void gather_rows(const GatherRows& a, CUstream_st* stream) {
  if (a.n_rows > 0) launch_kernel(gather_rows_kernel, make_launch(a.n_rows, 256, stream), a);
}

void plan_and_round(const PlanAndRound& a, CUstream_st* stream) {
  const int n_tokens = a.plan.n_tokens, n_pairs = n_tokens * a.plan.n_active;
  if (n_tokens == 0) return;
  const bool routes = a.route.logits != nullptr;
  // A token takes a warp several microseconds: many are routed at once, by no more blocks than there are SMs.
  const bool routes_many = routes && n_tokens > kTogetherThreads / 32;
  const int n_threads = routes_many ? kRoutingThreads : kTogetherThreads;
  Launch l = make_launch(routes_many ? std::min(a.plan.n_rows(), n_sms()) : a.plan.n_rows(), n_threads, stream);
  l.shared_bytes = 4 * n_pairs + plan_tables_bytes(a.plan.n_experts_here, ceil_div(n_tokens, 32));
  if (routes) l.shared_bytes += 4 * n_pairs + route_scores_bytes(a.route.n_experts, n_threads / 32);
  if (routes_many)
    launch_kernel(plan_and_round_kernel<kRoutingThreads>, l, a);
  else
    launch_kernel(plan_and_round_kernel<kTogetherThreads>, l, a);
}

void combine_rows(const CombineRows& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  Launch l = make_launch(ceil_div(a.d_model / 8, 128), 128, stream);
  l.grid.y = static_cast<unsigned>(a.n_tokens);
  launch_kernel(combine_rows_kernel, l, a);
}

}  // namespace levin::cuda
