// gemm_f32, sm_90a: the kernel, whose instances are in gemm_f32_*_sm90.cu. Eight warps in groups; a group multiplies a
// strip of kStrip weight rows with kTileRows rows of x, over every n_slots-th block of 128 k.
//
//   in    x [T, H, K] f32, w [H, N, K] f32, bf16 or e4m3, a scale per 128 x 128 for the latter    out  [T, H, N] f32, bf16 or e4m3
//   grid  clusters, persistent over items: an item is a tile of rows and as many strips as the groups of a cluster have
//   block kGroups groups of kRowGroups warps. The lanes of a warp share out its rows and the strip's outputs
//   smem  Shared: a ring of stages for each group, each kStageK columns of the strip and of the rows; sums of blocks
//   flow  per stage: first lane of a group: wait empty -> copies -> full. Its warps: wait full -> multiply -> empty.
//         Per block of k: sums -> shared memory -> barrier -> each thread adds those of its outputs, slots ascending
//   edge  what lies beyond T, N or K loads as zero; columns beyond K are not multiplied, rows and outputs beyond T
//         and N not stored
//   cost  reads the weights once for each tile of rows. For four columns a thread loads kRows pieces of 16 bytes of x,
//         the same for the whole warp, and of bf16 kOutputs / 2 of w. Each takes four cycles of the SM, in which it
//         issues sixteen multiply-adds: what a thread has of both decides whether it is bound by loads
//   why   a block's sum is one chain of multiply-adds, so its 128 columns stay in one thread. Blocks are independent
//         until they are added: that is what groups, and the thread blocks of a cluster, share. Each group has its own
//         ring, so that nobody waits for a neighbour within a block of k
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/gemm/gemm_f32_launch.h"
#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/tiles/quantize_row.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"

