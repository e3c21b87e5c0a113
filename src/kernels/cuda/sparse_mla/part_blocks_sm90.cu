// sparse_mla over FP8 rows, sm_90a. A block attends with 64 heads of one query row to 1024 of its top-k indices; a pair of blocks
// does both parts of a row.
//
//   in, out, order, parts, edge  as in sparse_mla_sm90.cuh, and the same bits
//   grid  a block for every SM, which go from item to item, an item being a part of a row with a group of 64 heads
//   cluster  a pair, which has both parts of a row at the same time      block  2 head + 2 load warpgroups
//   smem  struct PartBlock below: two key tiles of 64 indices over the whole depth, the queries of 64 heads, and half of the
//         cache row pieces that come next
//   flow  Load warpgroups: queries, and indices -> rows -> bf16 tiles, in halves of the depth. While one is converted, half of the pieces
//         of the next are on their way to shared memory and half to registers, from L2, where a row comes a tile before. Head
//         warpgroup g: as in converted_sm90.cu, the scores and weights of tiles g, g+2, ... and value columns 256g .. 256g+255
//         of all tiles. In the end each block sends the other half of its columns by way of scratch memory, and merges and
//         writes the rest.
//   cost  a tile: 36 wgmma m64n64k16 + 16 m64n128k16 = 2176 tensor cycles; 42 KB from memory; 64 x 512 values converted at 9
//         instructions for four
//   why   Blocks that share the depth exchange halves of all scores, and a tile's time is that of its chain of waits. Here a
//         pair exchanges once a row, and each value is still converted once.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/whole_depth.cuh"
#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kPartLoadThreads = 256;
constexpr int kPartThreads = kHeadThreads + kPartLoadThreads;
constexpr int kPartLoadRegs = 32;
static_assert(kHeadRegs + kPartLoadRegs == 65536 / 256);
constexpr int kCopiedChunks = kChunks / 2;  // of a half row, by way of shared memory
constexpr int kMergeBarrier = 3;            // named; of both head warpgroups
static_assert(kMaxParts == 2);

struct PartBlock {
  static constexpr int kProductColumns = 128;

  alignas(1024) uint8_t key[2][kRowChunks][kChunkBytes];  // of the even and the odd tile
  uint8_t query[kRowChunks][kChunkBytes];
  uint4 codes[kCopiedChunks][kPartLoadThreads];  // of the next half tile
  float2 scale[kTileKeys];                       // of all of its keys
  int32_t running_max[2][kMlaHeadGroup];         // after the even and the odd tile
  float row_sum[2][2][kMlaHeadGroup];            // of an item, in turns: over its even and its odd tiles
  float bias[2][kTileKeys];                      // of a last tile: 0, or -inf for an invalid index
  Mbarrier key_full[2][2];                       // a tile's own half; its other half and rope
  Mbarrier key_empty[2][2];                      // the value columns of a warpgroup
  Mbarrier weight_full[2];
  Mbarrier query_full;
  Mbarrier query_empty;
  GroupBarriers<kMergeBarrier, 1, kHeadThreads> sums_shared;  // an item's row_sum, and what is sent, are written
  Mbarrier part_full[2];  // what the other block sends of every other row is in scratch memory
};
static_assert(sizeof(PartBlock) <= kMaxSharedBytes, "too much shared memory");

// The items of a block, each warp walking by itself.
class PartWork {
 public:
  __device__ __forceinline__ PartWork(const SparseMla& a, int n_parts)
      : a_(a), n_parts_(n_parts), item_(static_cast<int>(blockIdx.x) / n_parts) {
    enter();
  }
  __device__ __forceinline__ bool is_at_end() const { return item_ >= static_cast<int>(a_.n_rows) * n_groups(); }
  __device__ __forceinline__ void advance() {
    item_ += static_cast<int>(gridDim.x) / n_parts_;
    const uint32_t n_even = (n_tiles_ + 1) / 2, n_odd = n_tiles_ / 2, has_tiles = n_tiles_ > 0 ? 1 : 0;
    parities_ ^= (n_even & 1) | (n_odd & 1) << 1 | has_tiles << 2;
    n_merged_ += has_both_parts() ? 1 : 0;
    enter();
  }

