// gemm_fp8 for 9 rows and more, sm_90a. A block multiplies up to kRows token rows with strips of kWidth weight rows, all of K.
//
//   in    x [T, K] e4m3, w [G, N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  at most one block per SM, persistent over strips; grouped: over (group, strip, kRows rows)
//   block 1 math warpgroup (warps 0-3) + 1 warp of which one thread loads
//   smem  struct Shared: a ring of stages, each kBlocks blocks of 128 k of both operands, with their scales
//   flow  loader: wait empty -> copies -> full.  math: wait full -> 4 wgmma a block -> promote the stage before -> empty
//   edge  rows are padded to the matrix unit's 64 by reading on in shared memory: those sums are never stored, and rows
//         do not mix. Rows or columns beyond a group, N or K load as zero or as a neighbour's, and are not stored
//   cost  reads N*K weight bytes once, T*K activation bytes once per strip (from L2); bandwidth-bound up to 64 rows
//   why   tokens are the M operand, so that strips may be narrow: K need not be split to give every SM its share. Tiles of up
//         to 32 rows have half the shared memory, so that the next kernel's blocks may start while this one's run: weights do
//         not depend on earlier kernels, so their loads begin before grid_dependency_wait()
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
constexpr int kMathThreads = 128;
constexpr int kThreads = kMathThreads + 32;

struct Params {
  CUtensorMap x_map;        // [T, K], boxes [tile_rows, 128]
  CUtensorMap w_map;        // [G, N, K], boxes [kWidth, 128]
  CUtensorMap x_scale_map;  // RowScales
  const float* w_scale;
  void* out;
  const int32_t* group_begin;
  int n_tokens, n, n_k_blocks, n_groups;
  int tile_rows, scale_columns;
  bool groups_settled;
  bool out_is_f32;
};

template <int kRowsOf, int kWidthOf>
struct Config {
  static constexpr int kRows = kRowsOf;
  static constexpr int kWidth = kWidthOf;
  // Several blocks of k per stage, so that a stage is worth its barriers and the matrix unit has work ahead.
  static constexpr int kBlocks = kWidth > 32 ? 2 : 4;
  static constexpr int kXBytes = kRows * kBlockK;  // of one block of k
  static constexpr int kWBytes = kWidth * kBlockK;
  using Scales = RowScales<kRows, kBlocks>;
  static constexpr int kStageBytes = kBlocks * (kXBytes + kWBytes);  // of which tiles of fewer rows fill a part
  static constexpr int kRingBytes = (kRows <= 32 ? 100 : 192) * 1024;
  static constexpr int kStages = std::min(kRingBytes / kStageBytes, 16);

  static_assert(kBlockK % kWidth == 0, "a strip has one row of weight scales");
  static_assert(kBlocks * (kXBytes + kWBytes) >= (kBlocks - 1) * kXBytes + 64 * kBlockK,
                "padding rows must lie in the stage");
};

template <class C>
struct alignas(kSwizzleAlignment) Stage {
  uint8_t x[C::kBlocks][C::kXBytes];
  uint8_t w[C::kBlocks][C::kWBytes];
};

template <class C>
struct Shared {
  Stage<C> stages[C::kStages];
  typename C::Scales scales[C::kStages];
  WarpStrip strips[(C::kRows + 15) / 16];
  RingBarriers<C::kStages> ring;
  GroupWalk<C::kRows, kMaxGroups> walk;
};

// One thread that issues all copies.
template <class C>
class Loader {
 public:
  __device__ Loader(const Params& p, Shared<C>& s) : p_(p), s_(s), stages_(s.walk) {}