namespace levin::cuda::gemm_f32_kernel {

constexpr int kBlockK = 128;
constexpr int64_t kCachedBytes = 32 << 20;  // of weights that L2 keeps, so that each tile of rows may read them all
constexpr int kWarps = GemmF32Tile::kWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kPiece = 16;  // bytes of a load from shared memory

// Types of weights, and 16 bytes of them as f32.
struct Bf16Weight {
  static constexpr int kBytes = 2;
  static constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  template <int kAt>
  static __device__ __forceinline__ float value(const uint4& piece) {
    constexpr int kWord = kAt / 2;
    const uint32_t word = kWord == 0 ? piece.x : kWord == 1 ? piece.y : kWord == 2 ? piece.z : piece.w;
    return __uint_as_float(kAt % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
};
struct F32Weight {
  static constexpr int kBytes = 4;
  static constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  template <int kAt>
  static __device__ __forceinline__ float value(const uint4& piece) {
    return __uint_as_float(kAt == 0 ? piece.x : kAt == 1 ? piece.y : kAt == 2 ? piece.z : piece.w);
  }
};
struct E4m3Weight {
  static constexpr int kBytes = 1;
  static constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  template <int kAt>
  static __device__ __forceinline__ float value(const uint4& piece) {
    constexpr int kWord = kAt / 4;
    const uint32_t word = kWord == 0 ? piece.x : kWord == 1 ? piece.y : kWord == 2 ? piece.z : piece.w;
    const __nv_fp8x2_storage_t pair = static_cast<__nv_fp8x2_storage_t>(word >> (kAt % 4 / 2 * 16));
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
    return __half2float(__half(kAt % 2 == 0 ? __half_raw{both.x} : __half_raw{both.y}));
  }
};

struct Params {
  CUtensorMap x_map;     // [T, H, K], boxes [kTileRows, 1, kStageK]
  CUtensorMap w_map;     // [H, N, K], boxes [kStrip, kStageK]
  const float* w_scale;  // [H, ceil(N / 128), ceil(K / 128)], or null
  void* out;
  bool out_is_bf16;
  bool has_whole_fours;  // four outputs from a multiple of four on are aligned; of many rows
  int64_t out_ld, out_head_ld;
  QuantizedRows rounded;
  int n_tokens, n_heads, n, k;
  int n_k_blocks;
  int n_head_strips;  // of one head
  int n_row_tiles;
  int n_strip_items;  // items of a tile of rows
  int n_items;
  bool strips_first;  // in the order of items; otherwise tiles of rows are
  int log2_split;     // groups of a block that share a strip: slots of a block
  int cluster;        // blocks that share a strip
};

constexpr int kFour = 4;  // columns, or outputs, that a thread has next to each other

// Outputs n to n + 3 of a row, whole where they may be.
__device__ __forceinline__ void store_four(const Params& p, const float* v, int64_t to, int n) {
  const bool whole = p.has_whole_fours && n + kFour <= p.n;
  if (p.out_is_bf16) {
    auto* out = static_cast<__nv_bfloat16*>(p.out) + to;
    if (whole) {
      const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
      *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(pair);
      return;
    }
#pragma unroll
    for (int o = 0; o < kFour; ++o)
      if (n + o < p.n) out[o] = __float2bfloat16_rn(v[o]);
  } else {
    float* out = static_cast<float*>(p.out) + to;
    if (whole) {
      *reinterpret_cast<float4*>(out) = {v[0], v[1], v[2], v[3]};
      return;
    }
#pragma unroll
    for (int o = 0; o < kFour; ++o)
      if (n + o < p.n) out[o] = v[o];
  }
}

template <class WeightOf, GemmF32Tile kTile>
struct Config {
  using Weight = WeightOf;
  static constexpr int kOutputs = kTile.outputs;
  static constexpr int kRows = kTile.rows;
  static constexpr int kRowGroups = kTile.row_groups;
  static constexpr int kStages = kTile.stages;
  static constexpr int kUnroll = kOutputs * kRows <= 16 ? 2 : 1;  // pieces of a stage
  static constexpr int kRowBytes = kTile.row_bytes;
  static constexpr int kGroups = kWarps / kRowGroups;
  static constexpr int kOutputLanes = 32 / kTile.row_lanes;  // lanes that have rows in common
  static constexpr int kStrip = kTile.strip();
  static constexpr int kTileRows = kTile.tile_rows();
  static constexpr int kStageK = kRowBytes / Weight::kBytes;
  static constexpr int kPieceK = kPiece / Weight::kBytes;
  static constexpr int kWBytes = kStrip * kRowBytes;
  static constexpr int kXBytes = kTileRows * kStageK * 4;
  static constexpr int kStageBytes = (kWBytes + kXBytes + 1023) / 1024 * 1024;
  static constexpr int kTileOutputs = kTileRows * kStrip;
  // Outputs of a thread that adds sums of several slots. A thread of 64 sums has no registers for as many totals: there are
  // two slots then at least, or one, where each warp has its totals in shared memory.
  static constexpr int kPart = std::min(kOutputs * kRows, GemmF32Tile::kMostTotals);
  static constexpr int kScales = (kStrip + kBlockK - 1) / kBlockK;          // of a strip's weights in a block of k
  static constexpr int kRanksAtOnce = kPart == 1 ? 4 : kPart <= 8 ? 2 : 1;  // whose sums are loaded together
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  static_assert(kStageK <= kBlockK && kBlockK % kStageK == 0);

  struct Shared {
    RingBarriers<kStages> rings[kGroups];
    alignas(1024) uint8_t stages[kGroups][kStages][kStageBytes];
    float sums[kGroups][kTileRows][kStrip];
    float scales[kGroups][kScales];  // of the blocks that the sums are of
  };
  static constexpr int kSharedBytes = static_cast<int>(sizeof(Shared)) + 1024;
};

// What a group multiplies in an item.
struct Place {
  int first_row;  // of x
  int head;
  int first_n;
};

template <class C>
struct Kernel {
  using Shared = typename C::Shared;
  using Weight = typename C::Weight;

  const Params& p;
  Shared& s;
  int thread, lane, warp, group, rank, cluster;
  int split, n_slots, slot;

  __device__ Kernel(const Params& params, Shared& shared)
      : p(params),
        s(shared),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(warp_index()),
        group(warp / C::kRowGroups),
        rank(p.cluster == 1 ? 0 : static_cast<int>(cluster_rank())),
        cluster(static_cast<int>(blockIdx.x) / p.cluster),
        split(1 << p.log2_split),
        n_slots(split * p.cluster),
        slot(rank * split + group % split) {}

  __device__ __forceinline__ int n_clusters() const { return static_cast<int>(gridDim.x) / p.cluster; }
  __device__ __forceinline__ bool is_leader() const { return warp % C::kRowGroups == 0 && lane == 0; }

  // Of this lane, in a tile.
  __device__ __forceinline__ int own_output(int o) const { return lane % C::kOutputLanes + C::kOutputLanes * o; }
  __device__ __forceinline__ int own_row(int r) const {
    return (warp % C::kRowGroups * (32 / C::kOutputLanes) + lane / C::kOutputLanes) * C::kRows + r;
  }

  // Of all heads' strips one after another, each item has the next kGroups / split.
  __device__ __forceinline__ Place place_of(int item, int of_group) const {
    const int strip_item = p.strips_first ? item % p.n_strip_items : item / p.n_row_tiles;
    const int row_tile = p.strips_first ? item / p.n_strip_items : item % p.n_row_tiles;
    const int strip = strip_item * (C::kGroups >> p.log2_split) + (of_group >> p.log2_split);
    return {row_tile * C::kTileRows, strip / p.n_head_strips, strip % p.n_head_strips * C::kStrip};
  }

  // The stages of this group in the order in which they are multiplied, as loads walk them.
  struct Walk {
    int item, block, k;
    Place place;
  };
  __device__ __forceinline__ Walk begin() const {
    Walk at{cluster, slot, slot * kBlockK, place_of(cluster, group)};
    find_strip(at);
    return at;
  }
  __device__ __forceinline__ bool is_valid(const Walk& at) const { return at.item < p.n_items; }
  // Advances to an item in which this group has a strip: the last of a tile of rows may have fewer than groups.
  __device__ __forceinline__ void find_strip(Walk& at) const {
    while (at.item < p.n_items && at.place.head >= p.n_heads) {
      at.item += n_clusters();
      at.place = place_of(at.item, group);
    }
  }
  __device__ __forceinline__ void advance(Walk& at) const {
    at.k += C::kStageK;
    if (at.k < p.k && at.k % kBlockK != 0) return;
    at.block += n_slots;
    if (at.block >= p.n_k_blocks) {
      at.block = slot, at.item += n_clusters();
      at.place = place_of(at.item, group);
      find_strip(at);
    }
    at.k = at.block * kBlockK;
  }

  __device__ __forceinline__ void load_w(const Walk& at, int stage) {
    s.rings[group].full[stage].arrive_expect_bytes(C::kWBytes + C::kXBytes);
    tma_load_3d(s.stages[group][stage], p.w_map, s.rings[group].full[stage], at.k, at.place.first_n, at.place.head,
                p.n_row_tiles == 1 ? kEvictFirst : kEvictNormal);
  }
  __device__ __forceinline__ void load_x(const Walk& at, int stage) {
    tma_load_3d(s.stages[group][stage] + C::kWBytes, p.x_map, s.rings[group].full[stage], at.k, at.place.head,
                at.place.first_row);
  }

  using Sums = float[C::kOutputs][C::kRows];

  // Four columns, from kAt of a piece on, of all outputs of this lane with all rows of this warp.
  template <int kAt>
  __device__ __forceinline__ void multiply_four(Sums& sums, const uint4 (&piece)[C::kOutputs], const float* x) const {
    float w[C::kOutputs][4];
#pragma unroll
    for (int o = 0; o < C::kOutputs; ++o) {
      w[o][0] = Weight::template value<kAt>(piece[o]);
      w[o][1] = Weight::template value<kAt + 1>(piece[o]);
      w[o][2] = Weight::template value<kAt + 2>(piece[o]);
      w[o][3] = Weight::template value<kAt + 3>(piece[o]);
    }
    constexpr int kBatch = std::min(C::kRows, 8);  // rows at a time: more would not fit the registers
#pragma unroll
    for (int first = 0; first < C::kRows; first += kBatch) {
      float rows[kBatch][4];
#pragma unroll
      for (int r = 0; r < kBatch; ++r)
        *reinterpret_cast<float4*>(rows[r]) = *reinterpret_cast<const float4*>(x + (first + r) * C::kStageK + kAt);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int o = 0; o < C::kOutputs; ++o)
#pragma unroll
          for (int r = 0; r < kBatch; ++r) sums[o][first + r] = __fmaf_rn(rows[r][k], w[o][k], sums[o][first + r]);
    }
    if constexpr (kAt + 4 < C::kPieceK) multiply_four<kAt + 4>(sums, piece, x);
  }

  __device__ __forceinline__ void multiply_stage(Sums& sums, int stage, int n_pieces) const {
    const uint8_t* w_rows = s.stages[group][stage] + own_output(0) * C::kRowBytes;
    const float* x = reinterpret_cast<const float*>(s.stages[group][stage] + C::kWBytes) + own_row(0) * C::kStageK;
    const int turn = C::kRowBytes == 128 ? lane % 8 : lane / 2 % 4;  // the swizzle of this lane's outputs
#pragma unroll(C::kUnroll)
    for (int piece = 0; piece < n_pieces; ++piece) {
      uint4 w[C::kOutputs];
#pragma unroll
      for (int o = 0; o < C::kOutputs; ++o)
        w[o] = *reinterpret_cast<const uint4*>(w_rows + o * C::kOutputLanes * C::kRowBytes + (piece ^ turn) * kPiece);
      multiply_four<0>(sums, w, x + piece * C::kPieceK);
    }
  }

  // Of this group's strip in a block of k, asked for before the products, which hide the latency of memory. Where there is none the
  // value before stays, for outputs and blocks that are not used.
  using Scales = float[C::kScales];
  __device__ __forceinline__ void load_scales(Scales& scales, const Place& at, int block) const {
#pragma unroll
    for (int i = 0; i < C::kScales; ++i) {
      const int n = at.first_n + i * kBlockK;
      const bool is_there = Weight::kBytes == 1 && p.w_scale != nullptr && n < p.n && at.head < p.n_heads;
      if (!is_there || block >= p.n_k_blocks) continue;
      const int n_scale_rows = (p.n + kBlockK - 1) / kBlockK;
      scales[i] = __ldg(p.w_scale + (int64_t{at.head} * n_scale_rows + n / kBlockK) * p.n_k_blocks + block);
    }
  }

  __device__ __forceinline__ void store(float value, int row, int head, int n) const {
    if (row >= p.n_tokens || n >= p.n) return;
    const int64_t at = row * p.out_ld + head * p.out_head_ld + n;
    if (p.out_is_bf16)
      static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(value);
    else
      static_cast<float*>(p.out)[at] = value;
  }

  // ---- a group that has all of K adds its own sums; each thread keeps its totals in shared memory ----

  __device__ __forceinline__ float& own_total(int o, int r) const { return s.sums[group][own_row(r)][own_output(o)]; }
  __device__ __forceinline__ void add_own(const Sums& sums, const Scales& scales, int block) const {
#pragma unroll
    for (int o = 0; o < C::kOutputs; ++o)
#pragma unroll
      for (int r = 0; r < C::kRows; ++r)
        own_total(o, r) =
            __fmaf_rn(sums[o][r], scales[o * C::kOutputLanes / kBlockK], block == 0 ? 0.0f : own_total(o, r));
  }
  __device__ __forceinline__ void store_own(const Place& at) const {
#pragma unroll
    for (int o = 0; o < C::kOutputs; ++o)
#pragma unroll
      for (int r = 0; r < C::kRows; ++r)
        store(own_total(o, r), at.first_row + own_row(r), at.head, at.first_n + own_output(o));
  }

  // ---- others add the sums of all slots: a thread has outputs (i * cluster + rank) * kThreads + thread of the item ----

  __device__ __forceinline__ int n_shared_outputs() const { return (C::kGroups >> p.log2_split) * C::kTileOutputs; }
  __device__ __forceinline__ int shared_output(int i) const { return (i * p.cluster + rank) * kThreads + thread; }

  __device__ __forceinline__ void write_sums(const Sums& sums, const Scales& scales) {
    if (Weight::kBytes == 1 && is_leader()) {
#pragma unroll
      for (int i = 0; i < C::kScales; ++i) s.scales[group][i] = scales[i];
    }
#pragma unroll
    for (int o = 0; o < C::kOutputs; ++o)
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) s.sums[group][own_row(r)][own_output(o)] = sums[o][r];
  }
  // What the groups that share a strip hold of an output, in the order of their slots.
  template <int kRanks>
  struct SlotSums {
    float of[kRanks][C::kGroups], scale[kRanks][C::kGroups];
  };
  template <bool kInCluster>
  static __device__ __forceinline__ float load_from(const float* from, int of_rank) {
    return kInCluster ? __uint_as_float(cluster_load_u32(from, static_cast<uint32_t>(of_rank))) : *from;
  }
  // Those that do not exist are the last ones again: at a branch the compiler would wait for all loads on their way.
  template <bool kInCluster, int kRanks>
  __device__ __forceinline__ void load_slots(SlotSums<kRanks>& sums, const float* first, const float* first_scale,
                                             int first_rank) const {
#pragma unroll
    for (int r = 0; r < kRanks; ++r)
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        const int of_rank = min(first_rank + r, p.cluster - 1), of_group = min(g, split - 1);
        sums.of[r][g] = load_from<kInCluster>(first + of_group * C::kTileOutputs, of_rank);
        sums.scale[r][g] =
            Weight::kBytes == 1 ? load_from<kInCluster>(first_scale + of_group * C::kScales, of_rank) : 1.0f;
      }
  }
  template <bool kInCluster>
  __device__ void add_slots(float (&total)[C::kPart], int first_block) const {
    constexpr int kRanks = kInCluster ? C::kRanksAtOnce : 1;
    const int n = min(n_slots, p.n_k_blocks - first_block);
#pragma unroll
    for (int i = 0; i < C::kPart; ++i) {
      const int output = shared_output(i);
      if (output >= n_shared_outputs()) break;
      const int of_group = output / C::kTileOutputs << p.log2_split;
      const float* first = &s.sums[of_group][0][0] + output % C::kTileOutputs;
      const float* first_scale = &s.scales[of_group][output % C::kStrip / kBlockK];
      SlotSums<kRanks> next;
      load_slots<kInCluster>(next, first, first_scale, 0);
#pragma unroll 1
      for (int rank_0 = 0; rank_0 < p.cluster; rank_0 += kRanks) {
        const SlotSums<kRanks> sums = next;
        if (rank_0 + kRanks < p.cluster) load_slots<kInCluster>(next, first, first_scale, rank_0 + kRanks);
#pragma unroll
        for (int r = 0; r < kRanks; ++r)
#pragma unroll
          for (int g = 0; g < C::kGroups; ++g) {
            const float sum = __fmaf_rn(sums.of[r][g], sums.scale[r][g], total[i]);
            total[i] = g < split && (rank_0 + r) * split + g < n ? sum : total[i];
          }
      }
    }
  }
  __device__ __forceinline__ void store_shared(const float (&total)[C::kPart], int item) const {
#pragma unroll
    for (int i = 0; i < C::kPart; ++i) {
      const int output = shared_output(i), of_group = output / C::kTileOutputs << p.log2_split;
      if (output >= n_shared_outputs()) break;
      const Place at = place_of(item, of_group);
      if (at.head >= p.n_heads) break;
      store(total[i], at.first_row + output % C::kTileOutputs / C::kStrip, at.head, at.first_n + output % C::kStrip);
    }
  }

