// gemm_fp8 for up to eight rows, dense and grouped, sm_90a. A block multiplies strips of kWidth weight rows, all of K, with
// eight token rows.
//
//   in    x [T, K] e4m3, w [G, N, K] e4m3, scales as in gemm_fp8.h         out  [T, N] bf16 or f32
//   grid  at most one block per SM, persistent over strips; grouped: over (group, strip, kRows rows)
//   block 1 math warpgroup (warps 0-3), 1 warp of which one thread loads weights, 1 warp that loads rows
//   smem  Shared, then a ring of stages, each kBlocks blocks of 128 k of both operands
//   flow  loaders: wait empty -> one thread copies weights, the lanes of a warp rows and scales -> full, rows_full.
//         math: wait for both -> 4 wgmma a block -> promote the stage before -> empty; at a strip's end: totals -> global
//   edge  weights are padded to the matrix unit's 64 rows by reading on in shared memory: those sums are not stored, and
//         rows do not mix. Rows beyond a group and K load as zero; rows and columns beyond a group and N are not stored
//   cost  reads N*K weight bytes once for each eight rows of a group, T*K activation bytes once per strip (from L2); bandwidth-bound
//   why   Weights are the M operand, since instructions of 8 columns are the shortest: with tokens as M a stage took as long
//         for 16 weight rows as for 64. A block's stages are one sequence across its strips, so that the matrix unit always
//         has the next.
//         Rows come by ordinary copies of a warp, which leave out those that a group does not have. No more weights are asked
//         for at a time than keep memory busy (as in gemm_fp8_gemv_sm90.cu)
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/gemm/gemm_fp8_maps.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/fp8_promote.cuh"
#include "kernels/cuda/tiles/group_walk.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"
#include "kernels/cuda/tiles/weight_scales.cuh"

namespace levin::cuda {
namespace {

constexpr int kBlockK = 128;
constexpr int kRows = 8;
constexpr int kBlocks = 4;  // of k, of a stage
constexpr int kMathThreads = 128;
constexpr int kWeightsWarp = kMathThreads / 32;
constexpr int kRowsWarp = kWeightsWarp + 1;
constexpr int kThreads = kMathThreads + 2 * 32;
constexpr int kMaxStages = 16;
constexpr int kXBytes = kRows * kBlockK;  // of one block of k

// Shared memory of a block that streams its weights, which leaves room for a block of norm_rows; and of one whose weights would
// fit that, of which two share an SM, so that those of the next kernel start early.
constexpr int kDeepBytes = 184 * 1024, kHalfBytes = 113 * 1024;
static_assert(kDeepBytes <= kMaxSharedBytes);

// Bytes of weights that a block asks for at a time, about: together they keep memory busy.
constexpr int kBytesInFlight = 80 * 1024, kBytesInFlightOfGroups = 64 * 1024;

struct Params {
  CUtensorMap w_map;  // [G, N, K], boxes [kWidth, 128]
  const uint8_t* x;
  int64_t x_row_bytes;
  const float* x_scale;
  int64_t x_scale_ld;
  const float* w_scale;
  void* out;
  const int32_t* group_begin;
  int n_tokens, n, k, n_k_blocks, n_groups;
  int n_stages;     // of the ring
  int n_in_flight;  // stages that load at a time
  bool groups_settled;
  bool out_is_f32;
};

template <int kWidthOf>
struct Config {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kWBytes = kWidth * kBlockK;         // of one block of k
  static constexpr bool kCrosses = kBlockK % kWidth != 0;  // a strip may straddle two blocks of weight scales
  static constexpr int kScaleRows = kCrosses ? 2 : 1;
  // The weight rows that pad a tile are what follows it.
  static constexpr int kPaddingBytes = (64 - kWidth) * kBlockK;
};

template <class C>
struct alignas(kSwizzleAlignment) Stage {
  uint8_t x[kBlocks][kXBytes];
  uint8_t w[kBlocks][C::kWBytes];
};

template <class C>
struct Shared {
  RingBarriers<kMaxStages> ring;  // full: of weights
  Mbarrier rows_full[kMaxStages];
  float x_scales[kMaxStages][kBlocks][kRows];
  GroupWalk<kRows, kMaxGroups> walk;
  Stage<C> stages[];
};

// One thread: the ring's first weights while the kernel before may still run. A stage is asked for when that n_in_flight before it
// has landed.
template <class C>
__device__ void load_weights(const Params& p, Shared<C>& s) {
  const ItemStages stages(s.walk);
  RingPlace at{p.n_stages}, landed{p.n_stages};
  int n_sent = 0;
  for (StageCursor c = stages.first(); stages.valid(c); stages.template advance<kBlocks>(c, p.n_k_blocks)) {
    if (n_sent++ >= p.n_in_flight) {
      s.ring.full[landed.stage].wait(landed.parity);
      landed.advance();
    }
    s.ring.empty[at.stage].wait(at.parity ^ 1);
    Mbarrier& full = s.ring.full[at.stage];
    full.arrive_expect_bytes(kBlocks * C::kWBytes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      tma_load_3d(s.stages[at.stage].w[b], p.w_map, full, (c.stage_of_item * kBlocks + b) * kBlockK,
                  c.place.column_tile * C::kWidth, c.place.group, kEvictFirst);
    }
    at.advance();
  }
}

// A warp: rows and their scales. A lane has 16 bytes of each row of a stage and a scale.
template <class C>
__device__ void load_rows(const Params& p, Shared<C>& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ItemStages stages(s.walk);
  RingPlace at{p.n_stages};
  grid_dependency_wait();
  for (StageCursor c = stages.first(); stages.valid(c); stages.template advance<kBlocks>(c, p.n_k_blocks)) {
    s.ring.empty[at.stage].wait(at.parity ^ 1);
    const int first_block = c.stage_of_item * kBlocks, k = first_block * kBlockK + lane * 16;
    const int n_rows = c.place.end_row - c.place.first_row;
    const uint8_t* from = p.x + c.place.first_row * p.x_row_bytes + k;
    uint8_t* to = s.stages[at.stage].x[lane / 8];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const bool is_there = row < n_rows && k < p.k;
      // p.x: any valid address, from which nothing is read
      async_copy_16(to + swizzle_128(row, lane % 8 * 16), is_there ? from + row * p.x_row_bytes : p.x, is_there);
    }
    const int block = first_block + lane / kRows, row = lane % kRows;
    const bool is_there = block < p.n_k_blocks && row < n_rows;
    async_copy_4(&s.x_scales[at.stage][lane / kRows][row],
                 p.x_scale + (is_there ? block * p.x_scale_ld + c.place.first_row + row : 0), is_there);
    s.rows_full[at.stage].arrive_after_async_copies();
    at.advance();
  }
}

// The warpgroup that multiplies.
template <class C>
class Math {
 public:
  // Of each block of a stage: weight rows row_ and row_ + 8 of the strip, tokens 2 * (lane % 4) + {0, 1}.
  using Blocks = float[kBlocks][4];

