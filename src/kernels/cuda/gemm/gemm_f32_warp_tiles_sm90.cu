// gemm_f32 for tens of rows, sm_90a: each of eight warps multiplies a few rows with 128 outputs.
//
//   in    x [T, H, K] f32, w [H, N, K] bf16 or e4m3, a scale per 128 x 128 for the latter
//   out   [T, H, N] f32, bf16 or e4m3
//   grid  persistent over items: an item is a tile of rows and a strip of outputs of one head
//   block 8 math warps, by rows, by outputs and by block of k (slot) + a load warp
//   smem  struct Shared: a ring of stages for each slot, each kStageK columns of the strip and of the rows; totals
//   flow  load warp, per stage and slot: wait empty -> copies -> full. math: wait full -> multiply -> empty; per block of k:
//         wait for the turn -> total of the slot before + sums -> total -> turn of the next slot
//   edge  what lies beyond T, N or K loads as zero; columns beyond K are not multiplied, rows and outputs beyond T and N not
//         stored
//   cost  for four k a thread of R rows and 8 outputs loads R pieces of 16 bytes of x and 4 (bf16) or 2 of w, and issues
//         32 R multiply-adds and 32 (bf16) or 48 conversions
//   why   64 sums in a thread, with few loads for them, leave no registers for totals, which are in shared memory. Slots
//         multiply several blocks of k of one output at a time, where outputs alone are too few for eight warps; they add
//         their sums one after the other, in the order of k, while the others multiply
#include "kernels/cuda/gemm/gemm_f32_sm90.cuh"
#include "kernels/cuda/prims/alignment.h"

namespace levin::cuda::gemm_f32_kernel {
namespace {

constexpr int kWarpOutputs = kBlockK;         // so that a scale of weights, or of rounded rows, is of one warp
constexpr int kTileThreads = kThreads + 128;  // the load warp is of a warpgroup, which gives registers to the others
constexpr int kMathRegs = 232, kLoadRegs = 40, kStartRegs = 168;
static_assert(2 * kMathRegs + kLoadRegs == 3 * kStartRegs);

template <class WeightOf, GemmF32WarpTiles kTiles>
struct TileConfig {
  using Weight = WeightOf;
  static constexpr int kRows = kTiles.rows, kOutputs = kTiles.kOutputs;  // of a thread
  static constexpr int kOutputLanes = kWarpOutputs / kOutputs;           // lanes that have a row
  static constexpr int kWarpRows = kTiles.warp_rows();
  static constexpr int kRowWarps = kTiles.row_warps, kStripWarps = kTiles.strip_warps, kSlots = kTiles.slots;
  static constexpr int kSlotWarps = kRowWarps * kStripWarps;
  static constexpr int kStages = kTiles.stages, kRowBytes = kTiles.row_bytes;
  static constexpr int kTileRows = kTiles.tile_rows(), kStrip = kTiles.strip();
  static constexpr int kStageK = kRowBytes / Weight::kBytes;
  static constexpr int kSteps = kBlockK / kStageK;         // stages of a block of k
  static constexpr int kPieceK = kPiece / Weight::kBytes;  // columns of a load of weights
  static constexpr int kGroups = kOutputLanes / 8;         // of 32 outputs that lanes have next to each other
  static constexpr int kPartRows = kStrip / kFour;
  static constexpr int kFours = kRows * kOutputs / kFour;
  static_assert(kSlotWarps * kSlots == kWarps);
  static_assert(kRowBytes == 64 || kRowBytes == 128);

