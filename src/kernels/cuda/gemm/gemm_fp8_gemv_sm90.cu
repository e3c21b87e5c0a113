// gemm_fp8 for one or two rows of one dense product, sm_90a. A block multiplies strips of kWidth weight rows, all of K,
// with activations that it keeps in shared memory.
//
//   in    x [T, K] e4m3, w [N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  at most one block per SM, persistent over strips
//   block 1 math warpgroup (warps 0-3), 1 warp of which one thread loads weights, 1 warp that promotes
//   smem  Shared, then Layout: a ring of stages, each kBlocks blocks of 128 k of a strip; the rows of x, two rows of
//         128 k after another; their scales and those of all the block's strips
//   flow  loader: wait empty -> one copy -> full.
//         math: weight scales -> grid_dependency_wait() -> rows and their scales -> per stage: wait full -> 2 tiles of 4
//         wgmma -> empty -> sums to shared memory; the stage after is being multiplied meanwhile.
//         promote: per stage: sums -> totals; at a strip's end: totals -> global
//   edge  what lies beyond N or K loads as zero; blocks beyond K are not promoted, columns beyond N and rows beyond T not
//         stored. Columns of sums beyond those of x are read on in shared memory and not used
//   cost  reads N*K weight bytes once, T*K activation bytes once per block (from L2); bandwidth-bound
//   why   Weights are the M operand, since instructions of 8 columns are the shortest. Two blocks of k of a
//         strip of 32 rows are one tile of 64, and the rows of x of the same blocks its columns: of the sums only those
//         where both are of one block count, and an instruction does the work of two.
//         Strips of 48 and 56 rows are tiles by themselves: where those of 32 would be two for some SMs and one for the
//         others, which then wait.
//         What a short product adds to its bytes is the way from the kernel before to the first product, and from the
//         last product to the next kernel. Weights load during the kernel before; rows come by ordinary loads of all
//         threads, which take half the time of the copy engine's; and no more weights are asked for at a time than keep
//         memory busy, since the rows' loads and the last stores of the kernel before queue after them. Measured in
//         docs/deep_dives/products.md
#include <algorithm>

#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/fp8_promote.cuh"
#include "kernels/cuda/tiles/handover.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/store_rows.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda {
namespace {

constexpr int kBlockK = 128;
constexpr int kRows = kMaxGemvRows;
constexpr int kBlocks = 4;  // of k, of a stage
constexpr int kMathThreads = 128;
constexpr int kLoadWarp = kMathThreads / 32;
constexpr int kPromoteWarp = kLoadWarp + 1;
constexpr int kThreads = kMathThreads + 2 * 32;
constexpr int kRowsBarrier = 1;
constexpr int kSumsBarrier = 2;  // and the next three
constexpr int kMaxStages = 16;
constexpr int kRowsOfBlock = kRows * kBlockK;  // bytes of x of one block of k
constexpr int kScaleTurns = kMaxGemvK / kBlockK / kMathThreads;
// Of each of two blocks on a SM: 228 KB, of which the system keeps 1 KB for each block.
constexpr int kHalfSharedBytes = 113 * 1024;

// Bytes of weights that an SM asks for at a time, about: together they keep memory busy. Where only every other SM has
// strips, more.
constexpr int kBytesInFlight = 48 * 1024, kMoreBytesInFlight = 64 * 1024;

template <int kWidthOf>
struct Config {
  static constexpr int kWidth = kWidthOf;                  // of a strip
  static constexpr int kPack = 64 / kWidth;                // blocks of k of a tile
  static constexpr int kTiles = kBlocks / kPack;           // of a stage: their steps alternate in the matrix unit
  static constexpr bool kCrosses = kBlockK % kWidth != 0;  // a strip may straddle two blocks of weight scales
  static constexpr int kScaleRows = kCrosses ? 2 : 1;
  static constexpr int kTileBytes = kPack * kWidth * kBlockK;
  static constexpr int kStageBytes = kTiles * kTileBytes;
  static_assert(kWidth % 8 == 0 && kBlocks % kPack == 0);
  static_assert(kPack * kRows <= 8, "the matrix unit's smallest N");