  __device__ __forceinline__ int64_t row() const { return item_ / n_groups(); }
  __device__ __forceinline__ int first_head() const { return item_ % n_groups() * kMlaHeadGroup; }
  __device__ __forceinline__ int part() const { return n_parts_ == 1 ? 0 : read_block_index() % kMaxParts; }
  __device__ __forceinline__ const int32_t* topk() const { return a_.topk + row() * a_.n_topk + part() * kMlaPartTopk; }
  __device__ __forceinline__ int n_tiles() const { return n_tiles_; }
  __device__ __forceinline__ bool has_both_parts() const { return n_row_tiles_ > kPartTiles; }
  __device__ __forceinline__ int n_merged() const { return n_merged_; }  // earlier rows with both parts
  // The parity of earlier items with tiles for this block.
  __device__ __forceinline__ int item_parity() const { return parities_ >> 2; }
  // Has that of the tiles that were in the place of `tile` before it: the parity of its barriers.
  __device__ __forceinline__ int turn(int tile, int tile_parity) const {
    return static_cast<int>(parities_ >> tile_parity & 1) + tile / 2;
  }
  template <int kParity>
  __device__ __forceinline__ int turn(int tile) const {
    return turn(tile, kParity);
  }

 private:
  __device__ __forceinline__ int n_groups() const { return a_.n_heads > kMlaHeadGroup ? 2 : 1; }
  // Counts the tiles that hold top-k indices: lane i looks at tile i.
  __device__ __forceinline__ void enter() {
    if (is_at_end()) return;
    const int lane = threadIdx.x % 32;
    const bool has_topk =
        lane < a_.n_topk / kTileKeys && !is_padding(a_, row()) && a_.topk[row() * a_.n_topk + lane * kTileKeys] >= 0;
    n_row_tiles_ = 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, has_topk)));
    n_tiles_ = max(0, min(n_row_tiles_ - part() * kPartTiles, kPartTiles));
  }

  const SparseMla& a_;
  int n_parts_;
  int item_;
  int n_row_tiles_ = 0;
  int n_tiles_ = 0;
  uint32_t parities_ = 0;  // bits 0 and 1: of even and of odd tiles of earlier items; 2: of earlier items with tiles
  int n_merged_ = 0;
};

// Half the columns of a part, for the block that merges them, with the sums of the weights of each warpgroup's tiles and what all
// is relative to. A block receives them in two places in turns: when it sends again what a place is for, the other block has
// sent what it wrote after it had read the place.
constexpr int kHalfFours = kFours / kMaxParts;
struct HalfPart {
  float4 four[kHalfFours][kHeadThreads];
  float4 sums[kHeadThreads];
};
static_assert(2 * sizeof(HalfPart) <= kMlaTotalBytes);
__device__ __forceinline__ HalfPart& half_part(const SparseMla& a, int block, int turn) {
  return reinterpret_cast<HalfPart*>(a.scratch + kMlaCounterBytes + int64_t{block} * kMlaTotalBytes)[turn % 2];
}

__device__ __forceinline__ float4 four_sums(const HeadState& m, bool second_half, int j) {
  const float *x = m.acc + 4 * j, *y = x + 4 * kHalfFours;
  return {second_half ? y[0] : x[0], second_half ? y[1] : x[1], second_half ? y[2] : x[2], second_half ? y[3] : x[3]};
}

// The sums of the weights of own tiles over the row's four lanes, for both warpgroups.
template <int kGroup>
__device__ __forceinline__ void share_sums(PartBlock& s, const HeadState& m, float (&sum)[2], int item_parity) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = m.sums.sum[h] * power_of_two(m.sums.sum_max[h] - m.acc_max[h]);
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 2);
    if (read_thread_index() % 4 == 0) s.row_sum[item_parity][kGroup][own_row() + 8 * h] = sum[h];
  }
}

