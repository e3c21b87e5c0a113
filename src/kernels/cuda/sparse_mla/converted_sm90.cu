// sparse_mla over converted rows, sm_90a, for prefill. A block attends with 64 heads of one query row.
//
//   in, out, order, parts, edge  as in sparse_mla_sm90.cuh, and the same bits
//   grid  a block for every SM, which go from item to item, an item being a row and a group of 64 heads
//   block  2 head warpgroups + 2 load warps + 2 write warps
//   smem  struct ConvertedRows below: two key tiles of 64 indices, the queries of 64 heads. A tile's weights lie over its
//         rope, which is not needed any more then.
//   flow  Load warps: queries, and indices -> rows -> tiles, by cp.async. Head warpgroup g has the scores and weights of
//         tiles g, g+2, ..., and value columns 256g .. 256g+255 of all tiles, in order. A tile is loaded in halves, the
//         first being that of the value columns of its own warpgroup, which are free first. Head warpgroups leave the sums
//         of a part in scratch memory and continue; write warps merge the parts of a row there, and write the row.
//   order of work  Group 0 adds the other's last tile before it computes its own scores, group 1 after them: each of
//         the two waits for weights while the other multiplies, and no two products wait for one load.
//   cost  a tile: 36 wgmma m64n64k16 + 8 m64n256k16 = 2176 tensor cycles; 72 KB from L2, 0.3 MB through shared memory
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/whole_depth.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kConvertedThreads = kHeadThreads + kLoadThreads;
constexpr int kKeyLoadThreads = 64, kWriteWarps = 2;
static_assert(kKeyLoadThreads + 32 * kWriteWarps == kLoadThreads);
constexpr int kConvertedLoadRegs = 56, kStartRegs = 168;
static_assert(2 * kHeadRegs + kConvertedLoadRegs == 3 * kStartRegs);
static_assert(kMaxParts == 2);

struct ConvertedRows {
  static constexpr int kProductColumns = 256;

  alignas(1024) uint8_t key[2][kRowChunks][kChunkBytes];  // of the even and the odd tile
  uint8_t query[kRowChunks][kChunkBytes];
  int32_t running_max[2][kMlaHeadGroup];   // after the even and the odd tile
  float2 merge[kMaxParts][kMlaHeadGroup];  // factors of each part: of the parts before it, and its own
  float row_sum[2][kMlaHeadGroup];         // over the even and the odd tiles
  float bias[2][kTileKeys];                // of a last tile: 0, or -inf for an invalid index
  Mbarrier key_full[2][2];                 // a tile's own half; its other half and rope
  Mbarrier key_empty[2][2];                // the value columns of a warpgroup
  Mbarrier weight_full[2];
  Mbarrier query_full;
  Mbarrier query_empty;
  Mbarrier part_full[kMaxParts];   // sums in scratch memory and their factors; with the last part those of the weights
  Mbarrier part_empty[kMaxParts];  // each once for every row, whether it has the part or not
};
static_assert(sizeof(ConvertedRows) <= kMaxSharedBytes, "too much shared memory");

// The items of a block, each warp walking by itself.
class RowWork {
 public:
  __device__ __forceinline__ explicit RowWork(const SparseMla& a) : a_(a), item_(static_cast<int>(blockIdx.x)) {
    enter();
  }
  // False after the last item.
  __device__ __forceinline__ bool advance() {
    item_ += static_cast<int>(gridDim.x);
    if (item_ >= static_cast<int>(a_.n_rows) * n_groups()) return false;
    n_earlier_[0] += (n_tiles_ + 1) / 2;
    n_earlier_[1] += n_tiles_ / 2;
    ++n_done_;
    enter();
    return true;
  }

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
  // Counts the tiles that hold top-k indices: lane i looks at tile i.
  __device__ __forceinline__ void enter() {
    const int lane = threadIdx.x % 32;
    const bool has_topk =
        lane < a_.n_topk / kTileKeys && a_.table_row[row()] >= 0 && a_.topk[row() * a_.n_topk + lane * kTileKeys] >= 0;
    n_tiles_ = 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, has_topk)));
  }

  const SparseMla& a_;
  int item_;
  int n_tiles_;
  int n_earlier_[2] = {0, 0};  // even and odd tiles of earlier items
  int n_done_ = 0;
};

