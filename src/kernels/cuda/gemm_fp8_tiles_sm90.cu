// gemm_fp8 for many rows, sm_90a. A pair of blocks (a cluster) computes two neighbouring tiles of outputs at a time.
//
//   in    x [T, K] e4m3, w [G, N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  one pair per two multiprocessors, persistent over (group, pair of column tiles, row tile)
//   block 2 math warpgroups, each kRows / 2 rows in waves of 64, + 1 warpgroup of which one thread loads
//   smem  struct Shared: a ring of stages of 128 k of both operands with their scales, one strip per warp for stores
//   flow  loader: wait empty (both blocks') -> own weights, and half of the rows for both blocks -> full.
//         math: wait full -> per wave 4 wgmma, fold -> empty (of both blocks).
//         end of a tile: registers -> strip -> global
//   edge  the odd column tile of a pair loads zeros and stores nothing; rows beyond a group are a neighbour's and are
//         not stored
//   cost  2 * T * N * K flop; a tile loads kRows / 2 + kWidth bytes per k from L2
//   why   256 rows x 128 columns halve the loads of 128 x 128, and 64 accumulators + 128 totals are what the registers
//         hold; 136 columns divide widths such as 2112 into full rounds. The warpgroups take turns, so that the fold of
//         one hides behind the other's wgmma. Measured, with what was tried, in docs/performance.md
#include <algorithm>

#include "kernels/cuda/gemm_fp8.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/fp8_fold.cuh"
#include "kernels/cuda/tiles/group_walk.cuh"
#include "kernels/cuda/tiles/row_scales.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/store_rows.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"
#include "kernels/cuda/tiles/weight_scales.cuh"

namespace levin::cuda {
namespace {

constexpr int kBlockK = 128;
constexpr int kPair = 2;  // blocks in a cluster
constexpr int kMathWarpgroups = 2;
constexpr int kMathThreads = kMathWarpgroups * 128;
constexpr int kThreads = kMathThreads + 128;
constexpr int kTurnBarrier = 1;  // and 2: named barriers, one for each math warpgroup
constexpr int kLoadRegisters = 24;
constexpr int kMathRegisters = 240;

struct Params {
  CUtensorMap x_map;        // [T, K], boxes [kRows / 2, 128]
  CUtensorMap w_map;        // [G, N, K], boxes [kWidth, 128]
  CUtensorMap x_scale_map;  // RowScales
  const float* w_scale;
  void* out;
  const int32_t* group_begin;
  int n_tokens, n, n_k_blocks, n_groups;
  bool out_is_f32;
};

template <int kRowsOf, int kWidthOf>
struct Config {
  static constexpr int kRows = kRowsOf;
  static constexpr int kWidth = kWidthOf;
  static constexpr int kWaves = kRows / (64 * kMathWarpgroups);  // of 64 rows, for each warpgroup
  static constexpr int kXBytes = kRows * kBlockK;
  static constexpr int kWBytes = kWidth * kBlockK;
  static constexpr int kStages = kRows == 256 ? 4 : 6;
  static constexpr bool kTakeTurns =
      kWaves == 2 && kBlockK % kWidth == 0;              // tiles that cross have no registers left for it
  using Scales = RowScales<kRows / kMathWarpgroups, 1>;  // of one warpgroup's rows
  static constexpr int kStageBytes = kXBytes + kWBytes + kMathWarpgroups * Scales::kBytes;
  static constexpr bool kCrosses = kBlockK % kWidth != 0;  // a tile may straddle two blocks of weight scales
  static constexpr int kScaleRows = kCrosses ? 2 : 1;
};

template <class C>
struct Shared {
  struct alignas(kSwizzleAlignment) Stage {
    uint8_t x[C::kXBytes];
    uint8_t w[C::kWBytes];
  };
  Stage stages[C::kStages];
  WarpStrip strips[kMathThreads / 32];
  typename C::Scales scales[C::kStages][kMathWarpgroups];
  RingBarriers<C::kStages> ring;
  GroupWalk<C::kRows, kMaxGroups> walk;
};

// One thread that issues all copies. Work items are pairs of column tiles; block `rank` of the cluster takes column
// tile 2 * pair + rank.
template <class C>
class Loader {
 public:
  __device__ Loader(const Params& p, Shared<C>& s) : p_(p), s_(s), rank_(static_cast<int>(cluster_rank())) {}

