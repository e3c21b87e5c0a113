// moe.h
//
//   route_experts  a block a row: scores by all threads, the choice by one, with the CPU's functions
//   plan           one block: a thread an expert counts its pairs, then puts them in order of the token
//   expert_ffn     round x, plan, gate and up by pairs, activate, round, down by pairs, combine
#include "kernels/cpu/route.h"
#include "kernels/cuda/plain/f32_formulas.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/moe.h"
#include "kernels/cuda/plain/quantize.h"
#include "tensor/row_formats.h"

namespace levin::cuda::plain {
namespace {

constexpr int kPlanThreads = 512;

__global__ void silu_kernel(SiluMul a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t i = t * a.d + threadIdx.x; i < (t + 1) * a.d; i += blockDim.x) {
    const float hidden = limited_silu_mul_f32(a.gate[i], a.up[i], a.limit);
    a.out[i] = a.row_weights != nullptr ? hidden * a.row_weights[t] : hidden;
  }
}

// --- route_experts

// The given winners in ascending order.
__device__ void take_chosen(const RouteExperts& a, int64_t t, int32_t* topk) {
  const int64_t row = a.tokens != nullptr ? a.tokens[t] : t;
  for (int64_t i = 0; i < a.n_active; ++i) {
    const int32_t expert = a.chosen[row * a.n_active + i];
    int64_t at = i;
    for (; at > 0 && topk[at - 1] > expert; --at) topk[at] = topk[at - 1];
    topk[at] = expert;
  }
}

__device__ void fill_row(const RouteExperts& a, int32_t* topk, float* weights, bool with_experts) {
  for (int64_t i = 0; i < a.n_active; ++i) {
    topk[i] = with_experts ? static_cast<int32_t>(i) : -1;
    weights[i] = 0;
  }
}

__global__ void route_kernel(RouteExperts a) {
  follow_earlier_kernels();
  extern __shared__ float score[];  // [3, E]: scores, with bias, of groups
  const int64_t t = blockIdx.x;
  int32_t* topk = a.topk + t * a.n_active;
  float* weights = a.weights + t * a.n_active;
  if (a.slot != nullptr && a.slot[t] < 0) {
    if (threadIdx.x == 0) fill_row(a, topk, weights, false);
    return;
  }
  float* biased = score + a.n_experts;
  bool nan = false;
  for (int64_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
    const float logit = a.logits[t * a.logits_ld + e];
    score[e] = a.softplus ? sqrt_softplus(logit) : sigmoid_f32(logit);
    biased[e] = a.bias != nullptr ? score[e] + a.bias[e] : score[e];
    nan = nan || biased[e] != biased[e];
  }
  nan = __syncthreads_or(nan) != 0;
  if (threadIdx.x != 0) return;
  if (nan) {
    if (a.fault != nullptr) atomicOr(a.fault + t, kNanExpertScore);
    return fill_row(a, topk, weights, true);
  }
  const kernels::RouteRows row{.n_experts = a.n_experts,
                               .n_groups = a.n_groups,
                               .n_groups_kept = a.n_groups_kept,
                               .n_active = a.n_active,
                               .normalize = a.normalize,
                               .factor = a.factor};
  if (a.chosen != nullptr) {
    take_chosen(a, t, topk);
  } else {
    if (a.n_groups > 1) kernels::mask_groups(row, biased, score + 2 * a.n_experts);
    kernels::pick_experts(biased, a.n_experts, a.n_active, topk);
  }
  kernels::weigh_experts(row, score, topk, weights);
}

// --- experts

struct Plan {
  const int32_t* topk = nullptr;  // [n_pairs]
  int64_t n_pairs = 0;
  int64_t n_experts = 0;
  int32_t* order = nullptr;  // [n_pairs]
  PairTile* tiles = nullptr;
  int64_t n_tiles = 0;
};

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(Plan a) {
  follow_earlier_kernels();
  extern __shared__ int first[];  // [E + 1] of each expert in `order`, then [E + 1] the same in `tiles`
  int* first_tile = first + a.n_experts + 1;
  for (int64_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
    int n = 0;
#pragma unroll 8
    for (int64_t p = 0; p < a.n_pairs; ++p) n += a.topk[p] == e ? 1 : 0;
    first[e + 1] = n;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first[0] = 0, first_tile[0] = 0;
    for (int64_t e = 0; e < a.n_experts; ++e) {
      first_tile[e + 1] =
          first_tile[e] + (first[e + 1] + static_cast<int>(kPairTile) - 1) / static_cast<int>(kPairTile);
      first[e + 1] += first[e];
    }
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
    int at = first[e];
    for (int64_t p = 0; p < a.n_pairs && at < first[e + 1]; ++p) {
      if (a.topk[p] == e) a.order[at++] = static_cast<int32_t>(p);
    }
    for (int tile = first_tile[e]; tile < first_tile[e + 1]; ++tile) {
      const int begin = first[e] + (tile - first_tile[e]) * static_cast<int>(kPairTile), left = first[e + 1] - begin;
      a.tiles[tile] = {static_cast<int32_t>(e), begin, left < kPairTile ? left : static_cast<int>(kPairTile)};
    }
  }
  for (int64_t tile = first_tile[a.n_experts] + threadIdx.x; tile < a.n_tiles; tile += blockDim.x) a.tiles[tile] = {};
}

struct Combine {
  const float* y = nullptr;  // [T * A, D]
  const int32_t* topk = nullptr;
  const float* weights = nullptr;  // null: ones
  int64_t n_active = 0;
  const float* shared = nullptr;  // [T, D], may be null
  float* out = nullptr;
  int64_t out_ld = 0;
  int64_t d = 0;
};

__global__ void combine_kernel(Combine a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    float total = 0;
    for (int64_t pair = t * a.n_active; pair < (t + 1) * a.n_active; ++pair) {
      if (a.topk[pair] < 0) continue;
      total = __fmaf_rn(a.weights != nullptr ? a.weights[pair] : 1.0f, a.y[pair * a.d + i], total);
    }
    a.out[t * a.out_ld + i] = a.shared != nullptr ? total + a.shared[t * a.d + i] : total;
  }
}

