// gemm_fp8 for many rows, sm_90a. A pair of blocks (a cluster) computes two neighbouring tiles of outputs at a time.
//
//   in    x [T, K] e4m3, w [G, N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  one pair per two SMs, persistent over (group, pair of column tiles, row tile)
//   block 2 math warpgroups that take turns with waves of 64 rows, + 1 warpgroup of which one thread loads
//   smem  struct Shared: a ring of stages of 128 k of both operands with their scales, one strip per warp for stores
//   flow  loader: wait empty (both blocks') -> own weights, and every other wave's rows for both blocks -> full.
//         math: wait full -> per wave and half of the columns 4 wgmma, and while they run, the promotion of the half before
//         -> empty (of both blocks). Narrow tiles: the block of k before is promoted while 4 wgmma run.
//         end of a tile: registers -> strip -> global
//   edge  the odd column tile of a pair loads zeros and stores nothing; waves beyond a group are neither loaded nor
//         multiplied; rows beyond it in its last wave are a neighbour's and are not stored
//   cost  2 * T * N * K flop; a tile loads kRows / 2 + kWidth bytes per k from L2
//   why   256 rows x 128 columns halve the loads of 128 x 128, and 64 accumulators + 128 totals are what the registers
//         hold; as two halves that take turns they keep the matrix unit busy while the other half is promoted. 136
//         columns divide widths such as 2112 into full rounds. Narrow tiles leave no SM idle where rows are few.
//         What was tried: docs/deep_dives/products.md
#include <algorithm>

#include "kernels/cuda/gemm/gemm_fp8_maps.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/fp8_promote.cuh"
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
constexpr int kWaveRows = 64;
constexpr int kTurnRows = kMathWarpgroups * kWaveRows;  // from a warpgroup's wave to its next

struct Params {
  CUtensorMap x_map;        // [T, K], boxes [box_rows, 128]
  CUtensorMap w_map;        // [G, N, K], boxes [kWidth, 128]
  CUtensorMap x_scale_map;  // RowScales
  const float* w_scale;
  void* out;
  const int32_t* group_begin;
  int n_tokens, n, n_k_blocks, n_groups;
  int tile_rows;  // of a dense product
  int scale_columns;
  int box_rows;  // of a copy of rows
  bool out_is_f32;
};

// kSkips: waves of a group's tile that have no rows are left out. A dense product has few such tiles, and is 2 to 5%
// faster without the branches and the registers that this takes.
template <int kRowsOf, int kWidthOf, bool kSkipsOf>
struct Config {
  static constexpr int kRows = kRowsOf;
  static constexpr int kWidth = kWidthOf;
  static constexpr int kWaves = kRows / kTurnRows;  // of each warpgroup
  static constexpr int kXBytes = kRows * kBlockK;
  static constexpr int kWBytes = kWidth * kBlockK;
  static constexpr int kStages = kRows == 256 ? 4 : 192 * 1024 / (kXBytes + kWBytes);
  using Scales = RowScales<kTurnRows, 1>;                  // of a wave of each warpgroup
  static constexpr bool kCrosses = kBlockK % kWidth != 0;  // a tile may straddle two blocks of weight scales
  static constexpr int kScaleRows = kCrosses ? 2 : 1;
  static constexpr int kHalf = kWidth / 2;  // columns
  static constexpr bool kSkips = kSkipsOf;
  static constexpr int kBoxes = kSkips ? kRows / kWaveRows : kPair;  // of rows
  // Weights of narrow tiles, which few rows have, are read once.
  static constexpr bool kNarrow = kWidth < 128;
  static constexpr uint64_t kWeightPolicy = kNarrow ? kEvictFirst : kEvictNormal;
  static constexpr int kWeightL2Bytes = kNarrow ? 128 : 256, kRowL2Bytes = 256;  // MatrixMap
  static constexpr int kLoadRegisters = kSkips ? 40 : 24;
  static constexpr int kMathRegisters = kSkips ? 232 : 240;
};