  __device__ void run() {
    const int n_items = s_.walk.n_items(p_.n_groups);
    RingPosition<C::kStages> at;
    int group = 0;
    for (int item = static_cast<int>(blockIdx.x) / kPair; item < n_items; item += static_cast<int>(gridDim.x) / kPair) {
      TilePlace place = s_.walk.find(item, group);
      place.column_tile = place.column_tile * kPair + rank_;
      for (int block = 0; block < p_.n_k_blocks; ++block) {
        s_.ring.empty[at.stage].wait(at.parity ^ 1);
        load(place, block, at.stage);
        at.advance();
      }
    }
  }

 private:
  __device__ void load(const TilePlace& place, int block, int stage) {
    Mbarrier& full = s_.ring.full[stage];
    full.arrive_expect_bytes(C::kStageBytes);
    constexpr int kHalfRows = C::kRows / kPair;
    tma_load_2d_multicast(s_.stages[stage].x + rank_ * (C::kXBytes / kPair), p_.x_map, full, block * kBlockK,
                          place.first_row + rank_ * kHalfRows, (1 << kPair) - 1);
    tma_load_3d(s_.stages[stage].w, p_.w_map, full, block * kBlockK, place.column_tile * C::kWidth, place.group);
#pragma unroll
    for (int g = 0; g < kMathWarpgroups; ++g)
      s_.scales[stage][g].load(p_.x_scale_map, place.first_row + g * (C::kRows / kMathWarpgroups), block, full);
  }

  const Params& p_;
  Shared<C>& s_;
  int rank_;
};

template <class C>
class Math {
 public:
  using Totals = float[C::kWaves][C::kWidth / 2];

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(warp_index()),
        first_row_(warp_ / 4 * (C::kRows / kMathWarpgroups) + warp_ % 4 * 16),
        rank_(static_cast<int>(cluster_rank())),
        x_low_(descriptor_low(s.stages[0].x + warp_ / 4 * C::kWaves * 64 * kBlockK)),
        w_low_(descriptor_low(s.stages[0].w)) {}

  __device__ void run() {
    const int n_items = s_.walk.n_items(p_.n_groups);
    int item = static_cast<int>(blockIdx.x) / kPair, group = 0;
    if (item >= n_items) return;
    if (warp_ / 4 == 1) pass_turn();  // the first warpgroup begins
    TilePlace next = begin(item, group);
    while (item < n_items) {
      const TilePlace place = next;
      Totals totals;
#pragma unroll
      for (int wave = 0; wave < C::kWaves; ++wave)
#pragma unroll
        for (float& value : totals[wave]) value = 0;
      sum_tile(totals, place);
      item += static_cast<int>(gridDim.x) / kPair;
      if (item < n_items) next = begin(item, group);
#pragma unroll
      for (int wave = 0; wave < C::kWaves; ++wave) {
        const int row = place.first_row + first_row_ + 64 * wave;
        store_rows<C::kWidth>(
            totals[wave], s_.strips[warp_],
            RowTarget{p_.out, p_.out_is_f32, p_.n, row, place.end_row - row, place.column_tile * C::kWidth});
      }
    }
  }

 private:
  // Finds an item's place and starts loading its weight scales.
  __device__ __forceinline__ TilePlace begin(int item, int& group) {
    TilePlace place = s_.walk.find(item, group);
    place.column_tile = place.column_tile * kPair + rank_;
    const int n_scale_rows = (p_.n + kBlockK - 1) / kBlockK;
    const int scale_row = place.column_tile * C::kWidth / kBlockK;
    weight_scales_.prefetch(p_.w_scale + (int64_t{place.group} * n_scale_rows + scale_row) * p_.n_k_blocks,
                            p_.n_k_blocks, n_scale_rows - scale_row);
    return place;
  }

  __device__ __forceinline__ void sum_tile(Totals& totals, const TilePlace& place) {
    const int first_block_columns = kBlockK - place.column_tile * C::kWidth % kBlockK;
    for (int block = 0; block < p_.n_k_blocks; ++block) {
      s_.ring.full[at_.stage].wait(at_.parity);
      const auto& stage = s_.stages[at_.stage];
      const float* row_scales = s_.scales[at_.stage][warp_ / 4].of[0] + C::Scales::skew(place.first_row);
      const uint32_t at = static_cast<uint32_t>(at_.stage) * (sizeof(stage) / 16);
      if (block % 32 == 0) weight_scales_.turn(block);
      const float sw_first = weight_scales_.get(0, block);
      const float sw_second = C::kCrosses ? weight_scales_.get(C::kScaleRows - 1, block) : 0;
#pragma unroll
      for (int wave = 0; wave < C::kWaves; ++wave) {
        const int row = warp_ % 4 * 16 + 64 * wave + lane_ / 4;  // of the warpgroup's
        const FoldScales scales = fold_scales(row_scales[row], row_scales[row + 8], sw_first, sw_second);
        float sums[1][C::kWidth / 2];
        if constexpr (C::kTakeTurns) take_turn();
        wgmma_fence();
        multiply_blocks<C::kWidth, 1024>(sums, TilePair{x_low_ + at + wave * (64 * kBlockK / 16), w_low_ + at, 0, 0});
        wgmma_commit();
        if constexpr (C::kTakeTurns) pass_turn();
        wgmma_wait<0>();
        wgmma_touch(sums[0]);
        if (wave + 1 == C::kWaves) release();
        fold_block<C::kWidth, C::kCrosses, true>(totals[wave], sums[0], scales, first_block_columns);
      }
      at_.advance();
    }
  }

