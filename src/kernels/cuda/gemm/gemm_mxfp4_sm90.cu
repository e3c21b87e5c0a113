// gemm_mxfp4, sm_90a. A block multiplies two strips of 64 weight rows with up to kRows token rows, all of K.
//
//   in    x [T, K] bf16, w [G, strips, K tiles] packed (gemm_mxfp4_layout.h)       out  [T, N] bf16 or f32
//   grid  persistent over (group, pair of strips, kRows rows); two blocks a SM up to 32 rows, else one
//   block 2 math warpgroups, a strip each, + 1 warp of which one thread loads
//   smem  struct Shared: a ring of stages of 128 k: both strips' tiles and the rows' two chunks of 64 columns
//   flow  loader: wait empty -> copies -> full.  math: codes of half a tile -> operand registers, while the products of
//         the half before run -> 8 products a tile -> added to the totals -> empty
//   edge  rows beyond a group or T load as a neighbour's or as zero and are not stored; strips beyond N are the last one
//         again, outputs beyond N are not stored; columns beyond K are zero on both sides
//   cost  reads N * K / 2 code bytes and N * K / 32 scales once for every kRows rows; 15 instructions turn 8 codes into
//         registers. Bandwidth-bound up to 64 rows
//   why   weights are the operand that may come from registers, so that they are turned into bf16 on the way and never
//         written back; outputs are the 64 rows of the matrix unit, tokens its columns, of which 8 are enough
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/gemm/gemm_mxfp4_launch.h"
#include "kernels/cuda/gemm/gemm_mxfp4_layout.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/tiles/group_walk.cuh"
#include "kernels/cuda/tiles/mxfp4_to_bf16.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda {
namespace {

constexpr int kStrips = 2;  // of a block, one for each math warpgroup
constexpr int kMathThreads = kStrips * 128;
constexpr int kThreads = kMathThreads + 32;
constexpr int kChunkColumns = 64;  // of x: one swizzled row of 128 bytes

struct Params {
  CUtensorMap x_map;  // [T, K], boxes [kRows, 64]
  const std::byte* w;
  void* out;
  const int32_t* group_begin;
  int n_tokens, n, n_tiles, n_strips, n_groups;  // tiles along K, strips along N
  int64_t group_bytes;                           // of a packed matrix
  bool out_is_f32;
};

template <int kRowsOf, bool kWideOf>
struct Config {
  static constexpr int kRows = kRowsOf;
  static constexpr bool kWide = kWideOf;               // scales from 2 on, which take two multiplications
  static constexpr int kBlocks = kRows <= 32 ? 2 : 1;  // of a SM
  static constexpr int kChunkBytes = kRows * 128;
  static constexpr int kStageBytes = 2 * kChunkBytes + kStrips * kMxTileBytes;
  static constexpr int kRingBytes = (kBlocks == 2 ? 100 : 200) * 1024;
  static constexpr int kStages = kRingBytes / (kStageBytes + 512);
};

template <class C>
struct alignas(kSwizzleAlignment) Stage {
  uint8_t x[2][C::kChunkBytes];
  alignas(16) uint8_t w[kStrips][kMxTileBytes];
};

template <class C>
struct Shared {
  Stage<C> stages[C::kStages];
  RingBarriers<C::kStages> ring;
  GroupWalk<C::kRows, kMaxGroups> walk;
};

// One thread that issues all copies.
template <class C>
class Loader {
 public:
  __device__ Loader(const Params& p, Shared<C>& s) : p_(p), s_(s), stages_(s.walk) {}

  // Until the ring is full nothing waits: weights go out first, rows when the previous kernel has written them.
  __device__ void run() {
    StageCursor weights = stages_.first(), rows = weights;
    RingPosition<C::kStages> at, rows_at;
    for (int i = 0; i < C::kStages && stages_.valid(weights); ++i) {
      load_weights(weights, at.stage);
      at.advance();
      stages_.template advance<1>(weights, p_.n_tiles);
    }
    grid_dependency_wait();
    for (int i = 0; i < C::kStages && stages_.valid(rows); ++i) {
      load_rows(rows, rows_at.stage);
      rows_at.advance();
      stages_.template advance<1>(rows, p_.n_tiles);
    }
    for (; stages_.valid(weights); stages_.template advance<1>(weights, p_.n_tiles)) {
      s_.ring.empty[at.stage].wait(at.parity ^ 1);
      load_weights(weights, at.stage);
      load_rows(weights, at.stage);
      at.advance();
    }
  }