  struct Shared {
    // Swizzled: output 4 i + c of the strip is row i of part c. Lanes that read neighbouring rows have four outputs next to each
    // other.
    alignas(1024) uint8_t w[kSlots][kStages][kFour][kPartRows][kRowBytes];
    alignas(128) float x[kSlots][kStages][kTileRows][kStageK];
    float4 total[kFours][kSlotWarps * 32];
    RingBarriers<kStages> rings[kSlots];
    Mbarrier turns[kWarps];
  };
  static constexpr uint32_t kStageBytes = kStrip * kRowBytes + kTileRows * kStageK * 4;
  static constexpr int kSharedBytes = static_cast<int>(sizeof(Shared)) + 1024;
};

struct WeightMaps {
  CUtensorMap part[kFour];  // [H, ceil((N - c) / 4), K] from output c on, rows four apart; boxes [kPartRows, kStageK]
};

struct Item {
  int first_row, head, first_n;
};
template <class C>
__device__ __forceinline__ Item item_of(const Params& p, int i) {
  const int strip_item = p.strips_first ? i % p.n_strip_items : i / p.n_row_tiles;
  const int row_tile = p.strips_first ? i / p.n_strip_items : i % p.n_row_tiles;
  return {row_tile * C::kTileRows, strip_item / p.n_head_strips, strip_item % p.n_head_strips * C::kStrip};
}

// ---- the load warp: one thread ----

template <class C>
struct Copies {
  const Params& p;
  const WeightMaps& maps;
  typename C::Shared& s;

  // Of all slots, which multiply neighbouring blocks of k. A slot that has no columns gets an empty stage.
  struct Step {
    int item, first_block, k;
  };
  __device__ __forceinline__ bool is_valid(const Step& at) const { return at.item < p.n_items; }
  __device__ __forceinline__ void advance(Step& at) const {
    at.k += C::kStageK;
    if (at.k < kBlockK) return;
    at.k = 0, at.first_block += C::kSlots;
    if (at.first_block < p.n_k_blocks) return;
    at.first_block = 0, at.item += static_cast<int>(gridDim.x);
  }
  template <class Copy>
  __device__ __forceinline__ void for_each_slot(const Step& at, const Copy& copy) const {
    const Item item = item_of<C>(p, at.item);
    for (int slot = 0; slot < C::kSlots; ++slot) {
      const int k = (at.first_block + slot) * kBlockK + at.k;
      copy(item, slot, k, k < p.k);
    }
  }
  __device__ __forceinline__ void load_w(const Item& at, int slot, int stage, int k) const {
#pragma unroll
    for (int c = 0; c < kFour; ++c)
      tma_load_3d(s.w[slot][stage][c], maps.part[c], s.rings[slot].full[stage], k, at.first_n / kFour, at.head,
                  p.n_row_tiles == 1 ? kEvictFirst : kEvictNormal);
  }
  __device__ __forceinline__ void load_x(const Item& at, int slot, int stage, int k) const {
    tma_load_3d(s.x[slot][stage], p.x_map, s.rings[slot].full[stage], k, at.head, at.first_row);
  }

  __device__ void run() {
    const Step begin{static_cast<int>(blockIdx.x), 0, 0};
    Step at = begin;
    // the first lap: weights while the kernel before may still run, then rows
    for (int i = 0; i < C::kStages && is_valid(at); ++i, advance(at)) {
      for_each_slot(at, [&](const Item& item, int slot, int k, bool has_columns) {
        if (!has_columns) return s.rings[slot].full[i].arrive();
        s.rings[slot].full[i].arrive_expect_bytes(C::kStageBytes);
        load_w(item, slot, i, k);
      });
    }
    grid_dependency_wait();
    at = begin;
    RingPosition<C::kStages> to;
    for (int i = 0; i < C::kStages && is_valid(at); ++i, advance(at), to.advance()) {
      for_each_slot(at, [&](const Item& item, int slot, int k, bool has_columns) {
        if (has_columns) load_x(item, slot, i, k);
      });
    }
    for (; is_valid(at); advance(at), to.advance()) {
      for_each_slot(at, [&](const Item& item, int slot, int k, bool has_columns) {
        s.rings[slot].empty[to.stage].wait(to.parity ^ 1);
        if (!has_columns) return s.rings[slot].full[to.stage].arrive();
        s.rings[slot].full[to.stage].arrive_expect_bytes(C::kStageBytes);
        load_w(item, slot, to.stage, k);
        load_x(item, slot, to.stage, k);
      });
    }
  }
};

// ---- math warps ----

template <class C>
struct Math {
  using Weight = typename C::Weight;
  const Params& p;
  typename C::Shared& s;
  int lane, warp, slot, warp_of_slot, row_warp, strip_warp;
  float sum[C::kRows][C::kOutputs];