  // Sums of a stage's products: [tile][token][row of the tile].
  using StageSums = float[kTiles][kRows][64];
};

// Where things lie in shared memory, in bytes after the ring's first stage.
struct Layout {
  int n_stages;
  int n_in_flight;  // stages that load at a time
  int x;            // [n_k_blocks, kRows, 128] e4m3, 128-byte swizzle
  int x_scale;      // [n_k_blocks, kRows] f32
  int w_scale;      // [strips of the block, kScaleRows, n_k_blocks] f32
  int end;
};

struct Params {
  CUtensorMap w_map;  // [K / 128, N, 128], boxes [kBlocks, kWidth, 128]
  const uint8_t* x;
  int64_t x_row_bytes;
  const float* x_scale;
  int64_t x_scale_ld;
  const float* w_scale;
  void* out;
  int n_tokens, n, n_k_blocks, n_strips;
  bool out_is_f32;
  Layout layout;
};

template <class C>
struct Shared {
  RingBarriers<kMaxStages> ring;
  typename C::StageSums sums[2];  // of one stage and the one before
  Handover<kSumsBarrier, kMathThreads, 32> sums_turns;
  alignas(kSwizzleAlignment) uint8_t stages[];
};

__device__ __forceinline__ int strips_of_block(const Params& p) {
  return (p.n_strips - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
}
__device__ __forceinline__ int strip_of_block(int i) {
  return static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x);
}

template <class C>
__device__ void load_weights(const Params& p, Shared<C>& s) {
  RingPlace at{p.layout.n_stages}, landed{p.layout.n_stages};
  int n_sent = 0;
  for (int i = 0; i < strips_of_block(p); ++i) {
    for (int block = 0; block < p.n_k_blocks; block += kBlocks) {
      if (n_sent++ >= p.layout.n_in_flight) {
        s.ring.full[landed.stage].wait(landed.parity);
        landed.advance();
      }
      s.ring.empty[at.stage].wait(at.parity ^ 1);
      s.ring.full[at.stage].arrive_expect_bytes(C::kStageBytes);
      tma_load_3d(s.stages + at.stage * C::kStageBytes, p.w_map, s.ring.full[at.stage], 0,
                  strip_of_block(i) * C::kWidth, block, kEvictFirst);
      at.advance();
    }
  }
}

template <class C>
__device__ __forceinline__ float2* x_scales(const Params& p, Shared<C>& s) {
  return reinterpret_cast<float2*>(s.stages + p.layout.x_scale);
}
template <class C>
__device__ __forceinline__ float* w_scales(const Params& p, Shared<C>& s) {
  return reinterpret_cast<float*>(s.stages + p.layout.w_scale);
}

// The warpgroup that multiplies.
template <class C>
class Math {
 public:
  // A thread's part of a tile: rows row_ and row_ + 8, columns 2 * (lane % 4) + {0, 1}.
  using Tiles = float[C::kTiles][4];

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        x_(s.stages + p.layout.x),
        thread_(static_cast<int>(threadIdx.x)),
        row_(warp_index() * 16 + thread_ % 32 / 4),
        next_{p.layout.n_stages},
        done_{p.layout.n_stages},
        x_low_(descriptor_low(x_)),
        w_low_(descriptor_low(s.stages)) {}

  __device__ void run() {
    load_weight_scales();
    grid_dependency_wait();
    load_rows();
    fence_async_shared();
    named_barrier(kRowsBarrier, kMathThreads);
    const int n = strips_of_block(p_) * ((p_.n_k_blocks + kBlocks - 1) / kBlocks);
    Tiles even, odd;
    begin_stage(even);
    uint32_t lap = 0;
    for (int i = 0; i < n; i += 2, ++lap) {
      end_stage(even, odd, 0, lap, i + 1 < n);
      if (i + 1 < n) end_stage(odd, even, 1, lap, i + 2 < n);
    }
  }