  __device__ void run() {
    StageCursor weights = stages_.first(), rows = weights;
    RingPosition<C::kStages> at, rows_at;
    // Until the ring is full nothing waits: weights go out first, activations when the previous kernel has written
    // them.
    for (int i = 0; i < C::kStages && stages_.valid(weights); ++i) {
      load_weights(weights, at.stage);
      at.advance();
      stages_.template advance<C::kBlocks>(weights, p_.n_k_blocks);
    }
    grid_dependency_wait();
    for (int i = 0; i < C::kStages && stages_.valid(rows); ++i) {
      load_rows(rows, rows_at.stage);
      rows_at.advance();
      stages_.template advance<C::kBlocks>(rows, p_.n_k_blocks);
    }
    // From here on both walk together: a reader holds two stages at once, so no stage may wait for activations after a
    // full ring.
    for (; stages_.valid(weights); stages_.template advance<C::kBlocks>(weights, p_.n_k_blocks)) {
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
    full.arrive_expect_bytes(C::kBlocks * (p_.tile_rows * kBlockK + C::kWBytes) + C::Scales::bytes(p_.scale_columns));
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      tma_load_3d(s_.stages[stage].w[b], p_.w_map, full, (c.stage_of_item * C::kBlocks + b) * kBlockK,
                  c.place.column_tile * C::kWidth, c.place.group, kEvictFirst);
    }
  }

  __device__ void load_rows(const StageCursor& c, int stage) {
    Mbarrier& full = s_.ring.full[stage];
    const int first_block = c.stage_of_item * C::kBlocks;
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b)
      tma_load_2d(s_.stages[stage].x[b], p_.x_map, full, (first_block + b) * kBlockK, c.place.first_row, kEvictLast);
    s_.scales[stage].load(p_.x_scale_map, c.place.first_row, first_block, full);
  }

  const Params& p_;
  Shared<C>& s_;
  ItemStages<GroupWalk<C::kRows, kMaxGroups>> stages_;
};

template <class C>
class Math {
 public:
  using Blocks = float[C::kBlocks][C::kWidth / 2];

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_row_(warp_index() * 16),
        row_(warp_row_ + lane_ / 4),
        x_low_(descriptor_low(s.stages[0].x)),
        w_low_(descriptor_low(s.stages[0].w)) {}

  __device__ void run() {
    const int n_items = s_.walk.n_items();
    int item = static_cast<int>(blockIdx.x), group = 0;
    if (item >= n_items) return;
    TilePlace next = s_.walk.find(item, group);
    prefetch_scales(next);
    while (item < n_items) {
      const TilePlace place = next;
      float total[C::kWidth / 2];
#pragma unroll
      for (float& value : total) value = 0;
      sum_item(total, place);
      item += static_cast<int>(gridDim.x);
      if (item < n_items) {
        next = s_.walk.find(item, group);
        prefetch_scales(next);
      }
      store(total, place);
    }
  }

 private:
  __device__ __forceinline__ void prefetch_scales(const TilePlace& place) {
    const int n_scale_rows = (p_.n + kBlockK - 1) / kBlockK;
    const int scale_row = place.column_tile * C::kWidth / kBlockK;
    weight_scales_.prefetch(p_.w_scale + (int64_t{place.group} * n_scale_rows + scale_row) * p_.n_k_blocks,
                            p_.n_k_blocks, n_scale_rows - scale_row);
  }

  // Two stages are in flight: while the matrix unit works on one, the one before is promoted.
  __device__ __forceinline__ void sum_item(float (&total)[C::kWidth / 2], const TilePlace& place) {
    const int n_stages = (p_.n_k_blocks + C::kBlocks - 1) / C::kBlocks;
    const int skew = C::Scales::skew(place.first_row);
    Blocks even, odd;
    begin_stage(even);
    for (int i = 0; i < n_stages; i += 2) {
      end_stage(total, even, odd, i, n_stages, skew);
      if (i + 1 < n_stages) end_stage(total, odd, even, i + 1, n_stages, skew);
    }
  }

  __device__ __forceinline__ void begin_stage(Blocks& blocks) {
    s_.ring.full[next_.stage].wait(next_.parity);
    const uint32_t at = static_cast<uint32_t>(next_.stage) * (sizeof(Stage<C>) / 16);
    wgmma_fence();
    multiply_blocks<C::kWidth>(blocks, TilePair{x_low_ + at, w_low_ + at, C::kXBytes, C::kWBytes});
    wgmma_commit();
    next_.advance();
  }