  __device__ __forceinline__ Math(const Params& params, typename C::Shared& shared)
      : p(params),
        s(shared),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(warp_index()),
        slot(warp / C::kSlotWarps),
        warp_of_slot(warp % C::kSlotWarps),
        row_warp(warp_of_slot % C::kRowWarps),
        strip_warp(warp_of_slot / C::kRowWarps) {}

  __device__ __forceinline__ int output_lane() const { return lane % C::kOutputLanes; }
  __device__ __forceinline__ int first_row() const {
    return row_warp * C::kWarpRows + lane / C::kOutputLanes * C::kRows;
  }
  // Of this thread's fours of outputs, from output 4 i on.
  __device__ __forceinline__ int output_of_four(int i) const {
    return strip_warp * kWarpOutputs + (C::kGroups * i + output_lane() / 8) * 32 + output_lane() % 8 * kFour;
  }

  // The piece from column k on of output j.
  __device__ __forceinline__ uint4 weights_at(int stage, int j, int k) const {
    const int w_row =
        strip_warp * (kWarpOutputs / kFour) + (C::kGroups * (j / kFour) + output_lane() / 8) * 8 + output_lane() % 8;
    const int turn = C::kRowBytes == 128 ? output_lane() % 8 : output_lane() % 8 / 2;
    return *reinterpret_cast<const uint4*>(s.w[slot][stage][j % kFour][w_row] + (k / C::kPieceK ^ turn) * kPiece);
  }

  // Four columns of all rows with outputs j and j + 1, from kAt of their pieces on.
  template <int kAt>
  __device__ __forceinline__ void multiply_pair(int j, const float (&row)[C::kRows][kFour], const uint4& first,
                                                const uint4& second) {
    const float weight[2][kFour] = {{Weight::template value<kAt>(first), Weight::template value<kAt + 1>(first),
                                     Weight::template value<kAt + 2>(first), Weight::template value<kAt + 3>(first)},
                                    {Weight::template value<kAt>(second), Weight::template value<kAt + 1>(second),
                                     Weight::template value<kAt + 2>(second), Weight::template value<kAt + 3>(second)}};
#pragma unroll
    for (int k = 0; k < kFour; ++k)
#pragma unroll
      for (int o = 0; o < 2; ++o)
#pragma unroll
        for (int i = 0; i < C::kRows; ++i) sum[i][j + o] = __fmaf_rn(row[i][k], weight[o][k], sum[i][j + o]);
  }
  template <int kAt>
  __device__ __forceinline__ void multiply_pieces(const uint4 (&piece)[C::kOutputs], const float* x) {
    float row[C::kRows][kFour];
#pragma unroll
    for (int i = 0; i < C::kRows; ++i)
      *reinterpret_cast<float4*>(row[i]) = *reinterpret_cast<const float4*>(x + i * C::kStageK + kAt);
#pragma unroll
    for (int j = 0; j < C::kOutputs; j += 2) multiply_pair<kAt>(j, row, piece[j], piece[j + 1]);
    if constexpr (kAt + kFour < C::kPieceK) multiply_pieces<kAt + kFour>(piece, x);
  }
  __device__ __forceinline__ void multiply_stage(int stage, int n_columns) {
    const float* x = s.x[slot][stage][first_row()];
#pragma unroll 1
    for (int k = 0; k < n_columns; k += C::kPieceK) {
      uint4 piece[C::kOutputs];
#pragma unroll
      for (int j = 0; j < C::kOutputs; ++j) piece[j] = weights_at(stage, j, k);
      multiply_pieces<0>(piece, x + k);
    }
  }

  __device__ __forceinline__ float scale_of(const Item& at, int block) const {
    const int n = at.first_n + strip_warp * kWarpOutputs;
    if (Weight::kBytes != 1 || p.w_scale == nullptr || n >= p.n || block >= p.n_k_blocks) return 1.0f;
    const int n_scale_rows = (p.n + kBlockK - 1) / kBlockK;
    return __ldg(p.w_scale + (int64_t{at.head} * n_scale_rows + n / kBlockK) * p.n_k_blocks + block);
  }