  __device__ Math(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        row_(warp_index() * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        token_(static_cast<int>(threadIdx.x) % 4 * 2),
        x_low_(descriptor_low(s.stages[0].x)),
        w_low_(descriptor_low(s.stages[0].w)),
        next_{p.n_stages},
        done_{p.n_stages} {}

  __device__ void run() {
    const int n_items = s_.walk.n_items(), first = static_cast<int>(blockIdx.x);
    if (first >= n_items) return;
    item_ = first;
    place_ = s_.walk.find(item_, group_);
    prefetch_scales();
    n_stages_ = (p_.n_k_blocks + kBlocks - 1) / kBlocks;
    const int n = ((n_items - first - 1) / static_cast<int>(gridDim.x) + 1) * n_stages_;  // of all the block's items
    Blocks even, odd;
    begin_stage(even);
    for (int i = 0;; i += 2) {
      if (i + 1 == n) {
        wgmma_wait<0>();
        end_stage(even);
        return;
      }
      begin_stage(odd);
      wgmma_wait<1>();
      end_stage(even);
      if (i + 2 == n) {
        wgmma_wait<0>();
        end_stage(odd);
        return;
      }
      begin_stage(even);
      wgmma_wait<1>();
      end_stage(odd);
    }
  }

 private:
  __device__ __forceinline__ void begin_stage(Blocks& blocks) {
    s_.ring.full[next_.stage].wait(next_.parity);
    s_.rows_full[next_.stage].wait(next_.parity);
    fence_async_shared();  // rows came by ordinary copies
    const uint32_t at = static_cast<uint32_t>(next_.stage) * (sizeof(Stage<C>) / 16);
    wgmma_fence();
    multiply_blocks<8>(blocks, TilePair{w_low_ + at, x_low_ + at, C::kWBytes, kXBytes});
    wgmma_commit();
    next_.advance();
  }

  __device__ __forceinline__ void end_stage(Blocks& blocks) {
    const int first_block = stage_of_item_ * kBlocks;
    const int boundary = kBlockK - place_.column_tile * C::kWidth % kBlockK;  // rows from here on have the second scale
    if (first_block % 32 == 0) w_scales_.turn(first_block);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wgmma_touch(blocks[b]);
      const float2 x = *reinterpret_cast<const float2*>(&s_.x_scales[done_.stage][b][token_]);
      const float first = w_scales_.get(0, first_block + b);
      const float second = C::kCrosses ? w_scales_.get(C::kScaleRows - 1, first_block + b) : first;
      const float low = row_ < boundary ? first : second, high = row_ + 8 < boundary ? first : second;
      if (first_block + b < p_.n_k_blocks) {
        total_[0] = __fmaf_rn(blocks[b][0], x.x * low, total_[0]);
        total_[1] = __fmaf_rn(blocks[b][1], x.y * low, total_[1]);
        total_[2] = __fmaf_rn(blocks[b][2], x.x * high, total_[2]);
        total_[3] = __fmaf_rn(blocks[b][3], x.y * high, total_[3]);
      }
    }
    s_.ring.empty[done_.stage].arrive_as_warp();
    done_.advance();
    if (++stage_of_item_ == n_stages_) finish_item();
  }

  __device__ __forceinline__ void finish_item() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row_ + i / 2 * 8, column = place_.column_tile * C::kWidth + row;
      const int token = place_.first_row + token_ + i % 2;
      if (row < C::kWidth && column < p_.n && token < place_.end_row) {
        const int64_t at = int64_t{token} * p_.n + column;
        if (p_.out_is_f32)
          static_cast<float*>(p_.out)[at] = total_[i];
        else
          static_cast<__nv_bfloat16*>(p_.out)[at] = __float2bfloat16_rn(total_[i]);
      }
      total_[i] = 0;
    }
    stage_of_item_ = 0;
    item_ += static_cast<int>(gridDim.x);
    if (item_ >= s_.walk.n_items()) return;
    place_ = s_.walk.find(item_, group_);
    prefetch_scales();
  }

