// gemm_fp8 for one or two rows of one dense product, sm_90a. A block multiplies strips of kWidth weight rows, all of K,
// with activations that it keeps in shared memory.
//
//   in    x [T, K] e4m3, w [N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  at most one block per multiprocessor, persistent over strips
//   block 1 math warpgroup (warps 0-3) + 1 warp of which one thread loads weights
//   smem  Shared, then Layout: a ring of stages, each kBlocks blocks of 128 k of a strip; the rows of x, two rows of
//         128 k after another; their scales and those of all the block's strips
//   flow  loader: wait empty -> one copy -> full.
//         math: weight scales -> wait_for_previous() -> rows and their scales -> per stage: wait full -> 2 tiles of 4
//         wgmma -> empty -> fold; the stage after is being multiplied meanwhile
//   edge  a strip of 48 or 56 rows is padded to the matrix unit's 64 by reading on in shared memory, and so are the rows
//         of x to 8: those sums are never used, and neither rows nor columns mix. Blocks beyond K are not folded
//   cost  reads N*K weight bytes once, T*K activation bytes once per block (from L2); bandwidth-bound
//   why   what a short product adds to its bytes is the way from the kernel before to the first product, and from the
//         last product to the next kernel. Weights load during the kernel before, as many as half of the shared memory
//         holds. Rows come by ordinary loads of all threads, which take half the time of the copy engine's. Weights are
//         the M operand, since instructions of 8 columns are the shortest; a strip of 16 or 32 rows takes 4 or 2 blocks
//         of k as one tile of 64, with the rows of x of the same blocks as its columns: of the products only those
//         where both are of one block count. Measured in docs/performance.md
#include <algorithm>

#include "kernels/cuda/gemm_fp8.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/fp8_fold.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/store_rows.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda {
namespace {

constexpr int kBlockK = 128;
constexpr int kRows = kMostFewRows;
constexpr int kTiles = 2;  // of 64 rows, in a stage: their steps alternate in the matrix unit
constexpr int kMathThreads = 128;
constexpr int kThreads = kMathThreads + 32;
constexpr int kMathBarrier = 1;
constexpr int kMaxStages = 8;
constexpr int kRowsOfBlock = kRows * kBlockK;  // bytes of x of one block of k
// Of each of two blocks on a multiprocessor: 228 KB, of which the system keeps 1 KB for each block.
constexpr int kSharedBytes = 113 * 1024;

// Where things lie in shared memory, in bytes behind the ring's first stage.
struct Layout {
  int n_stages;
  int x;        // [n_k_blocks, kRows, 128] e4m3, 128-byte swizzle
  int x_scale;  // [n_k_blocks, kRows] f32
  int w_scale;  // [strips of the block, kScaleRows, n_k_blocks] f32
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

template <int kWidthOf>
struct Config {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kPack = kWidth <= 32 ? 64 / kWidth : 1;  // blocks of k of a tile
  static constexpr int kBlocks = kTiles * kPack;                // of a stage
  static constexpr int kTileBytes = kPack * kWidth * kBlockK;
  static constexpr int kStageBytes = kTiles * kTileBytes;
  static constexpr int kScaleRows = kBlockK % kWidth == 0 ? 1 : 2;  // a strip may straddle two blocks of weight scales
  static_assert(kPack * kRows <= 8, "the matrix unit's smallest N");
};

struct Shared {
  RingBarriers<kMaxStages> ring;
  float packed_sums[2][kTiles][kRows][64];  // of one stage and the one before: [tile][token][row of the tile]
  alignas(kSwizzleAlignment) uint8_t stages[];
};

__device__ __forceinline__ int strips_of_block(const Params& p) {
  return (p.n_strips - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
}
__device__ __forceinline__ int strip_of_block(int i) {
  return static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x);
}

// As RingPosition, where the number of stages is known at launch.
struct RingPlace {
  int n_stages;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == n_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class C>
__device__ void load_weights(const Params& p, Shared& s) {
  RingPlace at{p.layout.n_stages};
  for (int i = 0; i < strips_of_block(p); ++i) {
    for (int block = 0; block < p.n_k_blocks; block += C::kBlocks) {
      s.ring.empty[at.stage].wait(at.parity ^ 1);
      s.ring.full[at.stage].arrive_expect_bytes(C::kStageBytes);
      tma_load_3d(s.stages + at.stage * C::kStageBytes, p.w_map, s.ring.full[at.stage], 0,
                  strip_of_block(i) * C::kWidth, block, kEvictFirst);
      at.advance();
    }
  }
}

template <class C>
class Math {
 public:
  // A thread's part of a tile: rows row_ and row_ + 8, columns 2 * (lane % 4) + {0, 1}.
  using Tiles = float[kTiles][4];