// Merges the sums of a finished part; returns the factors for its values.
__device__ __forceinline__ void merge_part_sums(HeadState& m, MergeFactors (&f)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int32_t total_max = m.sums.total_max[h];
    f[h] = merge_factors(total_max, m.acc_max[h]);
  }
  merge_sums(m.sums, m.acc_max);
}

// A part's values in scratch memory, columns in the order of converted rows. Of a block: see scratch_slot().
static_assert(kMaxParts * kMlaHeadGroup * kLatent * sizeof(float) <= kMlaTotalBytes);
__device__ __forceinline__ float* part_values(const SparseMla& a, int part) {
  return reinterpret_cast<float*>(a.scratch + kMlaCounterBytes + int64_t{read_block_index()} * kMlaTotalBytes) +
         part * kMlaHeadGroup * kLatent;
}

// Leaves the sums of a finished part to the write warps.
template <int kGroup>
__device__ __forceinline__ void put_part(ConvertedRows& s, HeadState& m, const SparseMla& a, int part, int n_done) {
  MergeFactors f[2];
  merge_part_sums(m, f);
  const int lane = read_thread_index() % 32, row = own_row();
  s.part_empty[part].wait_without_clock((n_done & 1) ^ 1);
  float* to = part_values(a, part) + row * kLatent + kGroup * kHalfLatent + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    __stcg(reinterpret_cast<float2*>(to + 8 * j), float2{m.acc[4 * j], m.acc[4 * j + 1]});
    __stcg(reinterpret_cast<float2*>(to + 8 * kLatent + 8 * j), float2{m.acc[4 * j + 2], m.acc[4 * j + 3]});
  }
  if (kGroup == 0 && lane % 4 == 0) {  // the other warpgroup has the same
    s.merge[part][row] = {f[0].total, f[0].part};
    s.merge[part][row + 8] = {f[1].total, f[1].part};
  }
}

// The first part of two.
template <int kGroup>
__device__ __forceinline__ void put_first_part(ConvertedRows& s, HeadState& m, const SparseMla& a, int n_done) {
  put_part<kGroup>(s, m, a, 0, n_done);
  s.part_full[0].arrive_as_warp();
  start_part(m);
}

// The last part of a row, and the sums of its weights.
template <int kGroup>
__device__ __forceinline__ void put_last_part(ConvertedRows& s, HeadState& m, const SparseMla& a, const RowWork& w) {
  const bool is_first = w.n_tiles() <= kPartTiles;
  put_part<kGroup>(s, m, a, is_first ? 0 : 1, w.n_done());
  if (is_first) {
    s.part_full[0].arrive_as_warp();
    s.part_empty[1].wait_without_clock((w.n_done() & 1) ^ 1);
  }
  if (read_thread_index() % 4 == 0) {
    s.row_sum[kGroup][own_row()] = m.sums.total_sum[0];
    s.row_sum[kGroup][own_row() + 8] = m.sums.total_sum[1];
  }
  s.part_full[1].arrive_as_warp();
}

// All tiles of a row.
template <int kGroup>
__device__ __forceinline__ void attend_row(ConvertedRows& s, const SparseMla& a, const RowWork& w, float scale_log2) {
  HeadState m;
  start_row(m);
  s.query_full.wait_without_clock(w.n_done() & 1);
  if (w.n_tiles() <= kGroup) s.query_empty.arrive_as_warp();
  for (int tile = kGroup; tile < w.n_tiles(); tile += 2)
    attend_tile<kGroup>(s, m, w, tile, scale_log2, [&] { put_first_part<kGroup>(s, m, a, w.n_done()); });
  if (kGroup == 1 && begins_later_part(w.n_tiles() - 1))
    put_first_part<kGroup>(s, m, a, w.n_done());  // no own tile of the next part did
  if (w.n_tiles() > 0 && (w.n_tiles() - 1) % 2 != kGroup) {
    add_other_tile<kGroup>(s, m, w.turn<1 - kGroup>(w.n_tiles() - 1));
    release_tile<kGroup>(s, m, 1 - kGroup);
  }
  put_last_part<kGroup>(s, m, a, w);
}

template <int kGroup>
__device__ __forceinline__ void head_role(ConvertedRows& s, const SparseMla& a, float scale_log2) {
  RowWork w(a);
  do {
    attend_row<kGroup>(s, a, w, scale_log2);
  } while (w.advance());
}