template <class C>
struct Shared {
  struct alignas(kSwizzleAlignment) Stage {
    uint8_t x[C::kXBytes];
    uint8_t w[C::kWBytes];
  };
  Stage stages[C::kStages];
  WarpStrip strips[kMathThreads / 32];
  typename C::Scales scales[C::kStages][C::kWaves];
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
    const int n_items = s_.walk.n_items();
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
    const int n_boxes = n_loaded_boxes(place), box_rows = C::kSkips ? kWaveRows : p_.box_rows;
    full.arrive_expect_bytes(C::kWBytes + n_boxes * box_rows * kBlockK +
                             C::kWaves * C::Scales::bytes(p_.scale_columns));
#pragma unroll
    for (int i = 0; i < C::kBoxes / kPair; ++i) {
      const int box = i * kPair + rank_;
      if (C::kSkips && box >= n_boxes) continue;
      tma_load_2d_multicast(s_.stages[stage].x + box * box_rows * kBlockK, p_.x_map, full, block * kBlockK,
                            place.first_row + box * box_rows, (1 << kPair) - 1);
    }
    tma_load_3d(s_.stages[stage].w, p_.w_map, full, block * kBlockK, place.column_tile * C::kWidth, place.group,
                C::kWeightPolicy);
#pragma unroll
    for (int wave = 0; wave < C::kWaves; ++wave)
      s_.scales[stage][wave].load(p_.x_scale_map, place.first_row + wave * kTurnRows, block, full);
  }

  __device__ __forceinline__ static int n_loaded_boxes(const TilePlace& place) {
    if constexpr (!C::kSkips) return C::kBoxes;
    return min((place.end_row - place.first_row + kWaveRows - 1) / kWaveRows, C::kBoxes);
  }

  const Params& p_;
  Shared<C>& s_;
  int rank_;
};

template <class C>
class Math {
 public:
  using Sums = float[C::kWidth / 2];  // of one wave
  using Totals = Sums[C::kWaves];

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(warp_index()),
        rank_(static_cast<int>(cluster_rank())),
        x_low_(descriptor_low(s.stages[0].x + warp_ / 4 * kWaveRows * kBlockK)),
        w_low_(descriptor_low(s.stages[0].w)) {}