  __device__ Math(const Params& p, Shared& s)
      : p_(p),
        s_(s),
        x_(s.stages + p.layout.x),
        x_scale_(reinterpret_cast<float2*>(s.stages + p.layout.x_scale)),
        w_scale_(reinterpret_cast<float*>(s.stages + p.layout.w_scale)),
        thread_(static_cast<int>(threadIdx.x)),
        row_(warp_index() * 16 + thread_ % 32 / 4),
        next_{p.layout.n_stages},
        done_{p.layout.n_stages},
        x_low_(descriptor_low(x_)),
        w_low_(descriptor_low(s.stages)) {}

  __device__ void run() {
    load_weight_scales();
    wait_for_previous();
    load_rows();
    fence_async_shared();
    named_barrier(kMathBarrier, kMathThreads);
    const int n = strips_of_block(p_) * ((p_.n_k_blocks + C::kBlocks - 1) / C::kBlocks);
    Tiles even, odd;
    float total[4] = {};
    begin_stage(even);
    for (int i = 0; i < n; i += 2) {
      end_stage(total, even, odd, 0, i + 1 < n);
      if (i + 1 < n) end_stage(total, odd, even, 1, i + 2 < n);
    }
  }

 private:
  __device__ __forceinline__ void load_weight_scales() {
    const int n_scale_rows = (p_.n + kBlockK - 1) / kBlockK;
    for (int at = thread_; at < strips_of_block(p_) * C::kScaleRows * p_.n_k_blocks; at += kMathThreads) {
      const int block = at % p_.n_k_blocks, row = at / p_.n_k_blocks;
      const int first = strip_of_block(row / C::kScaleRows) * C::kWidth / kBlockK;
      const int scale_row = min(first + row % C::kScaleRows, n_scale_rows - 1);
      w_scale_[at] = __ldg(p_.w_scale + int64_t{scale_row} * p_.n_k_blocks + block);
    }
  }

  // Ordinary loads, many in flight together. A thread's pieces of 16 bytes are 16 blocks apart, where the swizzle
  // repeats.
  __device__ __forceinline__ void load_rows() {
    constexpr int kAtOnce = 4;
    constexpr int kStep = kMathThreads * 16;  // bytes of a row
    float scale[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t)
      if (t < p_.n_tokens && thread_ < p_.n_k_blocks) scale[t] = __ldcg(p_.x_scale + thread_ * p_.x_scale_ld + t);
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
    for (int t = 0; t < kRows; ++t)
      if (t < p_.n_tokens && thread_ < p_.n_k_blocks) reinterpret_cast<float*>(x_scale_ + thread_)[t] = scale[t];
  }

  __device__ __forceinline__ void begin_stage(Tiles& tiles) {
    s_.ring.full[next_.stage].wait(next_.parity);
    const uint32_t w = w_low_ + static_cast<uint32_t>(next_.stage) * (C::kStageBytes / 16);
    const uint32_t x = x_low_ + static_cast<uint32_t>(begun_block_) * (kRowsOfBlock / 16);
    wgmma_fence();
    multiply_blocks<8, 1024>(tiles, TilePair{w, x, C::kTileBytes, C::kPack * kRowsOfBlock});
    wgmma_commit();
    next_.advance();
    begun_block_ += C::kBlocks;
    if (begun_block_ >= p_.n_k_blocks) begun_block_ = 0;
  }