  // Begins the stage after, then promotes this one.
  __device__ __forceinline__ void end_stage(float (&total)[C::kWidth / 2], Blocks& blocks, Blocks& after,
                                            int stage_of_item, int n_stages, int skew) {
    const bool more = stage_of_item + 1 < n_stages;
    if (more) begin_stage(after);
    PromoteScales scales[C::kBlocks];
    const bool padding_only = C::kRows < 64 && warp_row_ >= C::kRows;  // this warp holds no row that is wanted
    if (!padding_only) read_scales(scales, stage_of_item, skew);
    if (more)
      wgmma_wait<1>();
    else
      wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      wgmma_touch(blocks[b]);
      if (padding_only || stage_of_item * C::kBlocks + b >= p_.n_k_blocks) continue;
      promote_block<C::kWidth, false>(total, blocks[b], scales[b], C::kWidth);
    }
    s_.ring.empty[done_.stage].arrive_as_warp();
    done_.advance();
  }

  __device__ __forceinline__ void read_scales(PromoteScales (&scales)[C::kBlocks], int stage_of_item, int skew) {
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      const int block = stage_of_item * C::kBlocks + b;
      if (block % 32 == 0) weight_scales_.turn(block);
      const float* rows = s_.scales[done_.stage].of + b * p_.scale_columns + skew;
      scales[b] = promote_scales(rows[row_ % C::kRows], rows[(row_ + 8) % C::kRows], weight_scales_.get(0, block), 0);
    }
  }

  __device__ __forceinline__ void store(const float (&total)[C::kWidth / 2], const TilePlace& place) {
    const int row = place.first_row + warp_row_;
    if (C::kRows < 64 && warp_row_ >= C::kRows) return;
    const int n_rows = min(16, place.end_row - row);
    store_rows<C::kWidth>(total, s_.strips[warp_row_ / 16],
                          RowTarget{p_.out, p_.out_is_f32, p_.n, row, n_rows, place.column_tile * C::kWidth});
  }

  const Params& p_;
  Shared<C>& s_;
  int lane_, warp_row_, row_;
  uint32_t x_low_, w_low_;
  RingPosition<C::kStages> next_, done_;
  WeightScales<1> weight_scales_;
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemm_fp8_rows_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  const bool waits = waits_for_groups(p);
  if (!waits) launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.w_map);
    prefetch_map(p.x_map);
    s.ring.init(1, kMathThreads / 32 * kWarpArrivals);
    fence_barrier_init();
  }
  if (warp == kMathThreads / 32) fill_walk(s.walk, p, waits, (p.n + C::kWidth - 1) / C::kWidth, p.tile_rows);
  __syncthreads();
  if (warp < kMathThreads / 32)
    Math<C>(p, s).run();
  else if (elect_one())
    Loader<C>(p, s).run();
}

template <int kRows, int kWidth>
void run(const GemmFp8& a, CUstream_st* stream) {
  using C = Config<kRows, kWidth>;
  const int n_k_blocks = (a.k + kBlockK - 1) / kBlockK;
  const int tile_rows = a.group_begin != nullptr ? kRows : even_tile_rows(a.n_tokens, kRows, 4);
  const int scale_columns = C::Scales::columns(a.group_begin == nullptr, tile_rows);
  const Params p{fp8_rows_map(a, tile_rows),
                 fp8_weights_map(a, kWidth),
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
                 a.groups_settled,
                 a.out_is_f32};
  const int n_strips = (a.n + kWidth - 1) / kWidth;
  const int most_items = a.group_begin ? n_strips * a.n_groups * 2 : n_strips * ((a.n_tokens + kRows - 1) / kRows);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min(n_sms(), most_items)));
  l.block = dim3(kThreads);
  l.shared_bytes = static_cast<int>(sizeof(Shared<C>)) + kSwizzleAlignment;
  l.pdl = a.pdl;
  l.stream = stream;
  static_assert(sizeof(Shared<C>) + kSwizzleAlignment <= kMaxSharedBytes);
  launch_kernel(gemm_fp8_rows_kernel<C>, l, p);
}

template <int kRows>
void run_width(const GemmFp8& a, int width, CUstream_st* stream) {
  switch (width) {
    case 16:
      return run<kRows, 16>(a, stream);
    case 32:
      return run<kRows, 32>(a, stream);
    default:
      return run<kRows, 64>(a, stream);
  }
}

}  // namespace

void gemm_fp8_rows(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  switch (plan.rows) {
    case 16:
      return run_width<16>(a, plan.width, stream);
    case 32:
      return run_width<32>(a, plan.width, stream);
    default:
      return run_width<64>(a, plan.width, stream);
  }
}

}  // namespace levin::cuda