 private:
  __device__ __forceinline__ void load_weight_scales() {
    const int last_row = (p_.n - 1) / kBlockK, n = strips_of_block(p_) * C::kScaleRows * p_.n_k_blocks;
    for (int at = thread_; at < n; at += kMathThreads) {
      const int row = at / p_.n_k_blocks, first_row = strip_of_block(row / C::kScaleRows) * C::kWidth / kBlockK;
      const int scale_row = min(first_row + row % C::kScaleRows, last_row);
      w_scales(p_, s_)[at] = __ldg(p_.w_scale + int64_t{scale_row} * p_.n_k_blocks + at % p_.n_k_blocks);
    }
  }

  // Ordinary loads, many in flight together. A thread's pieces of 16 bytes are 16 blocks apart, where the swizzle
  // repeats.
  __device__ __forceinline__ void load_rows() {
    constexpr int kAtOnce = 4;
    constexpr int kStep = kMathThreads * 16;  // bytes of a row
    float scale[kScaleTurns][kRows];
#pragma unroll
    for (int i = 0; i < kScaleTurns; ++i)
#pragma unroll
      for (int t = 0; t < kRows; ++t)
        if (t < p_.n_tokens && scaled_block(i) < p_.n_k_blocks)
          scale[i][t] = __ldcg(p_.x_scale + scaled_block(i) * p_.x_scale_ld + t);
    const int row_bytes = p_.n_k_blocks * kBlockK;
    for (int first = thread_ * 16; first < row_bytes; first += kAtOnce * kStep) {
      uint4 held[kAtOnce][kRows];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int t = 0; t < kRows; ++t)
          if (t < p_.n_tokens && first + i * kStep < row_bytes)
            held[i][t] = __ldcg(reinterpret_cast<const uint4*>(p_.x + t * p_.x_row_bytes + first + i * kStep));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int t = 0; t < kRows; ++t)
          if (t < p_.n_tokens && first + i * kStep < row_bytes)
            *reinterpret_cast<uint4*>(x_ + i * (kStep * kRows) +
                                      swizzle_128(first / kBlockK * kRows + t, first % kBlockK)) = held[i][t];
    }
#pragma unroll
    for (int i = 0; i < kScaleTurns; ++i)
#pragma unroll
      for (int t = 0; t < kRows; ++t)
        if (t < p_.n_tokens && scaled_block(i) < p_.n_k_blocks)
          reinterpret_cast<float*>(x_scales(p_, s_) + scaled_block(i))[t] = scale[i][t];
  }
  __device__ __forceinline__ int scaled_block(int turn) const { return thread_ + turn * kMathThreads; }

  __device__ __forceinline__ void begin_stage(Tiles& tiles) {
    s_.ring.full[next_.stage].wait(next_.parity);
    const uint32_t w = w_low_ + static_cast<uint32_t>(next_.stage) * (C::kStageBytes / 16);
    const uint32_t x = x_low_ + static_cast<uint32_t>(begun_block_) * (kRowsOfBlock / 16);
    wgmma_fence();
    multiply_blocks<8>(tiles, TilePair{w, x, C::kTileBytes, C::kPack * kRowsOfBlock});
    wgmma_commit();
    next_.advance();
    begun_block_ += kBlocks;
    if (begun_block_ >= p_.n_k_blocks) begun_block_ = 0;
  }

  // Begins the stage after, then hands this one's sums to the warp that promotes. Row r of a tile is of its block
  // r / kWidth, whose columns are kRows * block + token: they are in every fourth lane, as {0, 1} the tokens. Of strips that
  // do not divide 64 the last rows are the next tile's first and not used.
  __device__ __forceinline__ void end_stage(Tiles& tiles, Tiles& after, int buffer, uint32_t lap, bool more) {
    if (more) begin_stage(after);
    if (more)
      wgmma_wait<1>();
    else
      wgmma_wait<0>();
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) wgmma_touch(tiles[tile]);
    s_.ring.empty[done_.stage].arrive_as_warp();
    done_.advance();
    s_.sums_turns.wait_free(buffer, lap);
    if (thread_ % 4 == row_ / C::kWidth) {
#pragma unroll
      for (int tile = 0; tile < C::kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) s_.sums[buffer][tile][i % 2][row_ + i / 2 * 8] = tiles[tile][i];
    }
    s_.sums_turns.pass(buffer);
  }

  const Params& p_;
  Shared<C>& s_;
  uint8_t* x_;
  int thread_, row_;
  RingPlace next_, done_;
  uint32_t x_low_, w_low_;
  int begun_block_ = 0;  // of the strip whose products come next
};

