// gemm_f32 for many rows, sm_90a: a block multiplies tiles of 256 rows and 128 outputs.
//
//   in    x [T, H, K] f32, w [H, N, K] f32, bf16 or e4m3, a scale per 128 x 128 for the latter    out  [T, H, N] f32, bf16 or e4m3
//   grid  persistent over tiles: outputs of a head fastest, then heads, then rows, so that tiles in flight share rows
//   block 8 math warps of 32 rows each and all outputs, + 1 load warpgroup
//   smem  struct ManyRows: a ring of stages, each 32 k of the rows and, as f32, of the weights, k by k; totals of the math threads
//   flow  load warpgroup, per stage: wait empty -> each thread brings one output's weights to f32, and turns rows -> full.
//         math: wait full -> multiply -> empty; per block of k: totals
//   edge  what lies beyond N or K counts as zero, which changes no sum; rows and outputs beyond T and N are not stored
//   cost  a thread multiplies 8 rows with 16 outputs: for each k it loads 6 pieces of 16 bytes, in 24 cycles of the SM, and
//         issues 128 multiply-adds, in 32
//   why   what a thread loads goes down with its sums. 128 of them leave no registers for totals, nor for conversions, which
//         are made once for all warps. k by k, so that the loop over k need not be unrolled: see multiply_stage()
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
  alignas(16) float x[kManyStages][kStepK][kTileM];  // a row is where row_place() says
  alignas(16) float w[kManyStages][kStepK][kTileN];  // an output where output_place() says
  float4 total[kOwnFours][kMathThreads];
  RingBarriers<kManyStages> ring;
};
constexpr int kManyBytes = static_cast<int>(sizeof(ManyRows));
static_assert(kManyBytes <= kMaxSharedBytes);

// Where four rows, `row` the first of them, stand in the line of a k. Lanes that store four k each of the same rows use different
// banks of shared memory.
__device__ __forceinline__ int row_place(int row, int k) { return row ^ k / kFour * kFour; }
// Where an output stands: neighbours change places, for multiply_stage().
__device__ __forceinline__ int output_place(int output) { return output ^ 1; }