  // Begins the stage after, then folds this one.
  __device__ __forceinline__ void end_stage(float (&total)[4], Tiles& tiles, Tiles& after, int buffer, bool more) {
    if (more) begin_stage(after);
    if (more)
      wgmma_wait<1>();
    else
      wgmma_wait<0>();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) wgmma_touch(tiles[tile]);
    if (thread_ % 32 == 0) s_.ring.empty[done_.stage].arrive();
    done_.advance();
    if constexpr (C::kPack == 1)
      fold(total, tiles);
    else
      fold_packed(total[0], tiles, s_.packed_sums[buffer]);
    block_ += C::kBlocks;
    if (block_ < p_.n_k_blocks) return;
    if constexpr (C::kPack == 1)
      store(total);
    else
      store_packed(total[0]);
#pragma unroll
    for (float& value : total) value = 0;
    block_ = 0;
    ++strip_;
  }

  // Columns 0 and 1 count: those of every fourth lane.
  __device__ __forceinline__ void fold(float (&total)[4], const Tiles& tiles) {
    // Rows of 8 share their scale: a strip's borders are multiples of 8.
    const int first_row = C::kScaleRows > 1 ? strip_of_block(strip_) * C::kWidth % kBlockK + row_ : 0;
    const float* low = w_scale_ + strip_ * C::kScaleRows * p_.n_k_blocks + block_;
    const float* high = low;
    if (first_row >= kBlockK) low += p_.n_k_blocks;
    if (first_row + 8 >= kBlockK) high += p_.n_k_blocks;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 x = x_scale_[block_ + tile];
      const float w_low = low[tile], w_high = C::kScaleRows > 1 ? high[tile] : w_low;
      if (block_ + tile >= p_.n_k_blocks) continue;
      total[0] = __fmaf_rn(tiles[tile][0], x.x * w_low, total[0]);
      total[1] = __fmaf_rn(tiles[tile][1], x.y * w_low, total[1]);
      total[2] = __fmaf_rn(tiles[tile][2], x.x * w_high, total[2]);
      total[3] = __fmaf_rn(tiles[tile][3], x.y * w_high, total[3]);
    }
  }

  // Row r of a tile is of its block r / kWidth, whose columns are kRows * block + token. Sums of one output come from
  // several warps: they meet in shared memory, where thread token * kWidth + row folds them in order.
  __device__ __forceinline__ void fold_packed(float& total, const Tiles& tiles, float (&sums)[kTiles][kRows][64]) {
    if (thread_ % 4 == row_ / C::kWidth) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i % 2][row_ + i / 2 * 8] = tiles[tile][i];
    }
    named_barrier(kMathBarrier, kMathThreads);
    if (thread_ >= kRows * C::kWidth) return;
    const int token = thread_ / C::kWidth, row = thread_ % C::kWidth;
    const float* w = w_scale_ + strip_ * p_.n_k_blocks + block_;
    const float* x = reinterpret_cast<const float*>(x_scale_ + block_) + token;
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      const float sum = sums[b / C::kPack][token][b % C::kPack * C::kWidth + row], scale = x[b * kRows] * w[b];
      if (block_ + b < p_.n_k_blocks) total = __fmaf_rn(sum, scale, total);
    }
  }

  __device__ __forceinline__ void store(const float (&total)[4]) {
    if (thread_ % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) store_value(total[i], i % 2, row_ + i / 2 * 8);
  }
  __device__ __forceinline__ void store_packed(float total) {
    if (thread_ < kRows * C::kWidth) store_value(total, thread_ / C::kWidth, thread_ % C::kWidth);
  }
  __device__ __forceinline__ void store_value(float value, int token, int row) {
    const int column = strip_of_block(strip_) * C::kWidth + row;
    if (row >= C::kWidth || column >= p_.n || token >= p_.n_tokens) return;
    const int64_t at = int64_t{token} * p_.n + column;
    if (p_.out_is_f32)
      static_cast<float*>(p_.out)[at] = value;
    else
      static_cast<__nv_bfloat16*>(p_.out)[at] = __float2bfloat16_rn(value);
  }

  const Params& p_;
  Shared& s_;
  uint8_t* x_;
  float2* x_scale_;
  float* w_scale_;
  int thread_, row_;
  RingPlace next_, done_;
  uint32_t x_low_, w_low_;
  int begun_block_ = 0;        // of the strip whose products come next
  int strip_ = 0, block_ = 0;  // what is folded next: the block's strip_-th strip
};