// Leaves the columns that the other block merges in scratch memory.
__device__ __forceinline__ void send_half(PartBlock& s, const HeadState& m, const SparseMla& a, const PartWork& w,
                                          const float (&sum)[2]) {
  const int thread = read_thread_index();
  HalfPart& to = half_part(a, read_block_index() ^ 1, w.n_merged());
#pragma unroll
  for (int j = 0; j < kHalfFours; ++j) __stcg(&to.four[j][thread], four_sums(m, w.part() == 0, j));
  __stcg(&to.sums[thread], float4{sum[0], sum[1], __int_as_float(m.acc_max[0]), __int_as_float(m.acc_max[1])});
  __threadfence();
  s.sums_shared.arrive_and_wait(0, w.item_parity());
  if (thread == 0) cluster_arrive_relaxed(s.part_full[w.n_merged() % 2], cluster_rank() ^ 1);
}

// Columns 8j .. 8j + 31 from first_column on.
__device__ __forceinline__ void store_columns(const SparseMla& a, const PartWork& w, int first_column,
                                              const float4 (&value)[4], const float (&inverse)[2]) {
  if (!a.out_f32) return store_32_columns(a, w, first_column, value, inverse);
#pragma unroll
  for (int j = 0; j < 4; ++j) store_output<LatentRows::kFp8, true>(a, w, first_column, j, value[j], inverse);
}

// The sums of a row's weights, merged part after part, and the factors of the parts' values.
struct RowMerge {
  MergeFactors factor[kMaxParts][2];
  float sum[2][2] = {{0, 0}, {0, 0}};  // of the even and the odd tiles
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};

  __device__ __forceinline__ void add(int part, int h, int32_t part_max, float even, float odd) {
    factor[part][h] = merge_factors(maximum[h], part_max);
    sum[0][h] = fmaf(even, factor[part][h].part, sum[0][h] * factor[part][h].total);
    sum[1][h] = fmaf(odd, factor[part][h].part, sum[1][h] * factor[part][h].total);
  }
  __device__ __forceinline__ float inverse(int h) const { return invert_sum(sum[0][h], sum[1][h]); }
};

// Merges this block's columns of both parts of a row, the earlier first, and writes them.
template <int kGroup>
__device__ __forceinline__ void merge_halves(PartBlock& s, const HeadState& m, const SparseMla& a, const PartWork& w) {
  s.part_full[w.n_merged() % 2].wait_without_clock(w.n_merged() / 2 & 1);
  __threadfence();
  const int thread = read_thread_index(), row = own_row();
  const bool later = w.part() == 1;
  const HalfPart& from = half_part(a, read_block_index(), w.n_merged());
  const float4 even = __ldcg(&from.sums[thread % 128]), odd = __ldcg(&from.sums[128 + thread % 128]);
  RowMerge merge;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float own[2] = {s.row_sum[w.item_parity()][0][row + 8 * h], s.row_sum[w.item_parity()][1][row + 8 * h]};
    const float other[2] = {h == 0 ? even.x : even.y, h == 0 ? odd.x : odd.y};
    const int32_t own_max = m.acc_max[h], other_max = __float_as_int(h == 0 ? even.z : even.w);
    merge.add(0, h, later ? other_max : own_max, later ? other[0] : own[0], later ? other[1] : own[1]);
    merge.add(1, h, later ? own_max : other_max, later ? own[0] : other[0], later ? own[1] : other[1]);
  }
  const float inverse[2] = {merge.inverse(0), merge.inverse(1)};
  const int first_column = kGroup * kHalfLatent + w.part() * (kHalfLatent / kMaxParts);