// The warp that promotes: a lane has kOutputs outputs of a strip, output o being row o % kWidth of token o / kWidth.
template <class C>
class Fold {
 public:
  static constexpr int kOutputs = (kRows * C::kWidth + 31) / 32;

  __device__ Fold(const Params& p, Shared<C>& s) : p_(p), s_(s), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    uint32_t n_consumed = 0;
    s_.sums_turns.release(0);
    s_.sums_turns.release(1);
    for (int strip = 0; strip < strips_of_block(p_); ++strip) {
      float totals[kOutputs] = {};
      for (int block = 0; block < p_.n_k_blocks; block += kBlocks) {
        const int buffer = static_cast<int>(n_consumed % 2);
        s_.sums_turns.wait_full(buffer, n_consumed / 2);
        promote(totals, s_.sums[buffer], strip, block);
        s_.sums_turns.release(buffer);
        ++n_consumed;
      }
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) store(totals[o], token(o), strip_of_block(strip) * C::kWidth + row(o));
    }
  }

 private:
  __device__ __forceinline__ int token(int o) const { return (lane_ + 32 * o) / C::kWidth; }
  __device__ __forceinline__ int row(int o) const { return (lane_ + 32 * o) % C::kWidth; }

  __device__ __forceinline__ void promote(float (&totals)[kOutputs], const typename C::StageSums& sums, int strip,
                                          int first_block) {
    const float* w = w_scales(p_, s_) + strip * C::kScaleRows * p_.n_k_blocks + first_block;
    const float2* x = x_scales(p_, s_) + first_block;
    const int first_row = strip_of_block(strip) * C::kWidth % kBlockK;  // in its block of scales
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float2 x_scale = x[b];
      const float first_scale = w[b], second_scale = C::kCrosses ? w[p_.n_k_blocks + b] : first_scale;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const float sum = sums[b / C::kPack][min(token(o), kRows - 1)][b % C::kPack * C::kWidth + row(o)];
        const float w_scale = first_row + row(o) < kBlockK ? first_scale : second_scale;
        const float scale = (token(o) == 0 ? x_scale.x : x_scale.y) * w_scale;
        if (first_block + b < p_.n_k_blocks) totals[o] = __fmaf_rn(sum, scale, totals[o]);
      }
    }
  }

  __device__ __forceinline__ void store(float value, int token, int column) {
    if (token >= p_.n_tokens || column >= p_.n) return;
    const int64_t at = int64_t{token} * p_.n + column;
    if (p_.out_is_f32)
      static_cast<float*>(p_.out)[at] = value;
    else
      static_cast<__nv_bfloat16*>(p_.out)[at] = __float2bfloat16_rn(value);
  }

  const Params& p_;
  Shared<C>& s_;
  int lane_;
};

template <class C>
__global__ void __launch_bounds__(kThreads, 2) gemm_fp8_gemv_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  launch_dependents();
  if (threadIdx.x == kLoadWarp * 32) {
    prefetch_map(p.w_map);
    s.ring.init(1, kMathThreads / 32 * kWarpArrivals, p.layout.n_stages);
    s.sums_turns.init();
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < kLoadWarp)
    Math<C>(p, s).run();
  else if (warp == kPromoteWarp)
    Fold<C>(p, s).run();
  else if (elect_one())
    load_weights<C>(p, s);
}

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int ceil_div(int a, int b) { return (a + b - 1) / b; }

