// gemm_f32 for many rows, sm_90a: a block multiplies tiles of 256 rows and 128 outputs.
//
//   in    x [T, H, K] f32, w [H, N, K] f32, bf16 or e4m3, a scale per 128 x 128 for the latter    out  [T, H, N] f32, bf16 or e4m3
//   grid  persistent over tiles: outputs of a head fastest, then heads, then rows, so that tiles in flight share rows
//   block 8 math warps of 32 rows each and all outputs, + 1 load warpgroup
//   smem  struct ManyRows: a ring of stages, each 32 k of the rows and, as f32, of the weights; totals of the math threads
//   flow  load warpgroup, per stage: wait empty -> one thread asks for the rows; each brings one output's weights to f32 ->
//         full. math: wait full -> multiply -> empty; per block of k: totals
//   edge  what lies beyond T, N or K counts as zero, which changes no sum; rows and outputs beyond T and N are not stored
//   cost  a thread multiplies 8 rows with 16 outputs: for four k it loads 24 pieces of 16 bytes, in 96 cycles of the SM, and
//         issues 512 multiply-adds, in 128
//   why   what a thread loads goes down with its sums. 128 of them leave no registers for totals, nor for conversions, which
//         are made once for all warps. Weights have an order of their own in shared memory, so that a thread has four outputs
//         in a row and lanes read different banks.
#include "kernels/cuda/gemm/gemm_f32_sm90.cuh"
#include "kernels/cuda/prims/alignment.h"

namespace levin::cuda::gemm_f32_kernel {
namespace {

constexpr int kTileM = GemmF32ManyRows::kRows, kTileN = GemmF32ManyRows::kOutputs;
constexpr int kStepK = 32;  // of a stage: 128 bytes of a row
constexpr int kManyStages = 2;
constexpr int kMathThreads = kWarps * 32;
constexpr int kLoadThreads = kTileN;  // each has one output
constexpr int kManyThreads = kMathThreads + kLoadThreads;
constexpr int kMathRegs = 224, kLoadRegs = 56, kStartRegs = 168;
static_assert(2 * kMathRegs + kLoadRegs == 3 * kStartRegs);
constexpr int kOwnRows = 8, kOwnOutputs = 16;  // of a math thread
constexpr int kOwnFours = kOwnRows * kOwnOutputs / kFour;

struct ManyRows {
  alignas(1024) float x[kManyStages][kTileM][kStepK];  // swizzled
  alignas(1024) float w[kManyStages][kTileN][kStepK];  // swizzled likewise, outputs in the order of output_at()
  float4 total[kOwnFours][kMathThreads];
  RingBarriers<kManyStages> ring;
};
constexpr int kManyBytes = static_cast<int>(sizeof(ManyRows)) + 1024;
static_assert(kManyBytes <= kMaxSharedBytes);

// Lanes of eight read rows 8 j + lane % 8 of the weights; the thread's outputs are then 4 (lane % 8) + j % 4 of each 32.
__device__ __forceinline__ int output_at(int w_row) {
  const int lane = w_row % 8, j = w_row / 8;
  return j / kFour * 32 + lane * kFour + j % kFour;
}

struct Tile {
  int first_row, head, first_n;
};
__device__ __forceinline__ Tile tile_of(const Params& p, int item) {
  const int strip = item % p.n_head_strips, rest = item / p.n_head_strips;
  return {rest / p.n_heads * kTileM, rest % p.n_heads, strip * kTileN};
}

// ---- the load warpgroup ----

template <class Weight>
struct Loader {
  static constexpr int kPieceK = kPiece / Weight::kBytes;
  static constexpr int kPieces = kStepK / kPieceK;  // of an output in a stage
  const Params& p;
  ManyRows& s;
  const void* weights;
  int thread;

  // This thread's output, of one stage; zeros beyond N and K.
  __device__ __forceinline__ void load(uint4 (&piece)[kPieces], const Tile& at, int k) const {
    const int n = at.first_n + output_at(thread);
    const auto* row = static_cast<const uint8_t*>(weights) + ((int64_t{at.head} * p.n + n) * p.k + k) * Weight::kBytes;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      piece[i] = {0, 0, 0, 0};
      if (n < p.n && k + i * kPieceK < p.k) piece[i] = __ldg(reinterpret_cast<const uint4*>(row) + i);
    }
  }
  template <int kAt>
  __device__ __forceinline__ void store_fours(float* row, const uint4& piece, int first_four) const {
    *reinterpret_cast<float4*>(row + ((first_four + kAt / kFour) ^ thread % 8) * kFour) = {
        Weight::template value<kAt>(piece), Weight::template value<kAt + 1>(piece),
        Weight::template value<kAt + 2>(piece), Weight::template value<kAt + 3>(piece)};
    if constexpr (kAt + kFour < kPieceK) store_fours<kAt + kFour>(row, piece, first_four);
  }

