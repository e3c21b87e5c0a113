// sparse_mla over converted rows, sm_90a, for prefill. A block attends with 64 heads of one query row.
//
//   in, out, order, parts, edge  as in bf16_sm90.cu, and the same bits
//   grid  a block for every SM, which go from item to item, an item being a row and a group of 64 heads
//   block  2 head warpgroups + a load warpgroup
//   smem  struct ConvertedRows below: two key tiles of 64 indices, the queries of 64 heads. A tile's weights lie over its
//         rope, which is not needed any more then.
//   flow  Load warps: queries, and indices -> rows -> tiles, by cp.async. Head warpgroup g has the scores and weights of
//         tiles g, g+2, ..., and value columns 256g .. 256g+255 of all tiles, in order. A tile is loaded in halves, the
//         first being that of the value columns of its own warpgroup, which are free first. A thread leaves the sums of a
//         row's first part in scratch memory, while the next scores are multiplied, and reads them again when it has
//         those of the second, merges and writes its columns.
//   order of work  Group 0 adds the other's last tile before its own scores, which stand after it in the queue of products,
//         group 1 after them: each of the two waits for weights while the other multiplies, and no two products wait for one
//         load.
//   cost  a tile: 36 wgmma m64n64k16 + 8 m64n256k16 = 2176 tensor cycles; 72 KB from L2, 0.3 MB through shared memory
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/whole_depth.cuh"
#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kConvertedThreads = kHeadThreads + kLoadThreads;
constexpr int kConvertedLoadRegs = 56, kStartRegs = 168;
constexpr int kSumBarrier = 3;  // the first of four, named, each of the two head warps with the same heads
static_assert(2 * kHeadRegs + kConvertedLoadRegs == 3 * kStartRegs);
static_assert(kMaxParts == 2);

struct ConvertedRows {
  static constexpr int kProductColumns = 256;

  alignas(1024) uint8_t key[2][kRowChunks][kChunkBytes];  // of the even and the odd tile
  uint8_t query[kRowChunks][kChunkBytes];
  int32_t running_max[2][kMlaHeadGroup];  // after the even and the odd tile
  float row_sum[2][2][kMlaHeadGroup];     // of an item, in turns: over its even and its odd tiles
  int32_t n_tiles[2];                     // of an item, in turns; there before its queries are
  alignas(8) float bias[2][kTileKeys];    // of a last tile: 0, or -inf for an invalid index
  Mbarrier key_full[2][2];                // a tile's own half; its other half and rope
  Mbarrier key_empty[2][2];               // the value columns of a warpgroup
  Mbarrier weight_full[2];
  Mbarrier query_full;
  Mbarrier query_empty;
  GroupBarriers<kSumBarrier, 4, 64> sums_shared;  // of 16 heads: an item's row_sum is written
};
static_assert(sizeof(ConvertedRows) <= kMaxSharedBytes, "too much shared memory");

// The items of a block, each warp walking by itself.
class RowWork {
 public:
  __device__ __forceinline__ explicit RowWork(const SparseMla& a) : a_(a), item_(static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ bool is_at_end() const { return item_ >= static_cast<int>(a_.n_rows) * n_groups(); }
  __device__ __forceinline__ void advance() {
    item_ += static_cast<int>(gridDim.x);
    n_earlier_[0] += (n_tiles_ + 1) / 2;
    n_earlier_[1] += n_tiles_ / 2;
    ++n_done_;
  }

  // Tiles of this item that hold top-k indices: lane i looks at tile i. All lanes call.
  __device__ __forceinline__ int count_tiles() const {
    const int lane = threadIdx.x % 32;
    const int32_t first = lane < a_.n_topk / kTileKeys ? a_.topk[row() * a_.n_topk + lane * kTileKeys] : -1;
    return 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, min(first, a_.table_row[row()]) >= 0)));
  }
  __device__ __forceinline__ void enter(int n_tiles) { n_tiles_ = n_tiles; }

  __device__ __forceinline__ int64_t row() const { return item_ / n_groups(); }
  __device__ __forceinline__ int first_head() const { return item_ % n_groups() * kMlaHeadGroup; }
  __device__ __forceinline__ const int32_t* topk() const { return a_.topk + row() * a_.n_topk; }
  __device__ __forceinline__ int n_tiles() const { return n_tiles_; }
  __device__ __forceinline__ int n_done() const { return n_done_; }
  // Tiles that were in the place of `tile` before it: the parity of its barriers.
  template <int kParity>
  __device__ __forceinline__ int turn(int tile) const {
    return n_earlier_[kParity] + tile / 2;
  }

 private:
  __device__ __forceinline__ int n_groups() const { return a_.n_heads > kMlaHeadGroup ? 2 : 1; }

  const SparseMla& a_;
  int item_;
  int n_tiles_ = 0;
  int n_earlier_[2] = {0, 0};  // even and odd tiles of earlier items
  int n_done_ = 0;
};