#pragma unroll
  for (int first = 0; first < kHalfFours; first += 4) {
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = __ldcg(&from.four[first + j][thread]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 own = four_sums(m, later, first + j), other = value[j];
      const float part[kMaxParts][4] = {
          {later ? other.x : own.x, later ? other.y : own.y, later ? other.z : own.z, later ? other.w : own.w},
          {later ? own.x : other.x, later ? own.y : other.y, later ? own.z : other.z, later ? own.w : other.w}};
      value[j] = merge_four(part[1], 0, merge.factor[1], merge_four(part[0], 0, merge.factor[0], {0, 0, 0, 0}));
    }
    store_columns(a, w, first_column + 8 * first, value, inverse);
  }
}

// Writes a row that has one part only.
template <int kGroup>
__device__ __forceinline__ void write_row(PartBlock& s, const HeadState& m, const SparseMla& a, const PartWork& w) {
  s.sums_shared.arrive_and_wait(0, w.item_parity());
  RowMerge merge;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    merge.add(0, h, m.acc_max[h], s.row_sum[w.item_parity()][0][own_row() + 8 * h],
              s.row_sum[w.item_parity()][1][own_row() + 8 * h]);
  const float inverse[2] = {merge.inverse(0), merge.inverse(1)};
#pragma unroll
  for (int first = 0; first < kFours; first += 4) {
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = merge_four(m.acc, first + j, merge.factor[0], {0, 0, 0, 0});
    store_columns(a, w, kGroup * kHalfLatent + 8 * first, value, inverse);
  }
}

// A row without top-k indices.
template <int kGroup>
__device__ __forceinline__ void write_zeros(const SparseMla& a, const PartWork& w) {
  const float4 zeros[4] = {};
#pragma unroll 1
  for (int column = 0; column < kHalfLatent; column += 32)
    store_columns(a, w, kGroup * kHalfLatent + column, zeros, {0, 0});
}

// All tiles of a part, and what follows for the row.
template <int kGroup>
__device__ __forceinline__ void attend_part(PartBlock& s, const SparseMla& a, const PartWork& w, float scale_log2) {
  HeadState m;
  start_row(m);
  s.query_full.wait_without_clock(w.item_parity());
  if (w.n_tiles() <= kGroup) s.query_empty.arrive_as_warp();
  for (int tile = kGroup; tile < w.n_tiles(); tile += 2) attend_tile<kGroup>(s, m, w, tile, scale_log2, [] {});
  if ((w.n_tiles() - 1) % 2 != kGroup) {
    add_other_tile<kGroup>(s, m, w.turn<1 - kGroup>(w.n_tiles() - 1));
    release_tile<kGroup>(s, m, 1 - kGroup);
  }
  float sum[2];
  share_sums<kGroup>(s, m, sum, w.item_parity());
  if (!w.has_both_parts()) return write_row<kGroup>(s, m, a, w);
  send_half(s, m, a, w, sum);
  merge_halves<kGroup>(s, m, a, w);
}

template <int kGroup>
__device__ __forceinline__ void head_role(PartBlock& s, const SparseMla& a, int n_parts, float scale_log2) {
  for (PartWork w(a, n_parts); !w.is_at_end(); w.advance()) {
    if (w.n_tiles() > 0)
      attend_part<kGroup>(s, a, w, scale_log2);
    else if (w.part() == 0)
      write_zeros<kGroup>(a, w);
  }
  cluster_sync();  // nobody leaves while the other may signal here
}

// Cache rows to tiles, half the depth of a tile at a time, a unit: first the half that the tile's own warpgroup adds, whose place
// is free first. Four lanes share a key, each with 16 bytes of every 64. Of the next unit, two of four such pieces are copied to
// shared memory, and two to registers, as soon as the ones before are converted.
template <bool kTables>
class PartLoader {
 public:
  __device__ __forceinline__ PartLoader(PartBlock& s, const SparseMla& a) : s_(s), a_(a) {}

  __device__ __forceinline__ void load_part(const PartWork& w) {
    if (kTables) first_entry_ = static_cast<int>(a_.table_row[w.row()] * a_.tables.stride);
    ask_topk(w, 0);
    ask_slot(w, 1);
    find_row();
    slot_ = ahead_;
    ask_slot(w, 2);
    ask_copies(0);
    ask_held(0);
    queries().ask(w, w.item_parity());
    find_row();
    for (int unit = 0; unit < 2 * w.n_tiles(); ++unit) {
      put_unit(w, unit);
      if (unit == 0) queries().put_in_order();
    }
  }