  __device__ void run() {
    const int n_items = s_.walk.n_items();
    int item = static_cast<int>(blockIdx.x) / kPair, group = 0;
    if (item >= n_items) return;
    TilePlace next = begin(item, group);
    while (item < n_items) {
      const TilePlace place = next;
      Totals totals;
#pragma unroll
      for (int wave = 0; wave < C::kWaves; ++wave)
#pragma unroll
        for (float& value : totals[wave]) value = 0;
      sum_waves(totals, place);
      item += static_cast<int>(gridDim.x) / kPair;
      if (item < n_items) next = begin(item, group);
#pragma unroll
      for (int wave = 0; wave < C::kWaves; ++wave) {
        const int row = place.first_row + warp_row() + kTurnRows * wave;
        store_rows<C::kWidth>(
            totals[wave], s_.strips[own_warp()],
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

  // The waves of this warpgroup that have rows of the group. Comparisons, and no clamp to the number of waves: ptxas 13.0
  // branches on a predicate of the clamping instruction, and tiles with rows for more waves than there are came out zero.
  __device__ __forceinline__ void sum_waves(Totals& totals, const TilePlace& place) {
    if constexpr (C::kNarrow) return sum_narrow_tile(totals[0], place);
    const int n_rows = place.end_row - place.first_row - warp_ / 4 * kWaveRows;
    if (!C::kSkips || n_rows > (C::kWaves - 1) * kTurnRows)
      sum_tile<C::kWaves>(totals, place);
    else if (C::kWaves > 1 && n_rows > 0)
      sum_tile<1>(totals, place);
    else
      pass_tile();
  }

  // A narrow tile leaves registers for the sums of two blocks of k: while one is promoted, the next is multiplied. Halves of its
  // columns would read the rows twice.
  __device__ __forceinline__ void sum_narrow_tile(Sums& totals, const TilePlace& place) {
    Sums even, odd;
    begin_block(even);
    int block = 0;
    for (; block + 2 < p_.n_k_blocks; block += 2) {
      begin_block(odd);
      end_block<1>(totals, even, place, block);
      begin_block(even);
      end_block<1>(totals, odd, place, block + 1);
    }
    if (block + 1 < p_.n_k_blocks) {
      begin_block(odd);
      end_block<1>(totals, even, place, block++);
      end_block<0>(totals, odd, place, block);
    } else {
      end_block<0>(totals, even, place, block);
    }
  }

  __device__ __forceinline__ void begin_block(Sums& sums) {
    s_.ring.full[next_.stage].wait(next_.parity);
    multiply<0, 0, C::kWidth>(sums, next_.stage);
    next_.advance();
  }

  // Promotes a block when all but kUnderWay of those begun have been multiplied.
  template <int kUnderWay>
  __device__ __forceinline__ void end_block(Sums& totals, Sums& sums, const TilePlace& place, int block) {
    const BlockScales b = scales_of(place, block);
    const PromoteScales scales = promote_scales(b.of_rows[0], b.of_rows[8], b.w_first, b.w_second);
    wgmma_wait<kUnderWay>();
    wgmma_touch(sums);
    release(at_.stage);
    at_.advance();
    promote_block<C::kWidth, C::kCrosses>(totals, sums, scales, b.first_block_columns);
  }

  // A tile without a wave of this warpgroup.
  __device__ __forceinline__ void pass_tile() {
    for (int block = 0; block < p_.n_k_blocks; ++block) {
      s_.ring.full[at_.stage].wait(at_.parity);
      release(at_.stage);
      at_.advance();
    }
  }

  template <int kWaves>
  __device__ __forceinline__ void sum_tile(Totals& totals, const TilePlace& place) {
    Sums sums;
    if constexpr (C::kCrosses) {
      for (int block = 0; block < p_.n_k_blocks; ++block) sum_block(totals, sums, place, block);
    } else {
      s_.ring.full[at_.stage].wait(at_.parity);
      multiply<0, 0, C::kHalf>(sums, at_.stage);
      for (int block = 0; block + 1 < p_.n_k_blocks; ++block) sum_halves<kWaves, false>(totals, sums, place, block);
      sum_halves<kWaves, true>(totals, sums, place, p_.n_k_blocks - 1);
    }
  }

  // One block of k of a tile that crosses, which has no registers left to keep two halves apart: a wave at a time.
  __device__ __forceinline__ void sum_block(Totals& totals, Sums& sums, const TilePlace& place, int block) {
    s_.ring.full[at_.stage].wait(at_.parity);
    const BlockScales scales = scales_of(place, block);
    sum_wave<0>(totals[0], sums, scales);
    if constexpr (C::kWaves == 2) sum_wave<1>(totals[1], sums, scales);
    at_.advance();
  }

  // One block of k, where the first half of the first wave is under way. At the end the next block's is, unless this
  // is the last.
  template <int kWaves, bool kLast>
  __device__ __forceinline__ void sum_halves(Totals& totals, Sums& sums, const TilePlace& place, int block) {
    const BlockScales scales = scales_of(place, block);
    const int stage = at_.stage;
    at_.advance();
    sum_wave_halves<0, kWaves == 1, kLast>(totals[0], sums, stage, scales);
    if constexpr (kWaves == 2) sum_wave_halves<1, true, kLast>(totals[1], sums, stage, scales);
  }

  struct BlockScales {
    const float* of_rows;  // of this lane's first and, 8 further, second; those of its next wave are a Scales further
    float w_first, w_second;
    int first_block_columns;  // of the tile, to which w_first applies
  };

  // A tile that crosses has no registers left to keep the warp's number in.
  __device__ __forceinline__ int own_warp() const { return C::kCrosses ? read_thread_index() / 32 : warp_; }
  // The first row of this warp's in a turn.
  __device__ __forceinline__ int warp_row() const { return own_warp() / 4 * kWaveRows + own_warp() % 4 * 16; }

  __device__ __forceinline__ BlockScales scales_of(const TilePlace& place, int block) {
    if (block % 32 == 0) weight_scales_.turn(block);
    return {s_.scales[at_.stage][0].of + warp_row() + lane_ / 4 + C::Scales::skew(place.first_row),
            weight_scales_.get(0, block), C::kCrosses ? weight_scales_.get(C::kScaleRows - 1, block) : 0,
            kBlockK - place.column_tile * C::kWidth % kBlockK};
  }

  template <int kWave>
  __device__ __forceinline__ void sum_wave(Sums& totals, Sums& sums, const BlockScales& b) {
    const float* of_rows = b.of_rows + kWave * (sizeof(typename C::Scales) / sizeof(float));
    const PromoteScales scales = promote_scales(of_rows[0], of_rows[8], b.w_first, b.w_second);
    multiply<kWave, 0, C::kWidth>(sums, at_.stage);
    wgmma_wait<0>();
    wgmma_touch(sums);
    if (kWave + 1 == C::kWaves) release(at_.stage);
    promote_block<C::kWidth, C::kCrosses>(totals, sums, scales, b.first_block_columns);
  }

  // While a half is promoted, the next one's product runs: a warpgroup that waited for its own would leave the unit idle.
  template <int kWave, bool kLastWave, bool kLast>
  __device__ __forceinline__ void sum_wave_halves(Sums& totals, Sums& sums, int stage, const BlockScales& b) {
    const float* of_rows = b.of_rows + kWave * (sizeof(typename C::Scales) / sizeof(float));
    const float low = of_rows[0], high = of_rows[8];
    multiply<kWave, C::kHalf, C::kHalf>(sums, stage);
    const PromoteScales scales = promote_scales(low, high, b.w_first, 0);
    wgmma_wait<1>();
    promote_half<0>(totals, sums, scales);
    if constexpr (!kLastWave) {
      multiply<kWave + 1, 0, C::kHalf>(sums, stage);
    } else if constexpr (!kLast) {
      s_.ring.full[at_.stage].wait(at_.parity);
      multiply<0, 0, C::kHalf>(sums, at_.stage);
    }
    wgmma_wait<kLastWave && kLast ? 0 : 1>();
    if constexpr (kLastWave) release(stage);
    promote_half<C::kHalf>(totals, sums, scales);
  }

  template <int kFirst>
  __device__ __forceinline__ void promote_half(Sums& totals, Sums& sums, const PromoteScales& scales) {
    auto& half = columns<kFirst, C::kHalf>(sums);
    wgmma_touch(half);
    promote_block<C::kHalf, false>(columns<kFirst, C::kHalf>(totals), half, scales, C::kHalf);
  }

  // Starts the products of a wave's rows and the tile's columns kFirst .. kFirst + kCount - 1 over a stage.
  template <int kWave, int kFirst, int kCount>
  __device__ __forceinline__ void multiply(Sums& sums, int stage) {
    const uint32_t at = static_cast<uint32_t>(stage) * (sizeof(s_.stages[0]) / 16);
    wgmma_fence();
    multiply_block<kCount>(columns<kFirst, kCount>(sums), x_low_ + at + kWave * (kTurnRows * kBlockK / 16),
                           w_low_ + at + kFirst * (kBlockK / 16));
    wgmma_commit();
  }

  // The accumulators of some columns; multiples of 8, known to the compiler, so that they stay registers.
  template <int kFirst, int kCount>
  __device__ __forceinline__ static auto& columns(Sums& sums) {
    return reinterpret_cast<float(&)[kCount / 2]>(sums[kFirst / 2]);
  }

  // The stage's tiles and scales have been read: both blocks may load into it, since rows come from either.
  __device__ __forceinline__ void release(int stage) {
    __syncwarp();
    if (lane_ < kPair) s_.ring.empty[stage].free_at(static_cast<uint32_t>(lane_));
  }

  const Params& p_;
  Shared<C>& s_;
  int lane_, warp_, rank_;
  uint32_t x_low_, w_low_;
  RingPosition<C::kStages> at_, next_;  // the latter of narrow tiles
  WeightScales<C::kScaleRows> weight_scales_;
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemm_fp8_tiles_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  grid_dependency_wait();
  launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    prefetch_map(p.w_map);
    s.ring.init(1, kPair * kMathThreads / 32);
    fence_barrier_init();
  }
  if (warp == kMathThreads / 32) {
    const int n_column_tiles = (p.n + C::kWidth - 1) / C::kWidth;
    s.walk.fill(p.group_begin, p.n_groups, p.n_tokens, (n_column_tiles + kPair - 1) / kPair, p.tile_rows);
  }
  __syncthreads();
  cluster_sync();  // the other block's barriers are ready
  if (warp >= kMathThreads / 32) {
    setmaxnreg_dec<C::kLoadRegisters>();
    if (warp == kMathThreads / 32 && elect_one()) Loader<C>(p, s).run();
  } else {
    setmaxnreg_inc<C::kMathRegisters>();
    Math<C>(p, s).run();
  }
  __syncwarp();
  cluster_sync();  // nobody leaves while the other may still load into it or arrive at it
}

template <int kRows, int kWidth, bool kSkips>
void run(const GemmFp8& a, CUstream_st* stream) {
  using C = Config<kRows, kWidth, kSkips>;
  const int n_k_blocks = (a.k + kBlockK - 1) / kBlockK;
  const bool dense = a.group_begin == nullptr;
  const int tile_rows = dense ? even_tile_rows(a.n_tokens, kRows, 8 * kPair) : kRows;
  const int box_rows = tile_rows / C::kBoxes, scale_columns = C::Scales::columns(dense, tile_rows);
  const Params p{fp8_rows_map(a, box_rows, C::kRowL2Bytes),
                 fp8_weights_map(a, kWidth, C::kWeightL2Bytes),
                 C::Scales::map(a.x_scale, a.x_scale_ld, n_k_blocks, scale_columns),
                 a.w_scale,
                 a.out,
                 a.group_begin,
                 a.n_tokens,
                 a.n,
                 n_k_blocks,
                 a.n_groups,
                 tile_rows,
                 scale_columns,
                 box_rows,
                 a.out_is_f32};
  const int pairs = ((a.n + kWidth - 1) / kWidth + kPair - 1) / kPair;
  const int most_items = pairs * ((a.n_tokens + kRows - 1) / kRows + a.n_groups - 1);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min(n_sms() / kPair, most_items) * kPair));
  l.block = dim3(kThreads);
  l.shared_bytes = static_cast<int>(sizeof(Shared<C>)) + kSwizzleAlignment;
  l.cluster = kPair;
  l.pdl = a.pdl;
  l.stream = stream;
  static_assert(sizeof(Shared<C>) + kSwizzleAlignment <= kMaxSharedBytes);
  launch_kernel(gemm_fp8_tiles_kernel<C>, l, p);
}

void run_128_rows(const GemmFp8& a, int width, CUstream_st* stream) {
  switch (width) {
    case 32:
      return run<128, 32, false>(a, stream);
    case 64:
      return run<128, 64, false>(a, stream);
    case 96:
      return run<128, 96, false>(a, stream);
    default:
      return run<128, 128, false>(a, stream);
  }
}

}  // namespace

void gemm_fp8_tiles(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  if (plan.rows == 128) return run_128_rows(a, plan.width, stream);
  if (plan.width != 128)
    run<256, 136, false>(a, stream);
  else if (a.n_groups == 1)
    run<256, 128, false>(a, stream);
  else
    run<256, 128, true>(a, stream);
}

}  // namespace levin::cuda