  // The warpgroups hand their products to the matrix unit in turn. Without it they fall into step, and the unit idles
  // while both fold.
  __device__ __forceinline__ void take_turn() { named_barrier(kTurnBarrier + warp_ / 4, kMathThreads); }
  __device__ __forceinline__ void pass_turn() { named_barrier_arrive(kTurnBarrier + 1 - warp_ / 4, kMathThreads); }

  // The stage's tiles and scales have been read: both blocks may load into it, since rows come from either.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_ < kPair) s_.ring.empty[at_.stage].free_at(static_cast<uint32_t>(lane_));
  }

  const Params& p_;
  Shared<C>& s_;
  int lane_, warp_, first_row_, rank_;
  uint32_t x_low_, w_low_;
  RingPosition<C::kStages> at_;
  WeightScales<C::kScaleRows> weight_scales_;
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemm_fp8_tiles_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  wait_for_previous();
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    prefetch_map(p.w_map);
    s.ring.init(1, kPair * kMathThreads / 32);
    fence_barrier_init();
  }
  if (warp == kMathThreads / 32) {
    const int n_column_tiles = (p.n + C::kWidth - 1) / C::kWidth;
    s.walk.fill(p.group_begin, p.n_groups, p.n_tokens, (n_column_tiles + kPair - 1) / kPair);
  }
  __syncthreads();
  cluster_sync();  // the other block's barriers are ready
  if (warp >= kMathThreads / 32) {
    shrink_registers<kLoadRegisters>();
    if (warp == kMathThreads / 32 && elect_one()) Loader<C>(p, s).run();
  } else {
    grow_registers<kMathRegisters>();
    Math<C>(p, s).run();
  }
  __syncwarp();
  cluster_sync();  // nobody leaves while the other may still load into it or arrive at it
}

template <int kRows, int kWidth>
void run(const GemmFp8& a, CUstream_st* stream) {
  using C = Config<kRows, kWidth>;
  MatrixMap x;
  x.data = a.x;
  x.n_rows = a.n_tokens;
  x.n_columns = a.k;
  x.row_bytes = a.x_row_bytes;
  x.box_rows = kRows / kPair;
  x.box_columns = kBlockK;
  x.swizzle = Swizzle::k128;
  MatrixStackMap w;
  w.matrix = x;
  w.matrix.data = a.w;
  w.matrix.n_rows = a.n;
  w.matrix.row_bytes = a.k;
  w.matrix.box_rows = kWidth;
  w.n_matrices = a.n_groups;
  w.matrix_bytes = int64_t{a.n} * a.k;
  const int n_k_blocks = (a.k + kBlockK - 1) / kBlockK;
  const Params p{make_tensor_map(x),
                 make_tensor_map(w),
                 C::Scales::map(a.x_scale, a.x_scale_ld, a.n_tokens, n_k_blocks),
                 a.w_scale,
                 a.out,
                 a.group_begin,
                 a.n_tokens,
                 a.n,
                 n_k_blocks,
                 a.n_groups,
                 a.out_is_f32};
  const int pairs = ((a.n + kWidth - 1) / kWidth + kPair - 1) / kPair;
  const int most_items = pairs * ((a.n_tokens + kRows - 1) / kRows + a.n_groups - 1);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min(n_multiprocessors() / kPair, most_items) * kPair));
  l.block = dim3(kThreads);
  l.shared_bytes = static_cast<int>(sizeof(Shared<C>)) + kSwizzleAlignment;
  l.cluster = kPair;
  l.follows_closely = a.follows_closely;
  l.stream = stream;
  static_assert(sizeof(Shared<C>) + kSwizzleAlignment <= kMaxSharedBytes);
  launch_kernel(gemm_fp8_tiles_kernel<C>, l, p);
}

}  // namespace

void gemm_fp8_tiles(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  if (plan.rows == 128)
    run<128, 128>(a, stream);
  else if (plan.width == 128)
    run<256, 128>(a, stream);
  else
    run<256, 136>(a, stream);
}

}  // namespace levin::cuda