// --- scratch

// Hands out parts of a piece of memory; with null it counts alone.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t n) {
    std::byte* part = memory_ == nullptr ? nullptr : memory_ + n_bytes_;
    n_bytes_ += div_up(n * static_cast<int64_t>(sizeof(T)), 256) * 256;
    return reinterpret_cast<T*>(part);
  }
  int64_t n_bytes() const { return n_bytes_; }

 private:
  std::byte* memory_;
  int64_t n_bytes_ = 0;
};

// Rows as a product takes them, in memory of their own.
struct Rounded {
  Operand operand = Operand::kF32;
  void* values = nullptr;
  float* scale = nullptr;
  int64_t k = 0;

  Rounded(Operand operand, int64_t n_rows, int64_t k, Scratch& scratch) : operand(operand), k(k) {
    if (operand == Operand::kBF16) values = scratch.take<uint16_t>(n_rows * k);
    if (operand != Operand::kFp8) return;
    values = scratch.take<uint8_t>(n_rows * k);
    scale = scratch.take<float>(n_rows * div_up(k, kQuantBlock));
  }
};

ProductInput round_rows(const float* x, int64_t x_ld, int64_t n_rows, const Rounded& to, StreamHandle stream) {
  if (to.operand == Operand::kF32) return {.x = x, .dtype = DType::kF32, .ld = x_ld};
  if (to.operand == Operand::kBF16) {
    auto* values = static_cast<uint16_t*>(to.values);
    round_to_bf16({.x = x, .x_ld = x_ld, .out = values, .out_ld = to.k, .n_rows = n_rows, .k = to.k}, stream);
    return {.x = values, .dtype = DType::kBF16, .ld = to.k};
  }
  auto* codes = static_cast<uint8_t*>(to.values);
  const int64_t n_scales = div_up(to.k, kQuantBlock);
  quantize_fp8({.x = x,
                .x_ld = x_ld,
                .codes = codes,
                .out_ld = to.k,
                .scale = to.scale,
                .scale_ld = n_scales,
                .n_rows = n_rows,
                .k = to.k},
               stream);
  return {.x = codes, .dtype = DType::kF8E4M3, .ld = to.k, .scale = to.scale, .scale_ld = n_scales};
}

// What a feed-forward block of n_rows rows of x and n_hidden rows of hidden values needs.
struct FfnMemory {
  Rounded x;
  float* gate;
  float* up;
  Rounded hidden;

  FfnMemory(const FfnWeights& w, int64_t n_rows, int64_t n_hidden, Scratch& scratch)
      : x(w.input, n_rows, w.gate.k, scratch),
        gate(scratch.take<float>(n_hidden * w.gate.n)),
        up(scratch.take<float>(n_hidden * w.gate.n)),
        hidden(w.hidden, n_hidden, w.gate.n, scratch) {}
};

struct ExpertMemory {
  FfnMemory ffn;
  int32_t* order;
  int64_t n_tiles;
  PairTile* tiles;
  float* y;
  float* shared = nullptr;

  ExpertMemory(const ExpertFfn& a, Scratch& scratch)
      : ffn(a.experts, a.n_rows, a.n_rows * a.n_active, scratch),
        order(scratch.take<int32_t>(a.n_rows * a.n_active)),
        n_tiles(most_tiles(a)),
        tiles(scratch.take<PairTile>(n_tiles)),
        y(scratch.take<float>(a.n_rows * a.n_active * a.experts.down.n)) {
    if (a.shared != nullptr) shared = scratch.take<float>(a.n_rows * a.experts.down.n);
  }

  // Each expert has one tile that is not full at most.
  static int64_t most_tiles(const ExpertFfn& a) {
    const int64_t n_pairs = a.n_rows * a.n_active, whole = n_pairs / kPairTile + a.n_experts;
    return n_pairs < whole ? n_pairs : whole;
  }
};