 private:
  // Opens the stage: announces the bytes of both operands and starts the weights.
  __device__ void load_weights(const StageCursor& c, int stage) {
    Mbarrier& full = s_.ring.full[stage];
    full.arrive_expect_bytes(C::kStageBytes);
    const std::byte* matrix = p_.w + c.place.group * p_.group_bytes;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      const int strip = min(c.place.column_tile * kStrips + i, p_.n_strips - 1);
      bulk_load(s_.stages[stage].w[i], matrix + (int64_t{strip} * p_.n_tiles + c.stage_of_item) * kMxTileBytes,
                kMxTileBytes, full, C::kRows > 64 ? kEvictNormal : kEvictFirst);
    }
  }

  __device__ void load_rows(const StageCursor& c, int stage) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      tma_load_2d(s_.stages[stage].x[i], p_.x_map, s_.ring.full[stage],
                  c.stage_of_item * kMxTileColumns + i * kChunkColumns, c.place.first_row, kEvictLast);
  }

  const Params& p_;
  Shared<C>& s_;
  ItemStages<GroupWalk<C::kRows, kMaxGroups>> stages_;
};

template <class C>
class Math {
 public:
  using Sums = float[C::kRows / 2];
  using Operand = uint32_t[4][4];  // of half a tile: four steps

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p), s_(s), strip_(warp_index() / 4), thread_(static_cast<int>(threadIdx.x) % 128) {}

  __device__ void run() {
    const int n_items = s_.walk.n_items();
    int group = 0;
    for (int item = static_cast<int>(blockIdx.x); item < n_items; item += static_cast<int>(gridDim.x)) {
      const TilePlace place = s_.walk.find(item, group);
      Sums total;
#pragma unroll
      for (float& value : total) value = 0;
      sum_item(total);
      store(total, place);
    }
  }

 private:
  __device__ __forceinline__ void sum_item(Sums& total) {
    Operand first, second;
    Sums block;
    open(first);
    for (int tile = 0; tile < p_.n_tiles; ++tile) {
      const int stage = at_.stage;
      multiply(block, first, s_.stages[stage].x[0], false);
      turn<1>(second, stage);
      multiply(block, second, s_.stages[stage].x[1], true);
      at_.advance();
      wgmma_wait<1>();  // the first half's registers are free
      if (tile + 1 < p_.n_tiles) open(first);
      wgmma_wait<0>();
      wgmma_touch(block);
#pragma unroll
      for (int i = 0; i < C::kRows / 2; ++i) total[i] = __fadd_rn(total[i], block[i]);
      s_.ring.empty[stage].arrive_as_warp();
      __syncwarp();
    }
  }

  // Waits for the next stage and turns its first half.
  __device__ __forceinline__ void open(Operand& a) {
    s_.ring.full[at_.stage].wait(at_.parity);
    turn<0>(a, at_.stage);
  }

  // Codes of one half of a tile to operand registers.
  template <int kHalf>
  __device__ __forceinline__ void turn(Operand& a, int stage) {
    const uint8_t* tile = s_.stages[stage].w[strip_];
    const uint4 raw = reinterpret_cast<const uint4*>(tile)[kHalf * 128 + thread_];
    const auto* scales =
        reinterpret_cast<const uint32_t*>(tile + kMxCodeBytes) + 16 * (thread_ / 32) + thread_ % 32 / 4;
    const uint32_t codes[2] = {scales[0], scales[8]};
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    const uint32_t first = C::kWide ? mx_narrowed(codes[0]) : codes[0];
    const uint32_t second = C::kWide ? mx_narrowed(codes[1]) : codes[1];
    const uint32_t factor[4] = {mx_factor<2 * kHalf>(first), mx_factor<2 * kHalf>(second),
                                mx_factor<2 * kHalf + 1>(first), mx_factor<2 * kHalf + 1>(second)};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      mx_word_to_bf16(a[step], words[step], factor[step / 2 * 2], factor[step / 2 * 2 + 1]);
#pragma unroll
      for (int r = 0; C::kWide && r < 4; ++r)
        a[step][r] = multiply_bf16x2(a[step][r], mx_rest(codes[r % 2], 2 * kHalf + step / 2));
    }
  }

  // Four steps of 16 k over one chunk of x.
  __device__ __forceinline__ void multiply(Sums& block, const Operand& a, const uint8_t* chunk, bool accumulate) {
    const uint64_t rows = wgmma_descriptor(chunk);
    wgmma_touch(block);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      Wgmma<C::kRows>::template bf16<0>(block, a[step], rows + descriptor_step(32 * step), accumulate || step > 0);
    wgmma_commit();
  }

  // Lanes hold outputs along the row: 8 neighbours of a token in 8 lanes.
  __device__ __forceinline__ void store(const Sums& total, const TilePlace& place) {
    const int lane = thread_ % 32;
    const int n = (place.column_tile * kStrips + strip_) * kMxStripRows + 16 * (thread_ / 32) + lane / 4;
#pragma unroll
    for (int i = 0; i < C::kRows / 2; ++i) {
      const int row = place.first_row + i / 4 * 8 + 2 * (lane % 4) + i % 2, column = n + i % 4 / 2 * 8;
      if (row >= place.end_row || column >= p_.n) continue;
      const int64_t at = int64_t{row} * p_.n + column;
      if (p_.out_is_f32)
        static_cast<float*>(p_.out)[at] = total[i];
      else
        static_cast<__nv_bfloat16*>(p_.out)[at] = __float2bfloat16_rn(total[i]);
    }
  }

  const Params& p_;
  Shared<C>& s_;
  int strip_, thread_;
  RingPosition<C::kStages> at_;
};

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks) gemm_mxfp4_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    s.ring.init(1, kMathThreads / 32 * kWarpArrivals);
    fence_barrier_init();
  }
  if (warp == kMathThreads / 32) {
    if (p.group_begin) grid_dependency_wait();  // an earlier kernel wrote it
    s.walk.fill(p.group_begin, p.n_groups, p.n_tokens, (p.n_strips + kStrips - 1) / kStrips);
  }
  __syncthreads();
  if (warp < kMathThreads / 32)
    Math<C>(p, s).run();
  else if (elect_one())
    Loader<C>(p, s).run();
}