// Merges the sums of a finished part's weights; returns the factors for its values.
__device__ __forceinline__ void merge_part_sums(HeadState& m, MergeFactors (&f)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int32_t total_max = m.sums.total_max[h];
    f[h] = merge_factors(total_max, m.acc_max[h]);
  }
  merge_sums(m.sums, m.acc_max);
}

// A thread's first part of a row in scratch memory: fours of sums, kHeadThreads apart. Of a block: see scratch_slot().
static_assert(kFours * kHeadThreads * sizeof(float4) <= kMlaTotalBytes);
__device__ __forceinline__ float4* first_part(const SparseMla& a) {
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes + int64_t{read_block_index()} * kMlaTotalBytes) +
         read_thread_index();
}

// Leaves the first part of two. L2 is asked to keep it: keys would otherwise take its place before it is read again.
__device__ __forceinline__ void leave_first_part(HeadState& m, const SparseMla& a) {
  MergeFactors f[2];
  merge_part_sums(m, f);
  float4* to = first_part(a);
#pragma unroll
  for (int j = 0; j < kFours; ++j) store_to_stay(to + j * kHeadThreads, merge_four(m.acc, j, f, {0, 0, 0, 0}));
  start_part(m);
}

// Adds the last part to the first, if there are two, and writes the row.
template <bool kF32>
__device__ __forceinline__ void write_row(ConvertedRows& s, HeadState& m, const SparseMla& a, const RowWork& w) {
  constexpr int kAhead = 8;  // fours on their way, as many as there are registers for; not used if there is one part
  const bool has_two = w.n_tiles() > kPartTiles;
  const int turn = w.n_done() % 2;
  MergeFactors f[2];
  merge_part_sums(m, f);
  if (read_thread_index() % 4 == 0) {
    s.row_sum[turn][head_group()][own_row()] = m.sums.total_sum[0];
    s.row_sum[turn][head_group()][own_row() + 8] = m.sums.total_sum[1];
  }
  s.sums_shared.arrive_and_wait(sixteen(), turn);
  const float inverse[2] = {invert_sum(s.row_sum[turn][0][own_row()], s.row_sum[turn][1][own_row()]),
                            invert_sum(s.row_sum[turn][0][own_row() + 8], s.row_sum[turn][1][own_row() + 8])};
  const float4* first = first_part(a);
  float4 before[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) before[j] = __ldcg(first + j * kHeadThreads);
#pragma unroll
  for (int begin = 0; begin < kFours; begin += 4) {
    float4 value[4];
#pragma unroll
    for (int j = begin; j < begin + 4; ++j) {
      float4& earlier = before[j % kAhead];
      value[j - begin] = merge_four(m.acc, j, f, has_two ? earlier : float4{0, 0, 0, 0});
      if (j + kAhead < kFours) earlier = __ldcg(first + (j + kAhead) * kHeadThreads);
    }
    store_columns<kF32>(a, w, head_group() * kHalfLatent + 8 * begin, value, inverse);
  }
  __syncwarp();  // products need all lanes together
}

// All tiles of a row.
template <int kGroup>
__device__ __forceinline__ void attend_tiles(ConvertedRows& s, HeadState& m, const SparseMla& a, const RowWork& w,
                                             float scale_log2) {
  start_row(m);
  if (w.n_tiles() <= kGroup) s.query_empty.arrive_as_warp();
  for (int tile = kGroup; tile < w.n_tiles(); tile += 2)
    attend_tile<kGroup>(s, m, w, tile, scale_log2, [&] { leave_first_part(m, a); });
  if (kGroup == 1 && begins_later_part(w.n_tiles() - 1)) leave_first_part(m, a);  // no own tile of the next part did
  if (w.n_tiles() > 0 && (w.n_tiles() - 1) % 2 != kGroup) {
    add_other_tile<kGroup>(s, m, w.turn<1 - kGroup>(w.n_tiles() - 1));
    wait_for_values<0>(m);
    release_tile<kGroup>(s, 1 - kGroup);
  }
}

template <bool kF32>
__device__ __forceinline__ void head_role(ConvertedRows& s, const SparseMla& a, float scale_log2) {
  const bool is_odd = warp_index() >= 4;
  for (RowWork w(a); !w.is_at_end(); w.advance()) {
    s.query_full.wait_without_clock(w.n_done() & 1);
    w.enter(s.n_tiles[w.n_done() % 2]);
    HeadState m;
    if (is_odd)
      attend_tiles<1>(s, m, a, w, scale_log2);
    else
      attend_tiles<0>(s, m, a, w, scale_log2);
    write_row<kF32>(s, m, a, w);
  }
}

// Eight lanes share a key or head; a thread has four of them, 16 apart, and in every chunk of their rows the same piece.
class ConvertedLoader {
 public:
  __device__ __forceinline__ ConvertedLoader(ConvertedRows& s, const SparseMla& a)
      : s_(s), a_(a), own_row_((static_cast<int>(threadIdx.x) - kHeadThreads) / 8), piece_(threadIdx.x % 8 * 16) {}