  __device__ __forceinline__ float4& total_at(int row, int four) const {
    return s.total[row * (C::kOutputs / kFour) + four][warp_of_slot * 32 + lane];
  }
  // Adds the sums of a block, which begin anew.
  __device__ __forceinline__ void add_block(float scale, bool is_first) {
#pragma unroll
    for (int i = 0; i < C::kRows; ++i)
#pragma unroll
      for (int j = 0; j < C::kOutputs; j += kFour) {
        float4& place = total_at(i, j / kFour);
        float total[kFour] = {0, 0, 0, 0};
        if (!is_first) *reinterpret_cast<float4*>(total) = place;
#pragma unroll
        for (int o = 0; o < kFour; ++o) {
          total[o] = __fmaf_rn(sum[i][j + o], scale, total[o]);
          sum[i][j + o] = 0;
        }
        place = *reinterpret_cast<const float4*>(total);
      }
  }

  // A slot has its turn when that of the block of k before has added, or for a first block has stored the totals of the item
  // before.
  __device__ __forceinline__ void wait_turn(uint32_t& parity) const {
    if (C::kSlots == 1) return;
    s.turns[warp].wait(parity);
    parity ^= 1;
  }
  __device__ __forceinline__ void pass_turn(bool is_last) const {
    if (C::kSlots == 1) return;
    const int next = is_last ? 0 : (slot + 1) % C::kSlots;
    s.turns[next * C::kSlotWarps + warp_of_slot].arrive_as_warp();
  }

  __device__ __forceinline__ void store(const Item& at) const {
#pragma unroll 1
    for (int i = 0; i < C::kRows; ++i) {
      const int row = at.first_row + first_row() + i;
      if (row >= p.n_tokens) break;
      const int64_t to = row * p.out_ld + at.head * p.out_head_ld;
#pragma unroll
      for (int four = 0; four < C::kOutputs / kFour; ++four) {
        const int n = at.first_n + output_of_four(four);
        const float4 total = total_at(i, four);
        const float v[kFour] = {total.x, total.y, total.z, total.w};
        if (n < p.n) store_four(p, v, to + n, n);
      }
    }
  }
  // Codes with a scale to a row of the warp's outputs, which kOutputLanes lanes have.
  __device__ __forceinline__ void round(const Item& at) const {
    const QuantizedRows& to = p.rounded;
    const int warp_n = at.first_n + strip_warp * kWarpOutputs, of_row = at.head * p.n + at.first_n;
#pragma unroll 1
    for (int i = 0; i < C::kRows; ++i) {
      float v[C::kOutputs];
#pragma unroll
      for (int j = 0; j < C::kOutputs; j += kFour) *reinterpret_cast<float4*>(v + j) = total_at(i, j / kFour);
      const uint32_t exponent = scale_exponent(largest_of_lanes<C::kOutputLanes>(v));
      const int row = at.first_row + first_row() + i;
      if (row >= p.n_tokens || warp_n >= p.n) continue;
      const float inverse = inverse_power(exponent);
      uint8_t* codes = to.codes + row * to.code_row_bytes + of_row;
#pragma unroll
      for (int j = 0; j < C::kOutputs; j += kFour)
        *reinterpret_cast<uint32_t*>(codes + output_of_four(j / kFour)) =
            e4m3_codes(v[j], v[j + 1], v[j + 2], v[j + 3], inverse);
      if (output_lane() == 0)
        to.scale[(of_row / kBlockK + strip_warp) * to.scale_ld + row * to.scale_row_stride] =
            power_of_exponent(exponent);
    }
  }