 private:
  using Format = RowFormat<LatentRows::kFp8>;
  static constexpr int kHeldChunks = kChunks - kCopiedChunks;
  static constexpr int kLastLine = Format::kRowBytes - 1 - (512 + 128);  // so that lane 1 has a row's last byte

  // Formed anew where they are used: registers are short.
  __device__ __forceinline__ static int thread() { return read_thread_index() - kHeadThreads; }
  __device__ __forceinline__ static int key() { return thread() / 4; }
  __device__ __forceinline__ QueryLoader<kPartLoadThreads, PartBlock> queries() { return {s_, a_, thread()}; }

  __device__ __forceinline__ void ask_topk(const PartWork& w, int tile) {
    pick_ = tile < w.n_tiles() ? w.topk()[tile * kTileKeys + key()] : -1;
  }
  // Asks for what the slot of the index that is there follows from, and for the index of `tile`, the one after.
  __device__ __forceinline__ void ask_slot(const PartWork& w, int tile) {
    next_ = pick_;
    if (kTables) entry_ = pick_ < 0 ? 0 : a_.tables.data[first_entry_ + pick_ / kIndexPageTokens];
    ask_topk(w, tile);
  }
  // The row after the one that is asked for. It comes to L2 now: when it is asked for itself, there is no time left to wait for
  // memory. Its four lanes bring its lines, at most seven.
  __device__ __forceinline__ void find_row() {
    ahead_ = kTables && next_ >= 0 ? entry_ * kIndexPageTokens + next_ % kIndexPageTokens : next_;
    if (ahead_ < 0) return;
    const std::byte* line = slot_row(a_, ahead_, Format::kRowBytes) + thread() % 4 * 128;
    prefetch_l2(line);
    if (thread() % 4 < 2) prefetch_l2(line + 512 + thread() % 4 * kLastLine);
  }
  __device__ __forceinline__ bool is_valid() const { return slot_ >= 0; }
  // This lane's 16 bytes of each 64.
  __device__ __forceinline__ const std::byte* row() const {
    return slot_row(a_, max(slot_, 0), Format::kRowBytes) + thread() % 4 * 16;
  }