  __device__ __forceinline__ void run() {
    for (RowWork w(a_); !w.is_at_end(); w.advance()) {
      w.enter(w.count_tiles());
      topk_ = a_.topk + w.row() * a_.n_topk + own_row_;
      first_slot_ = a_.table_row[w.row()] * a_.tables.stride * kIndexPageTokens;
      ask_topk(0, w.n_tiles());
      queries().ask(w, w.n_done());
      if (threadIdx.x == kHeadThreads) s_.n_tiles[w.n_done() % 2] = w.n_tiles();
      if (w.n_tiles() > 0) load_tile<0>(w, 0);  // these keys arrive while the queries are put in order
      queries().put_in_order();
      for (int tile = 0; tile < w.n_tiles(); tile += 2) {
        if (tile > 0) load_tile<0>(w, tile);
        if (tile + 1 < w.n_tiles()) load_tile<1>(w, tile + 1);
      }
    }
    async_copy_wait<0>();
  }

 private:
  static constexpr int kRowStep = kLoadThreads / 8, kRows = kTileKeys / kRowStep;

  __device__ __forceinline__ QueryLoader<kLoadThreads, ConvertedRows> queries() {
    return {s_, a_, read_thread_index() - kHeadThreads};
  }

  __device__ __forceinline__ uint32_t offset(int i) const { return swizzle_128(own_row_, piece_) + i * kRowStep * 128; }

  __device__ __forceinline__ void ask_topk(int tile, int n_tiles) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) pick_[i] = tile < n_tiles ? topk_[tile * kTileKeys + i * kRowStep] : -1;
  }

  template <int kFirstChunk, int kEndChunk>
  __device__ __forceinline__ void copy_chunks(int parity, const std::byte* const (&row)[kRows], uint32_t valid) {
#pragma unroll
    for (int c = kFirstChunk; c < kEndChunk; ++c)
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        async_copy_16(s_.key[parity][c] + offset(i), row[i] + c * 128, (valid >> i & 1) != 0);
  }

  template <int kParity>
  __device__ __forceinline__ void load_tile(const RowWork& w, int tile) {
    constexpr int kOther = 1 - kParity;
    const uint32_t parity = (w.turn<kParity>(tile) & 1) ^ 1;
    const std::byte* row[kRows];
    uint32_t valid = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      row[i] = a_.cache + (first_slot_ + max(pick_[i], 0)) * kConvertedRowBytes + piece_;
      valid |= static_cast<uint32_t>(pick_[i] >= 0) << i;
    }
    ask_topk(tile + 1, w.n_tiles());
    s_.key_empty[kParity][kParity].wait_without_clock(parity);
    copy_chunks<kParity * kChunks, kParity * kChunks + kChunks>(kParity, row, valid);
    s_.key_full[kParity][0].arrive_after_async_copies();
    s_.key_empty[kParity][kOther].wait_without_clock(parity);
    copy_chunks<kOther * kChunks, kOther * kChunks + kChunks>(kParity, row, valid);
    copy_chunks<kRopeChunk, kRowChunks>(kParity, row, valid);
    s_.key_full[kParity][1].arrive_after_async_copies();
  }

  ConvertedRows& s_;
  const SparseMla& a_;
  int own_row_;
  int piece_;  // bytes
  const int32_t* topk_ = nullptr;
  int64_t first_slot_ = 0;
  int pick_[kRows];
};

__device__ __forceinline__ void init_barriers(ConvertedRows& s) {
  init_tile_barriers(s, kLoadThreads, kLoadThreads, kLoadThreads);
  s.sums_shared.init();
  fence_barrier_init();
}

// kF32: of the output.
template <bool kF32>
__global__ void __launch_bounds__(kConvertedThreads, 1)
    converted_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  ConvertedRows& s = *reinterpret_cast<ConvertedRows*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  launch_dependents();
  grid_dependency_wait();
  __syncthreads();
  if (warp_index() < kHeadThreads / 32) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<kF32>(s, a, scale_log2);
  } else {
    setmaxnreg_dec<kConvertedLoadRegs>();
    ConvertedLoader(s, a).run();
  }
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_sparse_mla_converted(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_items = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup);
  const int64_t n_blocks = std::min({n_items, int64_t{n_sms()}, kMlaTotals});
  const Launch l{.grid = {static_cast<unsigned>(n_blocks)},
                 .block = {mla::kConvertedThreads},
                 .shared_bytes = sizeof(mla::ConvertedRows),
                 .pdl = true,
                 .stream = stream};
  launch_kernel(a.out_f32 ? mla::converted_kernel<true> : mla::converted_kernel<false>, l, a, a.scale * kLog2E);
}

}  // namespace levin::cuda