// Merges the parts of each row and writes it. A warp has every other head, a lane four columns of each 128.
template <bool kF32>
class RowWriter {
 public:
  __device__ __forceinline__ RowWriter(ConvertedRows& s, const SparseMla& a)
      : s_(s), a_(a), warp_(warp_index() % kWriteWarps), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run() {
    RowWork w(a_);
    do {
      for (Mbarrier& full : s_.part_full) full.wait_without_clock(w.n_done() & 1);
      const int n_heads = min(kMlaHeadGroup, a_.n_heads - w.first_head());
      for (int head = warp_; head < n_heads; head += kWriteWarps)
        write_head(head, (w.row() * a_.n_heads + w.first_head() + head) * kLatent, w.n_tiles() > kPartTiles);
      for (Mbarrier& empty : s_.part_empty) empty.arrive_as_warp();
    } while (w.advance());
  }

 private:
  static constexpr int kSteps = kLatent / 128;

  // A first part has nothing to be added to, but is brought into the same form.
  __device__ __forceinline__ static float4 merge(const float2& f, const float4& part, const float4& before) {
    return {fmaf(part.x, f.y, before.x * f.x), fmaf(part.y, f.y, before.y * f.x), fmaf(part.z, f.y, before.z * f.x),
            fmaf(part.w, f.y, before.w * f.x)};
  }

  __device__ __forceinline__ void write_head(int head, int64_t to, bool has_two) const {
    const float* from = part_values(a_, 0) + head * kLatent + 4 * lane_;
    float4 value[kSteps], last[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      value[i] = __ldcg(reinterpret_cast<const float4*>(from + 128 * i));
      if (has_two) last[i] = __ldcg(reinterpret_cast<const float4*>(from + kMlaHeadGroup * kLatent + 128 * i));
    }
    const float inverse = invert_sum(s_.row_sum[0][head], s_.row_sum[1][head]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float4 v = merge(s_.merge[0][head], value[i], {0, 0, 0, 0});
      if (has_two) v = merge(s_.merge[1][head], last[i], v);
      store(to + 128 * i + 4 * lane_, {v.z * inverse, v.x * inverse, v.w * inverse, v.y * inverse});
    }
  }
  __device__ __forceinline__ void store(int64_t to, const float4& v) const {
    if constexpr (kF32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a_.out) + to) = v;
    } else {
      const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a_.out) + to) = *reinterpret_cast<const uint2*>(pair);
    }
  }

  ConvertedRows& s_;
  const SparseMla& a_;
  int warp_, lane_;
};

// Eight lanes share a key or head; a thread has eight of them, 8 apart, and in every chunk of their rows the same piece.
class ConvertedLoader {
 public:
  __device__ __forceinline__ ConvertedLoader(ConvertedRows& s, const SparseMla& a)
      : s_(s), a_(a), own_row_((static_cast<int>(threadIdx.x) - kHeadThreads) / 8), piece_(threadIdx.x % 8 * 16) {}

  __device__ __forceinline__ void run() {
    RowWork w(a_);
    do {
      topk_ = a_.topk + w.row() * a_.n_topk + own_row_;
      first_slot_ = a_.table_row[w.row()] * a_.tables.stride * kIndexPageTokens;
      ask_topk(0, w.n_tiles());
      queries().ask(w, w.n_done());
      if (w.n_tiles() > 0) load_tile<0>(w, 0);  // these keys arrive while the queries are put in order
      queries().put_in_order();
      for (int tile = 0; tile < w.n_tiles(); tile += 2) {
        if (tile > 0) load_tile<0>(w, tile);
        if (tile + 1 < w.n_tiles()) load_tile<1>(w, tile + 1);
      }
    } while (w.advance());
    async_copy_wait<0>();
  }

 private:
  static constexpr int kRows = 8, kRowStep = 8;

  __device__ __forceinline__ QueryLoader<kKeyLoadThreads, ConvertedRows> queries() {
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
  init_tile_barriers(s, kKeyLoadThreads, kKeyLoadThreads, kKeyLoadThreads);
  for (int part = 0; part < kMaxParts; ++part) {
    s.part_full[part].init(kHeadThreads / 32 * kWarpArrivals);
    s.part_empty[part].init(kWriteWarps * kWarpArrivals);
  }
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
  if (warp_index() < 4) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<0>(s, a, scale_log2);
  } else if (warp_index() < 8) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<1>(s, a, scale_log2);
  } else {
    setmaxnreg_dec<kConvertedLoadRegs>();
    if (warp_index() < (kHeadThreads + kKeyLoadThreads) / 32)
      ConvertedLoader(s, a).run();
    else
      RowWriter<kF32>(s, a).run();
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