// What the loads of threads need, where Params has maps for the copy engine.
struct Operands {
  const float* x;
  int64_t x_ld, x_head_ld;
  const void* w;
};

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
  static constexpr int kFours = kStepK / kFour;     // of a row in a stage, which lanes have next to each other
  static constexpr int kPartRows = kLoadThreads / kFours * kFour;  // that the warpgroup loads at a time
  const Params& p;
  ManyRows& s;
  Operands in;
  int thread;

  // This thread's output, of one stage; zeros beyond N and K.
  __device__ __forceinline__ void load(uint4 (&piece)[kPieces], const Tile& at, int k) const {
    const int n = at.first_n + thread;
    const auto* row = static_cast<const uint8_t*>(in.w) + ((int64_t{at.head} * p.n + n) * p.k + k) * Weight::kBytes;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      piece[i] = {0, 0, 0, 0};
      if (n < p.n && k + i * kPieceK < p.k) piece[i] = __ldg(reinterpret_cast<const uint4*>(row) + i);
    }
  }
  template <int kAt>
  __device__ __forceinline__ void store(float (*to)[kTileN], const uint4& piece) const {
    to[kAt][output_place(thread)] = Weight::template value<kAt>(piece);
    if constexpr (kAt + 1 < kPieceK) store<kAt + 1>(to, piece);
  }

  // Four k of four rows each, turned. Rows beyond T are the last one again, which nobody stores; zeros beyond K.
  template <int kParts>
  __device__ __forceinline__ void copy_rows(float (*to)[kTileM], const Tile& at, int k, int first) const {
    const int own_k = thread % kFours * kFour, own_row = first + thread / kFours * kFour;
    const float* x = in.x + at.head * in.x_head_ld + k + own_k;
    float four[kParts][kFour][kFour];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int r = 0; r < kFour; ++r) {
        const int row = min(at.first_row + own_row + part * kPartRows + r, p.n_tokens - 1);
        float4 v = {0, 0, 0, 0};
        if (k + own_k < p.k) v = *reinterpret_cast<const float4*>(x + row * in.x_ld);
        *reinterpret_cast<float4*>(four[part][r]) = v;
      }
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < kFour; ++i)
        *reinterpret_cast<float4*>(to[own_k + i] + row_place(own_row + part * kPartRows, own_k)) = {
            four[part][0][i], four[part][1][i], four[part][2][i], four[part][3][i]};
  }

  __device__ void run() {
    constexpr int kPartsAtOnce = 2;
    RingPosition<kManyStages> to;
    for (int item = static_cast<int>(blockIdx.x); item < p.n_items; item += static_cast<int>(gridDim.x)) {
      const Tile at = tile_of(p, item);
      for (int k = 0; k < p.k; k += kStepK, to.advance()) {
        uint4 piece[kPieces];
        load(piece, at, k);
        s.ring.empty[to.stage].wait(to.parity ^ 1);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) store<0>(s.w[to.stage] + i * kPieceK, piece[i]);
#pragma unroll 1
        for (int row = 0; row < kTileM; row += kPartsAtOnce * kPartRows)
          copy_rows<kPartsAtOnce>(s.x[to.stage], at, k, row);
        s.ring.full[to.stage].arrive_as_warp();
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

  __device__ __forceinline__ int own_row(int i) const {
    return warp * 32 + i / kFour * 16 + lane / 8 * kFour + i % kFour;
  }

  // As timed, a multiply-add is issued in one cycle where its operands are in both banks of registers, even and odd, or were
  // kept from the one before. Here a row's value is kept while outputs change, and then an output's; a sum is in the bank of
  // its number, so a weight is loaded to the other. A loop over several k would move sums between registers.
  __device__ __forceinline__ void multiply_stage(int stage) {
    const float* x = s.x[stage][0];
    const float* w = s.w[stage][0] + lane % 8 * kFour;
#pragma unroll 1
    for (int k = 0; k < kStepK; ++k, x += kTileM, w += kTileN) {
      float row[kOwnRows], weight[kOwnOutputs];
#pragma unroll
      for (int i = 0; i < kOwnRows; i += kFour)
        *reinterpret_cast<float4*>(row + i) = *reinterpret_cast<const float4*>(x + row_place(own_row(i), k));
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += kFour)
        *reinterpret_cast<float4*>(weight + j) = *reinterpret_cast<const float4*>(w + j * 8);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
        for (int step = 0; step < kOwnOutputs; ++step) {
          const int j = i % 2 == 0 ? step : kOwnOutputs - 1 - step;
          sum[i][j] = __fmaf_rn(row[i], weight[output_place(j)], sum[i][j]);
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
  // Codes with a scale to a row of the tile, which eight lanes have.
  __device__ __forceinline__ void round(const Tile& at) const {
    const QuantizedRows& to = p.rounded;
    const int first = at.head * p.n + at.first_n;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = at.first_row + own_row(i);
      const uint32_t exponent = scale_exponent(largest_of_lanes<8>(sum[i]));
      if (row >= p.n_tokens) continue;
      const float inverse = inverse_power(exponent);
      auto* codes = reinterpret_cast<uint32_t*>(to.codes + row * to.code_row_bytes + first) + lane % 8;
#pragma unroll
      for (int j = 0; j < kOwnOutputs; j += kFour)
        codes[j * 2] = e4m3_codes(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3], inverse);
      if (lane % 8 == 0)
        to.scale[first / kBlockK * to.scale_ld + row * to.scale_row_stride] = power_of_exponent(exponent);
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
    gemm_f32_many_rows_kernel(const __grid_constant__ Params p, const __grid_constant__ Operands in) {
  extern __shared__ __align__(16) uint8_t raw_shared[];
  auto& s = *reinterpret_cast<ManyRows*>(raw_shared);
  launch_dependents();
  if (threadIdx.x == 0) {
    s.ring.init(kLoadThreads / 32 * kWarpArrivals, kWarps * kWarpArrivals);
    fence_barrier_init();
  }
  grid_dependency_wait();
  __syncthreads();
  if (warp_index() < kWarps) {
    setmaxnreg_inc<kMathRegs>();
    MathRows(p, s).run();
  } else {
    setmaxnreg_dec<kLoadRegs>();
    Loader<Weight>{p, s, in, static_cast<int>(threadIdx.x) - kMathThreads}.run();
  }
}

}  // namespace
}  // namespace levin::cuda::gemm_f32_kernel

namespace levin::cuda {

void gemm_f32_many_rows(const GemmF32& a, CUstream_st* stream) {
  using namespace gemm_f32_kernel;
  Params p = product_params(a);
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
  launch_kernel(kernel, l, p, Operands{a.x, a.x_ld, a.x_head_ld, a.w});
}

}  // namespace levin::cuda