  // The same as codes, where a block has whole blocks of columns: a warp rounds a row of one, by way of shared memory.
  __device__ __forceinline__ void round_shared(const float (&total)[C::kPart], int item) {
    float* totals = &s.sums[0][0][0];
    __syncthreads();  // everybody has added
#pragma unroll
    for (int i = 0; i < C::kPart; ++i)
      if (shared_output(i) < n_shared_outputs()) totals[shared_output(i)] = total[i];
    __syncthreads();
    const int n_blocks = (C::kGroups >> p.log2_split) * C::kStrip / kBlockK;
    for (int i = warp; i < n_blocks * C::kTileRows; i += kWarps) {
      const int column = i / C::kTileRows * kBlockK + lane * 4, strip = column / C::kStrip, tile_row = i % C::kTileRows;
      const Place at = place_of(item, strip << p.log2_split);
      const int row = at.first_row + tile_row, n = at.first_n + column % C::kStrip;
      const float4 four = *reinterpret_cast<const float4*>(totals + strip * C::kTileOutputs + tile_row * C::kStrip +
                                                           column % C::kStrip);
      const float v[4] = {four.x, four.y, four.z, four.w};
      const uint32_t exponent = scale_exponent(largest_of_lanes<32>(v));
      if (row >= p.n_tokens || at.head >= p.n_heads || n >= p.n) continue;
      const QuantizedRows& to = p.rounded;
      const int of_row = at.head * p.n + n;
      *reinterpret_cast<uint32_t*>(to.codes + row * to.code_row_bytes + of_row) =
          e4m3_codes(v[0], v[1], v[2], v[3], inverse_power(exponent));
      if (lane == 0) to.scale[of_row / kBlockK * to.scale_ld + row * to.scale_row_stride] = power_of_exponent(exponent);
    }
  }