  __device__ void run() {
    RingPosition<kManyStages> to;
    for (int item = static_cast<int>(blockIdx.x); item < p.n_items; item += static_cast<int>(gridDim.x)) {
      const Tile at = tile_of(p, item);
      for (int k = 0; k < p.k; k += kStepK, to.advance()) {
        uint4 piece[kPieces];
        load(piece, at, k);
        Mbarrier& full = s.ring.full[to.stage];
        s.ring.empty[to.stage].wait(to.parity ^ 1);
        if (thread == 0) {
          full.arrive_expect_bytes(sizeof(s.x[0]));
          tma_load_3d(s.x[to.stage], p.x_map, full, k, at.head, at.first_row);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kPieces; ++i) store_fours<0>(s.w[to.stage][thread], piece[i], i * kPieceK / kFour);
        full.arrive_as_warp();
      }
    }
  }
};

// ---- math warps ----

struct MathRows {
  const Params& p;
  ManyRows& s;
  int thread, lane, warp;
  float sum[kOwnRows][kOwnOutputs];

  __device__ __forceinline__ MathRows(const Params& params, ManyRows& shared)
      : p(params), s(shared), thread(static_cast<int>(threadIdx.x)), lane(thread % 32), warp(warp_index()) {}

  // Rows 8 apart have the same swizzle: two warps share 64 rows.
  __device__ __forceinline__ int own_row(int i) const { return warp / 2 * 64 + 8 * i + warp % 2 * 4 + lane / 8; }

  __device__ __forceinline__ void multiply_stage(int stage) {
    const float* x = s.x[stage][own_row(0)];
    const float* w = s.w[stage][lane % 8];
    const int x_turn = own_row(0) % 8, w_turn = lane % 8;
#pragma unroll 1
    for (int four = 0; four < kStepK / kFour; ++four) {
      const float* x_four = x + (four ^ x_turn) * kFour;
      const float* w_four = w + (four ^ w_turn) * kFour;
      float row[kOwnRows][kFour];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i)
        *reinterpret_cast<float4*>(row[i]) = *reinterpret_cast<const float4*>(x_four + i * 8 * kStepK);
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += 2) {
        float weight[2][kFour];
#pragma unroll
        for (int o = 0; o < 2; ++o)
          *reinterpret_cast<float4*>(weight[o]) = *reinterpret_cast<const float4*>(w_four + (j + o) * 8 * kStepK);
#pragma unroll
        for (int k = 0; k < kFour; ++k)
#pragma unroll
          for (int o = 0; o < 2; ++o)
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) sum[i][j + o] = __fmaf_rn(row[i][k], weight[o][k], sum[i][j + o]);
      }
    }
  }

  // Sums of a block become totals, which stay in `sum` after the last.
  __device__ __forceinline__ void add_block(float scale, bool first, bool last) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += kFour) {
        float4& slot = s.total[(i * kOwnOutputs + j) / kFour][thread];
        float total[kFour] = {0, 0, 0, 0};
        if (!first) *reinterpret_cast<float4*>(total) = slot;
#pragma unroll
        for (int o = 0; o < kFour; ++o) {
          total[o] = __fmaf_rn(sum[i][j + o], scale, total[o]);
          sum[i][j + o] = last ? total[o] : 0;
        }
        if (!last) slot = *reinterpret_cast<const float4*>(total);
      }
  }

  __device__ __forceinline__ float scale_of(const Tile& at, int block) const {
    if (p.w_scale == nullptr) return 1.0f;
    const int n_scale_rows = ceil_div_of(p.n);
    return __ldg(p.w_scale + (int64_t{at.head} * n_scale_rows + at.first_n / kBlockK) * p.n_k_blocks + block);
  }
  __device__ __forceinline__ static int ceil_div_of(int n) { return (n + kBlockK - 1) / kBlockK; }

  __device__ __forceinline__ void store(const Tile& at) const {
    const int first_n = at.first_n + lane % 8 * kFour;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = at.first_row + own_row(i);
      if (row >= p.n_tokens) continue;
      const int64_t to = row * p.out_ld + at.head * p.out_head_ld + first_n;
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += kFour) store_four(p, sum[i] + j, to + j * 8, first_n + j * 8);
    }
  }
  // Codes with a scale to a row of a head, which eight lanes have.
  __device__ __forceinline__ void round(const Tile& at) const {
    const QuantizedRows& to = p.rounded;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = at.first_row + own_row(i);
      const uint32_t exponent = scale_exponent(largest_of_lanes<8>(sum[i]));
      if (row >= p.n_tokens) continue;
      const float inverse = inverse_power(exponent);
      auto* codes = reinterpret_cast<uint32_t*>(to.codes + row * to.code_row_bytes + at.head * kBlockK) + lane % 8;
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += kFour)
        codes[j * 2] = e4m3_codes(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3], inverse);
      if (lane % 8 == 0) to.scale[at.head * to.scale_ld + row * to.scale_row_stride] = power_of_exponent(exponent);
    }
  }

  __device__ void run() {
    RingPosition<kManyStages> from;
    for (int item = static_cast<int>(blockIdx.x); item < p.n_items; item += static_cast<int>(gridDim.x)) {
      const Tile at = tile_of(p, item);
#pragma unroll
      for (auto& row : sum)
#pragma unroll
        for (float& v : row) v = 0;
      for (int block = 0; block < p.n_k_blocks; ++block) {
        const float scale = scale_of(at, block);
        const int end = min(p.k, (block + 1) * kBlockK);
        for (int k = block * kBlockK; k < end; k += kStepK, from.advance()) {
          s.ring.full[from.stage].wait(from.parity);
          multiply_stage(from.stage);
          s.ring.empty[from.stage].arrive_as_warp();
        }
        add_block(scale, block == 0, block + 1 == p.n_k_blocks);
      }
      if (p.rounded.codes != nullptr)
        round(at);
      else
        store(at);
    }
  }
};