template <int kRows, bool kWide>
void run_instance(const GemmMxfp4& a, CUstream_st* stream) {
  using C = Config<kRows, kWide>;
  MatrixMap x;
  x.data = a.x;
  x.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  x.n_rows = a.n_tokens;
  x.n_columns = a.k;
  x.row_bytes = a.x_ld * 2;
  x.box_rows = kRows;
  x.box_columns = kChunkColumns;
  x.swizzle = Swizzle::k128;
  const int n_strips = (a.n + kMxStripRows - 1) / kMxStripRows, n_pairs = (n_strips + kStrips - 1) / kStrips;
  const Params p{make_tensor_map(x),
                 a.w,
                 a.out,
                 a.group_begin,
                 a.n_tokens,
                 a.n,
                 static_cast<int>(mx_tiles_of_strip(a.k)),
                 n_strips,
                 a.n_groups,
                 packed_mxfp4_bytes(a.n, a.k),
                 a.out_is_f32};
  const int64_t row_tiles = (a.n_tokens + kRows - 1) / kRows;
  const int64_t most_items = n_pairs * (a.group_begin ? row_tiles + a.n_groups : row_tiles);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min<int64_t>(int64_t{n_sms()} * C::kBlocks, most_items)));
  l.block = dim3(kThreads);
  l.shared_bytes = static_cast<int>(sizeof(Shared<C>)) + kSwizzleAlignment;
  l.pdl = a.pdl;
  l.stream = stream;
  static_assert(C::kBlocks * (sizeof(Shared<C>) + kSwizzleAlignment + 1024) <= kMaxSharedBytes + 1024);
  launch_kernel(gemm_mxfp4_kernel<C>, l, p);
}

template <int kRows>
void run(const GemmMxfp4& a, CUstream_st* stream) {
  if (a.scales == Mxfp4Scales::kWide)
    run_instance<kRows, true>(a, stream);
  else
    run_instance<kRows, false>(a, stream);
}

}  // namespace

void launch_gemm_mxfp4(const GemmMxfp4& a, int tile_rows, CUstream_st* stream) {
  switch (tile_rows) {
    case 8:
      return run<8>(a, stream);
    case 16:
      return run<16>(a, stream);
    case 32:
      return run<32>(a, stream);
    case 64:
      return run<64>(a, stream);
    default:
      return run<128>(a, stream);
  }
}

}  // namespace levin::cuda