template <class C>
__global__ void __launch_bounds__(kThreads, 2) gemm_fp8_few_rows_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared& s = *reinterpret_cast<Shared*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  let_next_start();
  if (threadIdx.x == kMathThreads) {
    prefetch_map(p.w_map);
    s.ring.init(1, kMathThreads / 32);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < kMathThreads / 32)
    Math<C>(p, s).run();
  else if (elect_one())
    load_weights<C>(p, s);
}

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Everything but the ring, then as many stages as fit beside it. What is read beyond the rows of x, K or a strip's end
// lies in shared memory too.
template <class C>
Layout layout_of(int n_k_blocks, int n_strips_of_block) {
  const int whole_k_blocks = round_up(n_k_blocks, C::kBlocks);
  const int x_bytes = whole_k_blocks * kRowsOfBlock + 1024;
  const int x_scale_bytes = whole_k_blocks * kRows * 4;
  const int w_scale_bytes = round_up((n_strips_of_block * C::kScaleRows * n_k_blocks + C::kBlocks) * 4, 16);
  const int behind = std::max(x_bytes + x_scale_bytes + w_scale_bytes, (64 - C::kWidth) * kBlockK);
  const int fixed = kSwizzleAlignment + static_cast<int>(sizeof(Shared)) + behind;
  Layout l;
  l.n_stages = std::min((kSharedBytes - fixed) / C::kStageBytes, kMaxStages);
  l.x = l.n_stages * C::kStageBytes;
  l.x_scale = l.x + x_bytes;
  l.w_scale = l.x_scale + x_scale_bytes;
  l.end = l.x + fixed;
  return l;
}

template <int kWidth>
void run(const GemmFp8& a, CUstream_st* stream) {
  using C = Config<kWidth>;
  const int n_k_blocks = a.k / kBlockK, n_strips = ceil_div(a.n, kWidth),
            n_blocks = std::min(n_multiprocessors(), n_strips);
  MatrixStackMap w;
  w.matrix.data = a.w;
  w.matrix.n_rows = a.n;
  w.matrix.n_columns = kBlockK;
  w.matrix.row_bytes = a.k;
  w.matrix.box_rows = kWidth;
  w.matrix.box_columns = kBlockK;
  w.matrix.swizzle = Swizzle::k128;
  w.n_matrices = n_k_blocks;
  w.matrix_bytes = kBlockK;
  w.box_matrices = C::kBlocks;
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
                 layout_of<C>(n_k_blocks, ceil_div(n_strips, n_blocks))};
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(kThreads);
  l.shared_bytes = p.layout.end;
  l.follows_closely = a.follows_closely;
  l.stream = stream;
  launch_kernel(gemm_fp8_few_rows_kernel<C>, l, p);
}

}  // namespace

void gemm_fp8_few_rows(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  switch (plan.width) {
    case 16:
      return run<16>(a, stream);
    case 32:
      return run<32>(a, stream);
    case 48:
      return run<48>(a, stream);
    case 56:
      return run<56>(a, stream);
    default:
      return run<64>(a, stream);
  }
}

}  // namespace levin::cuda