// A product whose weights, a block's share, fill less than three quarters of a whole SM's ring takes half of the shared memory, so
// that the blocks of the next kernel start, and their weights load, while this one's run. A longer one streams, best
// through one deep ring.
template <class C>
Layout layout_of(int n_k_blocks, int n_strips_of_block, int n_blocks) {
  constexpr int kMostKBlocks = kMaxGemvK / kBlockK;
  constexpr int kMostFixed = kSwizzleAlignment + static_cast<int>(sizeof(Shared<C>)) + kMostKBlocks * kRowsOfBlock +
                             1024 + kMostKBlocks * kRows * 4 + (kMaxGemvScales + kBlocks) * 4;
  static_assert((kMaxSharedBytes - kMostFixed) / C::kStageBytes >= 2, "Math holds two stages");
  const int n_stages = n_strips_of_block * ceil_div(n_k_blocks, kBlocks);
  const int whole_k_blocks = round_up(n_k_blocks, kBlocks);
  const int x_bytes = whole_k_blocks * kRowsOfBlock + 1024;  // 8 rows are read where the last begin
  const int x_scale_bytes = whole_k_blocks * kRows * 4;
  const int w_scale_bytes = (n_strips_of_block * C::kScaleRows * n_k_blocks + kBlocks) * 4;
  const int fixed = kSwizzleAlignment + static_cast<int>(sizeof(Shared<C>)) + x_bytes + x_scale_bytes + w_scale_bytes;
  const bool streams = n_stages * 4 > (kMaxSharedBytes - fixed) / C::kStageBytes * 3;
  Layout l;
  l.n_stages = std::min(((streams ? kMaxSharedBytes : kHalfSharedBytes) - fixed) / C::kStageBytes, kMaxStages);
  // Two blocks share an SM where none streams.
  const int in_flight = !streams ? kBytesInFlight / 2 : n_blocks > n_sms() / 2 ? kBytesInFlight : kMoreBytesInFlight;
  l.n_in_flight = ceil_div(in_flight, C::kStageBytes);
  l.x = l.n_stages * C::kStageBytes;
  l.x_scale = l.x + x_bytes;
  l.w_scale = l.x_scale + x_scale_bytes;
  l.end = l.x + fixed;
  return l;
}

template <class C>
void run(const GemmFp8& a, CUstream_st* stream) {
  const int n_k_blocks = a.k / kBlockK, n_strips = ceil_div(a.n, C::kWidth), n_blocks = std::min(n_sms(), n_strips);
  MatrixStackMap w;
  w.matrix.data = a.w;
  w.matrix.n_rows = a.n;
  w.matrix.n_columns = kBlockK;
  w.matrix.row_bytes = a.k;
  w.matrix.box_rows = C::kWidth;
  w.matrix.box_columns = kBlockK;
  w.matrix.swizzle = Swizzle::k128;
  w.n_matrices = n_k_blocks;
  w.matrix_bytes = kBlockK;
  w.box_matrices = kBlocks;
  const Params p{make_tensor_map(w),
                 a.x,
                 a.x_row_bytes,
                 a.x_scale,
                 a.x_scale_ld,
                 a.w_scale,
                 a.out,
                 a.n_tokens,
                 a.n,
                 n_k_blocks,
                 n_strips,
                 a.out_is_f32,
                 layout_of<C>(n_k_blocks, ceil_div(n_strips, n_blocks), n_blocks)};
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(kThreads);
  l.shared_bytes = p.layout.end;
  l.pdl = a.pdl;
  l.stream = stream;
  launch_kernel(gemm_fp8_gemv_kernel<C>, l, p);
}

}  // namespace

void gemm_fp8_gemv(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  switch (plan.width) {
    case 48:
      return run<Config<48>>(a, stream);
    case 56:
      return run<Config<56>>(a, stream);
    default:
      return run<Config<32>>(a, stream);
  }
}

}  // namespace levin::cuda