template <class Weight>
__global__ void __launch_bounds__(kManyThreads, 1)
    gemm_f32_many_rows_kernel(const __grid_constant__ Params p, const void* weights) {
  extern __shared__ uint8_t raw_shared[];
  auto& s = *reinterpret_cast<ManyRows*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    s.ring.init(kLoadThreads / 32 * kWarpArrivals + 1, kWarps * kWarpArrivals);
    fence_barrier_init();
  }
  grid_dependency_wait();
  __syncthreads();
  if (warp_index() < kWarps) {
    setmaxnreg_inc<kMathRegs>();
    MathRows(p, s).run();
  } else {
    setmaxnreg_dec<kLoadRegs>();
    Loader<Weight>{p, s, weights, static_cast<int>(threadIdx.x) - kMathThreads}.run();
  }
}

}  // namespace
}  // namespace levin::cuda::gemm_f32_kernel

namespace levin::cuda {

void gemm_f32_many_rows(const GemmF32& a, CUstream_st* stream) {
  using namespace gemm_f32_kernel;
  Params p = product_params(a);
  p.x_map = x_map(a, kTileM, kStepK, Swizzle::k128);
  p.has_whole_fours = a.out_ld % 4 == 0 && (a.n_heads == 1 || a.out_head_ld % 4 == 0) && aligned_16(a.out);
  p.n_head_strips = ceil_div(a.n, kTileN);
  p.n_items = ceil_div(a.n_tokens, kTileM) * a.n_heads * p.n_head_strips;
  const Launch l{.grid = dim3(static_cast<unsigned>(std::min(p.n_items, n_sms()))),
                 .block = dim3(kManyThreads),
                 .shared_bytes = kManyBytes,
                 .pdl = a.pdl,
                 .stream = stream};
  const auto kernel = a.w_type == DType::kBF16  ? gemm_f32_many_rows_kernel<Bf16Weight>
                      : a.w_type == DType::kF32 ? gemm_f32_many_rows_kernel<F32Weight>
                                                : gemm_f32_many_rows_kernel<E4m3Weight>;
  launch_kernel(kernel, l, p, a.w);
}

}  // namespace levin::cuda