  __device__ void run() {
    RingPosition<C::kStages> from;
    uint32_t turn = slot == 0 ? 1 : 0;
#pragma unroll
    for (auto& row : sum)
#pragma unroll
      for (float& v : row) v = 0;
    grid_dependency_wait();  // what is stored may be read by the kernel before
    for (int i = static_cast<int>(blockIdx.x); i < p.n_items; i += static_cast<int>(gridDim.x)) {
      const Item at = item_of<C>(p, i);
      for (int first_block = 0; first_block < p.n_k_blocks; first_block += C::kSlots) {
        const int block = first_block + slot;
        const float scale = scale_of(at, block);
        for (int step = 0; step < C::kSteps; ++step, from.advance()) {
          s.rings[slot].full[from.stage].wait(from.parity);
          multiply_stage(from.stage, min(p.k - block * kBlockK - step * C::kStageK, C::kStageK));
          s.rings[slot].empty[from.stage].arrive_as_warp();
        }
        if (block >= p.n_k_blocks) continue;
        const bool is_last = block + 1 == p.n_k_blocks;
        wait_turn(turn);
        add_block(scale, block == 0);
        if (is_last) p.rounded.codes != nullptr ? round(at) : store(at);
        pass_turn(is_last);
      }
    }
  }
};

template <class C>
__global__ void __launch_bounds__(kTileThreads, 1)
    gemm_f32_warp_tiles_kernel(const __grid_constant__ Params p, const __grid_constant__ WeightMaps maps) {
  extern __shared__ uint8_t raw_shared[];
  auto& s = *reinterpret_cast<typename C::Shared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  launch_dependents();
  if (threadIdx.x == 0) {
    prefetch_map(p.x_map);
    for (const CUtensorMap& map : maps.part) prefetch_map(map);
    for (auto& ring : s.rings) ring.init(1, C::kSlotWarps * kWarpArrivals);
    for (Mbarrier& turn : s.turns) turn.init(kWarpArrivals);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp_index() < kWarps) {
    setmaxnreg_inc<kMathRegs>();
    Math<C>(p, s).run();
  } else {
    setmaxnreg_dec<kLoadRegs>();
    if (threadIdx.x == kThreads) Copies<C>{p, maps, s}.run();
  }
}

template <class C>
void launch_warp_tiles(const GemmF32& a, CUstream_st* stream) {
  static_assert(C::kSharedBytes <= kMaxSharedBytes);
  Params p = product_params(a);
  p.x_map = x_map(a, C::kTileRows, C::kStageK);
  WeightMaps maps;
  const int64_t row_bytes = int64_t{a.k} * C::Weight::kBytes;
  for (int c = 0; c < kFour; ++c)
    maps.part[c] = make_tensor_map({.matrix = {.data = static_cast<const uint8_t*>(a.w) + c * row_bytes,
                                               .type = C::Weight::kMapType,
                                               .n_rows = ceil_div(a.n - c, kFour),
                                               .n_columns = a.k,
                                               .row_bytes = kFour * row_bytes,
                                               .box_rows = C::kPartRows,
                                               .box_columns = C::kStageK,
                                               .swizzle = C::kRowBytes == 128 ? Swizzle::k128 : Swizzle::k64},
                                    .n_matrices = a.n_heads,
                                    .matrix_bytes = a.n * row_bytes});
  p.has_whole_fours = a.out_ld % 4 == 0 && (a.n_heads == 1 || a.out_head_ld % 4 == 0) && aligned_16(a.out);
  p.n_head_strips = ceil_div(a.n, C::kStrip);
  p.n_row_tiles = ceil_div(a.n_tokens, C::kTileRows);
  p.n_strip_items = a.n_heads * p.n_head_strips;
  p.n_items = p.n_row_tiles * p.n_strip_items;
  p.strips_first = int64_t{a.n_heads} * a.n * a.k * C::Weight::kBytes <= kCachedBytes;
  const Launch l{.grid = dim3(static_cast<unsigned>(std::min(p.n_items, n_sms()))),
                 .block = dim3(kTileThreads),
                 .shared_bytes = C::kSharedBytes,
                 .pdl = a.pdl,
                 .stream = stream};
  launch_kernel(gemm_f32_warp_tiles_kernel<C>, l, p, maps);
}

// The plan's instance.
template <class Weight, const auto& kTiles>
void launch_plan(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (void)((plan.tile == static_cast<int>(kIndex) &&
            (launch_warp_tiles<TileConfig<Weight, kTiles[kIndex]>>(a, stream), true)) ||
           ...);
  }(std::make_index_sequence<std::size(kTiles)>());
}

}  // namespace
}  // namespace levin::cuda::gemm_f32_kernel

namespace levin::cuda {

void gemm_f32_warp_tiles(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  using namespace gemm_f32_kernel;
  if (a.w_type == DType::kBF16)
    launch_plan<Bf16Weight, kBf16WarpTiles>(a, plan, stream);
  else
    launch_plan<E4m3Weight, kE4m3WarpTiles>(a, plan, stream);
}

}  // namespace levin::cuda