  // Asks for the pieces of half a row that come by way of shared memory, and for its scales.
  __device__ __forceinline__ void ask_copies(int half) {
    const std::byte* from = row() + half * kHalfLatent;
#pragma unroll
    for (int c = 0; c < kCopiedChunks; ++c) async_copy_16(&s_.codes[c][thread()], from + c * 64, is_valid());
    if (thread() % 4 == 0) async_copy_8(&s_.scale[key()], row() + Format::kScaleOffset + half * 8, is_valid());
    async_copy_commit();
  }
  // And for the others.
  __device__ __forceinline__ void ask_held(int half) {
    const std::byte* from = row() + half * kHalfLatent + kCopiedChunks * 64;
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) held_[c] = load_16(from + c * 64, is_valid());
  }
  __device__ __forceinline__ void copy_rope(uint8_t* to) {
    const uint32_t at = swizzle_128(key(), thread() % 4 * 16);
    async_copy_16(to + at, row() + Format::kRopeOffset, is_valid());
    async_copy_16(to + (at ^ 64), row() + Format::kRopeOffset + 64, is_valid());
  }

  __device__ __forceinline__ static void put(uint8_t* chunk, uint32_t at, const uint4& codes, uint32_t factor) {
    *reinterpret_cast<uint4*>(chunk + at) = convert_8(codes.x, codes.y, factor);
    *reinterpret_cast<uint4*>(chunk + (at ^ 16)) = convert_8(codes.z, codes.w, factor);
  }

  __device__ __forceinline__ void put_unit(const PartWork& w, int unit) {
    const int tile = unit / 2, side = unit % 2, parity = tile % 2, half = parity ^ side;
    const int next_half = side == 0 ? half ^ 1 : half;
    const bool more = unit + 1 < 2 * w.n_tiles();
    async_copy_wait<0>();
    __syncwarp();
    const float2 scale = s_.scale[key()];
    __syncwarp();  // all lanes have it
    if (side == 0) ask_slot(w, tile + 3);
    s_.key_empty[parity][half].wait_without_clock((w.turn(tile, parity) & 1) ^ 1);
    if (side == 1) {
      copy_rope(s_.key[parity][kRopeChunk]);
      s_.key_full[parity][1].arrive_after_async_copies();
      slot_ = ahead_;
      find_row();
    }
    uint8_t(*latent)[kChunkBytes] = &s_.key[parity][half * kChunks];
    const uint32_t at = swizzle_128(key(), thread() % 4 * 32);
#pragma unroll
    for (int c = 0; c < kCopiedChunks; ++c) put(latent[c], at, s_.codes[c][thread()], code_factor(scale.x));
    if (more) ask_copies(next_half);
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) put(latent[kCopiedChunks + c], at, held_[c], code_factor(scale.y));
    if (more) ask_held(next_half);
    if (fmaxf(scale.x, scale.y) > kMaxFactorScale) multiply_rest(latent, scale, at, at ^ 16);
    s_.key_full[parity][side].arrive();  // without a fence, see start_scores()
  }

  PartBlock& s_;
  const SparseMla& a_;
  int first_entry_ = 0;  // of the page table
  int pick_;             // of the tile after that of next_
  int next_;             // of the tile whose row is found next
  int entry_;            // of the page table, for it
  int slot_;             // of the row that is asked for next
  int ahead_;            // of the one after it
  uint4 held_[kHeldChunks];
};
static_assert(kCopiedChunks == 2, "the chunks of a scale");

template <bool kTables>
__device__ __forceinline__ void load_role(PartBlock& s, const SparseMla& a, int n_parts) {
  PartLoader<kTables> loader(s, a);
  for (PartWork w(a, n_parts); !w.is_at_end(); w.advance())
    if (w.n_tiles() > 0) loader.load_part(w);
  __syncwarp();
  cluster_sync();
}

__device__ __forceinline__ void init_barriers(PartBlock& s) {
  init_tile_barriers(s, kPartLoadThreads, 2 * kPartLoadThreads, kPartLoadThreads);  // rope arrives by itself
  s.sums_shared.init();
  for (Mbarrier& full : s.part_full) full.init(1);
  fence_barrier_init();
}

template <bool kTables>
__global__ void __launch_bounds__(kPartThreads, 1)
    part_blocks_kernel(const __grid_constant__ SparseMla a, int n_parts, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  PartBlock& s = *reinterpret_cast<PartBlock*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  launch_dependents();
  grid_dependency_wait();
  cluster_sync();
  if (warp_index() < 4) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<0>(s, a, n_parts, scale_log2);
  } else if (warp_index() < 8) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<1>(s, a, n_parts, scale_log2);
  } else {
    setmaxnreg_dec<kPartLoadRegs>();
    load_role<kTables>(s, a, n_parts);
  }
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_sparse_mla_part_blocks(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int n_parts = mla_parts(a.n_topk);
  const int64_t n_blocks = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup) * n_parts;
  const Launch l{.grid = {static_cast<unsigned>(2 * std::min((n_blocks + 1) / 2, most_mla_pairs()))},
                 .block = {mla::kPartThreads},
                 .shared_bytes = sizeof(mla::PartBlock),
                 .cluster = 2,
                 .pdl = true,
                 .stream = stream};
  const float scale_log2 = a.scale * kLog2E;
  if (a.tables.data != nullptr)
    launch_kernel(mla::part_blocks_kernel<true>, l, a, n_parts, scale_log2);
  else
    launch_kernel(mla::part_blocks_kernel<false>, l, a, n_parts, scale_log2);
}

}  // namespace levin::cuda