  // Among all threads that share sums; after wait_joined() the sums may be written again.
  __device__ __forceinline__ void wait_written() const {
    if (p.cluster == 1)
      __syncthreads();
    else
      cluster_sync();
  }
  __device__ __forceinline__ void tell_joined() const {
    if (p.cluster > 1) cluster_arrive();
  }
  __device__ __forceinline__ void wait_joined() const {
    if (p.cluster == 1)
      __syncthreads();
    else
      cluster_wait();
  }

  // What the leader of a group loads next, and where to.
  struct Loads {
    Walk at;
    RingPosition<C::kStages> to;
    // With stages enough the one before this is loaded again: for this one the leader would wait for its group.
    bool lags = C::kRowGroups > 1 && C::kStages > 2;
  };

  // Fills the ring: weights while the kernel before may still run, then rows.
  __device__ __forceinline__ void load_first(Loads& loads) {
    if (is_leader()) {
      Walk at = loads.at;
      for (int i = 0; i < C::kStages && is_valid(at); ++i, advance(at)) load_w(at, i);
    }
    grid_dependency_wait();
    if (is_leader()) {
      for (int i = 0; i < C::kStages && is_valid(loads.at); ++i, advance(loads.at)) load_x(loads.at, i);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void load_again(Loads& loads) {
    if (loads.lags) {
      loads.lags = false;
      return;
    }
    if (is_leader() && is_valid(loads.at)) {
      s.rings[group].empty[loads.to.stage].wait(loads.to.parity);
      load_w(loads.at, loads.to.stage);
      load_x(loads.at, loads.to.stage);
      advance(loads.at);
    }
    __syncwarp();
    loads.to.advance();
  }

  __device__ __forceinline__ void multiply_block(Sums& sums, int block, RingPosition<C::kStages>& read, Loads& loads) {
    const int end = min(p.k, (block + 1) * kBlockK);
    for (int k = block * kBlockK; k < end; k += C::kStageK) {
      s.rings[group].full[read.stage].wait(read.parity);
      multiply_stage(sums, read.stage, (min(end - k, C::kStageK) + C::kPieceK - 1) / C::kPieceK);
      s.rings[group].empty[read.stage].arrive_as_warp();
      read.advance();
      load_again(loads);
    }
  }

  __device__ void run() {
    RingPosition<C::kStages> read;
    Loads loads{begin()};
    Scales scales;
#pragma unroll
    for (float& scale : scales) scale = 1.0f;
    load_scales(scales, loads.at.place, slot);
    load_first(loads);
    bool joined = true;
    for (int item = cluster; item < p.n_items; item += n_clusters()) {
      const Place at = place_of(item, group);
      const bool has_work = at.head < p.n_heads;
      float total[C::kPart] = {};
      for (int first_block = 0; first_block < p.n_k_blocks; first_block += n_slots) {
        const int block = first_block + slot;
        Sums sums = {};
        if (item != cluster || first_block != 0) load_scales(scales, at, block);
        if (block < p.n_k_blocks && has_work) multiply_block(sums, block, read, loads);
        if (n_slots == 1) {
          if (has_work) add_own(sums, scales, block);
          continue;
        }
        if (!joined) wait_joined();
        write_sums(sums, scales);
        wait_written();
        p.cluster == 1 ? add_slots<false>(total, first_block) : add_slots<true>(total, first_block);
        tell_joined();
        joined = false;
      }
      if (p.rounded.codes != nullptr)
        round_shared(total, item);
      else if (n_slots > 1)
        store_shared(total, item);
      else if (has_work)
        store_own(at);
    }
    if (!joined && p.cluster > 1) cluster_wait();  // others may still read this block's sums
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemm_f32_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    prefetch_map(p.w_map);
    for (auto& ring : s.rings) ring.init(1, C::kRowGroups * kWarpArrivals);
    fence_barrier_init();
  }
  __syncthreads();
  Kernel<C>(p, s).run();
}

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

inline CUtensorMap x_map(const GemmF32& a, int box_rows, int box_columns) {
  return make_tensor_map({.matrix = {.data = a.x,
                                     .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                     .n_rows = a.n_heads,
                                     .n_columns = a.k,
                                     .row_bytes = (a.n_heads == 1 ? a.x_ld : a.x_head_ld) * 4,
                                     .box_rows = 1,
                                     .box_columns = box_columns},
                          .n_matrices = a.n_tokens,
                          .matrix_bytes = a.x_ld * 4,
                          .box_matrices = box_rows});
}

// As many as have room at once. Where SMs are busy and those left are enough with two items each, only so many: they have loaded
// their weights when the others become free.
inline int clusters_of_launch(int n_items, int cluster, int n_busy_sms) {
  const int most = std::min(n_items, std::max(1, n_sms() / cluster)), n_free = (n_sms() - n_busy_sms) / cluster;
  return most > n_free && n_items <= 2 * n_free ? ceil_div(n_items, 2) : most;
}

// What does not depend on tiles.
inline Params product_params(const GemmF32& a) {
  return {.w_scale = a.w_scale,
          .out = a.out,
          .out_is_bf16 = a.out_is_bf16,
          .out_ld = a.out_ld,
          .out_head_ld = a.out_head_ld,
          .rounded = a.rounded,
          .n_tokens = a.n_tokens,
          .n_heads = a.n_heads,
          .n = a.n,
          .k = a.k,
          .n_k_blocks = ceil_div(a.k, kBlockK)};
}

template <class C>
void launch(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  static_assert(C::kSharedBytes <= kMaxSharedBytes);
  const int log2_split = std::countr_zero(static_cast<unsigned>(plan.split));
  Params p = product_params(a);
  p.x_map = x_map(a, C::kTileRows, C::kStageK);
  p.w_map = make_tensor_map({.matrix = {.data = a.w,
                                        .type = C::Weight::kMapType,
                                        .n_rows = a.n,
                                        .n_columns = a.k,
                                        .row_bytes = int64_t{a.k} * C::Weight::kBytes,
                                        .box_rows = C::kStrip,
                                        .box_columns = C::kStageK,
                                        .swizzle = C::kRowBytes == 128 ? Swizzle::k128 : Swizzle::k64},
                             .n_matrices = a.n_heads,
                             .matrix_bytes = int64_t{a.n} * a.k * C::Weight::kBytes});
  p.n_head_strips = ceil_div(a.n, C::kStrip);
  p.n_row_tiles = ceil_div(a.n_tokens, C::kTileRows);
  p.log2_split = log2_split;
  p.cluster = plan.cluster;
  p.n_strip_items = ceil_div(a.n_heads * p.n_head_strips, C::kGroups >> log2_split);
  p.n_items = p.n_row_tiles * p.n_strip_items;
  p.strips_first = int64_t{a.n_heads} * a.n * a.k * C::Weight::kBytes <= kCachedBytes;
  const int n_clusters = clusters_of_launch(p.n_items, plan.cluster, a.n_busy_sms);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_clusters * plan.cluster));
  l.block = dim3(kThreads);
  l.shared_bytes = C::kSharedBytes;
  l.cluster = plan.cluster;
  l.pdl = a.pdl;
  l.stream = stream;
  launch_kernel(gemm_f32_kernel<C>, l, p);
}

// The plan's instance of an array of tiles.
template <class Weight, const auto& kTiles>
void launch_tile(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (void)((plan.tile == static_cast<int>(kIndex) && (launch<Config<Weight, kTiles[kIndex]>>(a, plan, stream), true)) ||
           ...);
  }(std::make_index_sequence<std::size(kTiles)>());
}

}  // namespace levin::cuda::gemm_f32_kernel