  __device__ __forceinline__ void prefetch_scales() {
    const int n_scale_rows = (p_.n + kBlockK - 1) / kBlockK;
    const int scale_row = place_.column_tile * C::kWidth / kBlockK;
    w_scales_.prefetch(p_.w_scale + (int64_t{place_.group} * n_scale_rows + scale_row) * p_.n_k_blocks, p_.n_k_blocks,
                       n_scale_rows - scale_row);
  }

  const Params& p_;
  Shared<C>& s_;
  int row_, token_;
  uint32_t x_low_, w_low_;
  RingPlace next_, done_;
  WeightScales<C::kScaleRows> w_scales_;
  TilePlace place_;
  int item_ = 0, group_ = 0, stage_of_item_ = 0;
  int n_stages_ = 0;  // of an item
  float total_[4] = {};
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemm_fp8_few_rows_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  Shared<C>& s = *reinterpret_cast<Shared<C>*>(
      raw_shared + (kSwizzleAlignment - shared_address(raw_shared) % kSwizzleAlignment) % kSwizzleAlignment);
  const int warp = warp_index();
  const bool waits = waits_for_groups(p);
  if (!waits) launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.w_map);
    s.ring.init(1, kMathThreads / 32 * kWarpArrivals, p.n_stages);
    for (int i = 0; i < p.n_stages; ++i) s.rows_full[i].init(32);  // each lane's copies
    fence_barrier_init();
  }
  if (warp == kWeightsWarp) fill_walk(s.walk, p, waits, (p.n + C::kWidth - 1) / C::kWidth, kRows);
  __syncthreads();
  if (warp < kWeightsWarp)
    Math<C>(p, s).run();
  else if (warp == kRowsWarp)
    load_rows<C>(p, s);
  else if (elect_one())
    load_weights<C>(p, s);
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <int kWidth>
void run(const GemmFp8& a, CUstream_st* stream) {
  using C = Config<kWidth>;
  const int n_k_blocks = ceil_div(a.k, kBlockK), n_strips = ceil_div(a.n, kWidth);
  // Of groups about: two tiles of rows each.
  const int most_items = n_strips * (a.group_begin ? a.n_groups * 2 : ceil_div(a.n_tokens, kRows));
  const int n_blocks = std::min(n_sms(), most_items);
  constexpr int kStageBytes = static_cast<int>(sizeof(Stage<C>));
  constexpr int kFixedBytes = static_cast<int>(sizeof(Shared<C>)) + C::kPaddingBytes + kSwizzleAlignment;
  static_assert((kHalfBytes - kFixedBytes) / kStageBytes >= 2, "Math holds two stages");
  const int most_stages_of_block = ceil_div(most_items, n_blocks) * ceil_div(n_k_blocks, kBlocks);
  const bool streams = a.group_begin != nullptr || most_stages_of_block > (kDeepBytes - kFixedBytes) / kStageBytes;
  const int n_stages = std::min(((streams ? kDeepBytes : kHalfBytes) - kFixedBytes) / kStageBytes, kMaxStages);
  const int bytes_in_flight = a.group_begin != nullptr ? kBytesInFlightOfGroups : kBytesInFlight;
  const int n_in_flight = std::min(ceil_div(bytes_in_flight, kBlocks * C::kWBytes), n_stages);
  const Params p{fp8_weights_map(a, kWidth),
                 a.x,
                 a.x_row_bytes,
                 a.x_scale,
                 a.x_scale_ld,
                 a.w_scale,
                 a.out,
                 a.group_begin,
                 a.n_tokens,
                 a.n,
                 a.k,
                 n_k_blocks,
                 a.n_groups,
                 n_stages,
                 n_in_flight,
                 a.groups_settled,
                 a.out_is_f32};
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(kThreads);
  l.shared_bytes = kFixedBytes + n_stages * kStageBytes;
  l.pdl = a.pdl;
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