void run_ffn(const Ffn& a, const FfnMemory& m, StreamHandle stream) {
  const FfnWeights& w = a.weights;
  const int64_t f = w.gate.n;
  const ProductInput x = round_rows(a.x, a.x_ld, a.n_rows, m.x, stream);
  matmul({.x = x, .w = w.gate, .out = m.gate, .out_ld = f, .n_rows = a.n_rows}, stream);
  matmul({.x = x, .w = w.up, .out = m.up, .out_ld = f, .n_rows = a.n_rows}, stream);
  silu_mul({.gate = m.gate, .up = m.up, .limit = a.limit, .out = m.gate, .n_rows = a.n_rows, .d = f}, stream);
  const ProductInput hidden = round_rows(m.gate, f, a.n_rows, m.hidden, stream);
  matmul({.x = hidden, .w = w.down, .out = a.out, .out_ld = a.out_ld, .n_rows = a.n_rows}, stream);
}

void run_experts(const ExpertFfn& a, const ExpertMemory& m, StreamHandle stream) {
  const FfnWeights& w = a.experts;
  const int64_t n_pairs = a.n_rows * a.n_active, f = w.gate.n, d = w.down.n;
  const ProductInput x = round_rows(a.x, a.x_ld, a.n_rows, m.ffn.x, stream);
  const auto multiply = [&](const ProductInput& input, int64_t pairs_per_row, const Weights& weights, float* out) {
    matmul_grouped({.x = input,
                    .pairs_per_row = pairs_per_row,
                    .w = weights,
                    .tiles = m.tiles,
                    .n_tiles = m.n_tiles,
                    .order = m.order,
                    .out = out,
                    .out_ld = weights.n},
                   stream);
  };
  multiply(x, a.n_active, w.gate, m.ffn.gate);
  multiply(x, a.n_active, w.up, m.ffn.up);
  silu_mul({.gate = m.ffn.gate,
            .up = m.ffn.up,
            .limit = a.limit,
            .row_weights = a.weigh_hidden ? a.weights : nullptr,
            .out = m.ffn.gate,
            .n_rows = n_pairs,
            .d = f},
           stream);
  multiply(round_rows(m.ffn.gate, f, n_pairs, m.ffn.hidden, stream), 1, w.down, m.y);
  const Combine combine = {.y = m.y,
                           .topk = a.topk,
                           .weights = a.weigh_hidden ? nullptr : a.weights,
                           .n_active = a.n_active,
                           .shared = m.shared,
                           .out = a.out,
                           .out_ld = a.out_ld,
                           .d = d};
  start(combine_kernel, {.x = a.n_rows}, stream, combine);
}

}  // namespace

void silu_mul(const SiluMul& a, StreamHandle stream) { start(silu_kernel, {.x = a.n_rows}, stream, a); }

void route_experts(const RouteExperts& a, StreamHandle stream) {
  const int64_t shared_bytes = 3 * a.n_experts * static_cast<int64_t>(sizeof(float));
  start(route_kernel, {.x = a.n_rows, .shared_bytes = shared_bytes}, stream, a);
}

int64_t ffn_scratch_bytes(const FfnWeights& weights, int64_t n_rows) {
  Scratch scratch(nullptr);
  const FfnMemory memory(weights, n_rows, n_rows, scratch);
  return scratch.n_bytes();
}

void ffn(const Ffn& a, StreamHandle stream) {
  Scratch scratch(a.scratch);
  run_ffn(a, FfnMemory(a.weights, a.n_rows, a.n_rows, scratch), stream);
}

int64_t expert_ffn_scratch_bytes(const ExpertFfn& a) {
  Scratch scratch(nullptr);
  const ExpertMemory memory(a, scratch);
  if (a.shared != nullptr) scratch.take<std::byte>(ffn_scratch_bytes(*a.shared, a.n_rows));
  return scratch.n_bytes();
}

void expert_ffn(const ExpertFfn& a, StreamHandle stream) {
  Scratch scratch(a.scratch);
  const ExpertMemory memory(a, scratch);
  const Plan plan = {.topk = a.topk,
                     .n_pairs = a.n_rows * a.n_active,
                     .n_experts = a.n_experts,
                     .order = memory.order,
                     .tiles = memory.tiles,
                     .n_tiles = memory.n_tiles};
  const int64_t shared_bytes = 2 * (a.n_experts + 1) * static_cast<int64_t>(sizeof(int));
  start(plan_kernel, {.threads = kPlanThreads, .shared_bytes = shared_bytes}, stream, plan);
  if (a.shared != nullptr) {
    auto* ffn_scratch = scratch.take<std::byte>(ffn_scratch_bytes(*a.shared, a.n_rows));
    ffn({.x = a.x,
         .x_ld = a.x_ld,
         .weights = *a.shared,
         .limit = a.limit,
         .out = memory.shared,
         .out_ld = a.experts.down.n,
         .n_rows = a.n_rows,
         .scratch = ffn_scratch},
        stream);
  }
  run_experts(a, memory, stream);
}

}  // namespace levin::cuda::plain
