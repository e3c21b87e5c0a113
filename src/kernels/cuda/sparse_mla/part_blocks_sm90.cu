// sparse_mla over FP8 rows, sm_90a. A block attends with 64 heads of one query row to 1024 of its top-k indices; a pair of blocks
// does both parts of a row.
//
//   in, out, order, parts, edge  as in bf16_sm90.cu, and the same bits; but for an invalid index it reads the codes of
//         some row, and multiplies them by zero
//   grid  a block for every SM, which go from item to item, an item being a part of a row with a group of 64 heads
//   cluster  a pair, which has both parts of a row at the same time      block  2 head + 2 load warpgroups
//   smem  struct PartBlock below: two key tiles of 64 indices over the whole depth, the queries of 64 heads, and half of the
//         cache row pieces that come next
//   flow  Load warpgroups: queries, and indices -> rows -> bf16 tiles, in halves of the depth, from L2, where a row comes a tile
//         before. Of a half, half of the pieces have been copied to shared memory; the others come to registers while those are
//         converted. Head warpgroup g: as in converted_sm90.cu, the scores and weights of tiles g, g+2, ... and value columns
//         256g .. 256g+255 of all tiles. In the end each block sends the other half of its columns by way of scratch memory, and
//         merges and writes the rest.
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
constexpr int kMergeBarrier = 3;            // the first of four; named, of the two head warps with the same heads
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
  int32_t ahead[kTileKeys];                      // of a tile to come: indices, then the page table's entries
  int32_t n_next_tiles[2];                       // of the row of the item after, in turns
  Mbarrier key_full[2][2];                       // a tile's own half; its other half and rope
  Mbarrier key_empty[2][2];                      // the value columns of a warpgroup
  Mbarrier weight_full[2];
  Mbarrier query_full;
  Mbarrier query_empty;
  GroupBarriers<kMergeBarrier, 4, 64> sums_shared;  // of 16 heads: an item's row_sum, and what is sent, are written
  Mbarrier part_full[2][4];  // of 16 heads: what the other block sends of every other row is in scratch memory
};
static_assert(sizeof(PartBlock) <= kMaxSharedBytes, "too much shared memory");

// The items of a block, each warp walking by itself.
class PartWork {
 public:
  __device__ __forceinline__ PartWork(const SparseMla& a, int n_parts)
      : a_(a), n_parts_(n_parts), item_(static_cast<int>(blockIdx.x) / n_parts) {
    enter(count(ask(item_)));
  }
  __device__ __forceinline__ bool is_at_end() const { return item_ >= static_cast<int>(a_.n_rows) * n_groups(); }
  // To the next item, whose row has so many tiles.
  __device__ __forceinline__ void advance(int n_row_tiles) {
    item_ = next();
    const uint32_t n_even = (n_tiles_ + 1) / 2, n_odd = n_tiles_ / 2, has_tiles = n_tiles_ > 0 ? 1 : 0;
    parities_ ^= (n_even & 1) | (n_odd & 1) << 1 | has_tiles << 2;
    n_merged_ += has_both_parts() ? 1 : 0;
    enter(n_row_tiles);
  }

  // Of the next item's row. It is asked for early, since it takes a while to come, and count() uses it.
  struct RowAhead {
    int32_t table_row;
    int32_t topk;  // the first index of this lane's tile
  };
  __device__ __forceinline__ RowAhead ask_next() const { return ask(next()); }
  // Tiles that hold top-k indices: lane i looks at tile i. All lanes call.
  __device__ __forceinline__ static int count(const RowAhead& row) {
    return 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, min(row.table_row, row.topk) >= 0)));
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
  __device__ __forceinline__ int next() const { return item_ + static_cast<int>(gridDim.x) / n_parts_; }
  // Both at once: is_padding() would wait for one before it asks for the other.
  __device__ __forceinline__ RowAhead ask(int item) const {
    const int lane = threadIdx.x % 32;
    const int64_t row = item / n_groups();
    if (row >= a_.n_rows) return {-1, -1};
    return {a_.tables.data == nullptr ? 0 : a_.table_row[row],
            lane < a_.n_topk / kTileKeys ? a_.topk[row * a_.n_topk + lane * kTileKeys] : -1};
  }
  __device__ __forceinline__ void enter(int n_row_tiles) {
    n_row_tiles_ = n_row_tiles;
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
// is relative to. A block receives them in two places in turns: before the other writes one again, it has received what this one
// sent after reading it.
constexpr int kHalfFours = kFours / kMaxParts;
struct HalfPart {
  float4 four[kHalfFours][kHeadThreads];
  float4 sums[kHeadThreads];
};
static_assert(2 * sizeof(HalfPart) <= kMlaTotalBytes);
__device__ __forceinline__ HalfPart& half_part(const SparseMla& a, int block, int turn) {
  return reinterpret_cast<HalfPart*>(a.scratch + kMlaCounterBytes + int64_t{block} * kMlaTotalBytes)[turn % 2];
}

// A thread's columns that this block merges.
struct OwnColumns {
  float4 four[kHalfFours];
  int32_t maximum[2];
};
__device__ __forceinline__ float4 four_sums(const HeadState& m, bool second_half, int j) {
  const float *x = m.acc + 4 * j, *y = x + 4 * kHalfFours;
  return {second_half ? y[0] : x[0], second_half ? y[1] : x[1], second_half ? y[2] : x[2], second_half ? y[3] : x[3]};
}
// Chosen once, so that the registers of the other columns are free for what the other block sends.
__device__ __forceinline__ void keep_own(OwnColumns& own, const HeadState& m, bool second_half) {
#pragma unroll
  for (int j = 0; j < kHalfFours; ++j) {
    own.four[j] = four_sums(m, second_half, j);
    asm volatile("" : "+f"(own.four[j].x), "+f"(own.four[j].y), "+f"(own.four[j].z), "+f"(own.four[j].w));
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) own.maximum[h] = m.acc_max[h];
}

// The sums of the weights of own tiles over the row's four lanes, for both groups.
__device__ __forceinline__ void share_sums(PartBlock& s, const HeadState& m, float (&sum)[2], int item_parity) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = m.sums.sum[h] * power_of_two(m.sums.sum_max[h] - m.acc_max[h]);
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 2);
    if (read_thread_index() % 4 == 0) s.row_sum[item_parity][head_group()][own_row() + 8 * h] = sum[h];
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
  s.sums_shared.arrive_and_wait(sixteen(), w.item_parity());
  if (thread < 128 && thread % 32 == 0)  // for both warps
    cluster_arrive_release(s.part_full[w.n_merged() % 2][sixteen()], cluster_rank() ^ 1);
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
template <bool kF32>
__device__ __forceinline__ void merge_halves(PartBlock& s, const OwnColumns& own, const SparseMla& a,
                                             const PartWork& w) {
  s.part_full[w.n_merged() % 2][sixteen()].wait_of_cluster(w.n_merged() / 2 & 1);
  const int thread = read_thread_index(), row = own_row();
  const bool later = w.part() == 1;
  const HalfPart& from = half_part(a, read_block_index(), w.n_merged());
  const float4 even = __ldcg(&from.sums[thread % 128]), odd = __ldcg(&from.sums[128 + thread % 128]);
  float4 theirs[kHalfFours];
#pragma unroll
  for (int j = 0; j < kHalfFours; ++j) theirs[j] = __ldcg(&from.four[j][thread]);
  RowMerge merge;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum[2] = {s.row_sum[w.item_parity()][0][row + 8 * h], s.row_sum[w.item_parity()][1][row + 8 * h]};
    const float other[2] = {h == 0 ? even.x : even.y, h == 0 ? odd.x : odd.y};
    const int32_t own_max = own.maximum[h], other_max = __float_as_int(h == 0 ? even.z : even.w);
    merge.add(0, h, later ? other_max : own_max, later ? other[0] : sum[0], later ? other[1] : sum[1]);
    merge.add(1, h, later ? own_max : other_max, later ? sum[0] : other[0], later ? sum[1] : other[1]);
  }
  const float inverse[2] = {merge.inverse(0), merge.inverse(1)};
  const int first_column = head_group() * kHalfLatent + w.part() * (kHalfLatent / kMaxParts);
#pragma unroll
  for (int first = 0; first < kHalfFours; first += 4) {
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 x = own.four[first + j], y = theirs[first + j];
      const float part[kMaxParts][4] = {{later ? y.x : x.x, later ? y.y : x.y, later ? y.z : x.z, later ? y.w : x.w},
                                        {later ? x.x : y.x, later ? x.y : y.y, later ? x.z : y.z, later ? x.w : y.w}};
      value[j] = merge_four(part[1], 0, merge.factor[1], merge_four(part[0], 0, merge.factor[0], {0, 0, 0, 0}));
    }
    store_columns<kF32>(a, w, first_column + 8 * first, value, inverse);
  }
}

// Writes a row that has one part only.
template <bool kF32>
__device__ __forceinline__ void write_row(PartBlock& s, const HeadState& m, const SparseMla& a, const PartWork& w) {
  s.sums_shared.arrive_and_wait(sixteen(), w.item_parity());
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
    store_columns<kF32>(a, w, head_group() * kHalfLatent + 8 * first, value, inverse);
  }
}

// A row without top-k indices.
template <bool kF32>
__device__ __forceinline__ void write_zeros(const SparseMla& a, const PartWork& w) {
  const float4 zeros[4] = {};
#pragma unroll 1
  for (int column = 0; column < kHalfLatent; column += 32)
    store_columns<kF32>(a, w, head_group() * kHalfLatent + column, zeros, {0, 0});
}

// All tiles of a part.
template <int kGroup>
__device__ __forceinline__ void attend_tiles(PartBlock& s, HeadState& m, const PartWork& w, float scale_log2) {
  start_row(m);
  s.query_full.wait_without_clock(w.item_parity());
  if (w.n_tiles() <= kGroup) s.query_empty.arrive_as_warp();
  for (int tile = kGroup; tile < w.n_tiles(); tile += 2) attend_tile<kGroup>(s, m, w, tile, scale_log2, [] {});
  if ((w.n_tiles() - 1) % 2 != kGroup) {
    add_other_tile<kGroup>(s, m, w.turn<1 - kGroup>(w.n_tiles() - 1));
    wait_for_values<0>(m);
    release_tile<kGroup>(s, 1 - kGroup);
  }
}

// And what follows for the row. Both groups run the same code, which is fetched once for both.
template <bool kF32>
__device__ __forceinline__ void finish_part(PartBlock& s, const HeadState& m, const SparseMla& a, const PartWork& w,
                                            const float (&sum)[2]) {
  if (!w.has_both_parts()) return write_row<kF32>(s, m, a, w);
  send_half(s, m, a, w, sum);
  OwnColumns own;
  keep_own(own, m, w.part() == 1);
  merge_halves<kF32>(s, own, a, w);
}

__device__ __forceinline__ void head_role(PartBlock& s, const SparseMla& a, int n_parts, float scale_log2) {
  const bool is_odd = warp_index() >= 4;
  for (PartWork w(a, n_parts); !w.is_at_end();) {
    if (w.n_tiles() > 0) {
      HeadState m;
      if (is_odd)
        attend_tiles<1>(s, m, w, scale_log2);
      else
        attend_tiles<0>(s, m, w, scale_log2);
      float sum[2];
      share_sums(s, m, sum, w.item_parity());
      if (a.out_f32)
        finish_part<true>(s, m, a, w, sum);
      else
        finish_part<false>(s, m, a, w, sum);
      __syncwarp();  // products need all lanes together
      w.advance(s.n_next_tiles[w.item_parity()]);
      continue;
    }
    if (w.part() == 0 && a.out_f32) write_zeros<true>(a, w);
    if (w.part() == 0 && !a.out_f32) write_zeros<false>(a, w);
    w.advance(w.count(w.ask_next()));
  }
  cluster_sync();  // nobody leaves while the other may signal here
}

// Cache rows to tiles, half the depth of a tile at a time, a unit: first the half that the tile's own warpgroup adds, whose place
// is free first. Four lanes share a key, each with 16 bytes of every 64. Two of four such pieces are copied to shared memory a unit
// ahead. The other two are loaded once there is a place for them, and come while the first two are converted: ptxas waits at the
// next branch for loads into registers that are still on their way, so none is from one unit to the next.
template <bool kTables>
class PartLoader {
 public:
  __device__ __forceinline__ PartLoader(PartBlock& s, const SparseMla& a) : s_(s), a_(a) {}

  // Returns how many tiles the row of the item after has.
  __device__ __forceinline__ int load_part(const PartWork& w) {
    const PartWork::RowAhead row_ahead = w.ask_next();
    if (kTables) first_entry_ = static_cast<int>(a_.table_row[w.row()] * a_.tables.stride);
    const int first = topk(w, 0), second = topk(w, 1);
    ask_topk(w, 2);
    slot_ = slot(first, kTables ? entry(first) : 0);
    ahead_ = slot(second, kTables ? entry(second) : 0);
    ask_copies(0);
    bring(slot_);
    queries().ask(w, w.item_parity());
    bring(ahead_);
    const int n_next_tiles = w.count(row_ahead);
    if (thread() == 0) s_.n_next_tiles[w.item_parity()] = n_next_tiles;
    for (int tile = 0; tile < w.n_tiles(); ++tile) {
      put_unit<0>(w, tile);
      if (tile == 0) queries().put_in_order();
      put_unit<1>(w, tile);
    }
    return n_next_tiles;
  }

 private:
  using Format = RowFormat<LatentRows::kFp8>;
  static constexpr int kHeldChunks = kChunks - kCopiedChunks;
  static constexpr int kLastLine = Format::kRowBytes - 1 - (512 + 128);  // so that lane 1 has a row's last byte

  // Formed anew where it is used: registers are short.
  __device__ __forceinline__ static uint32_t thread() { return read_thread_index() - kHeadThreads; }
  __device__ __forceinline__ static uint32_t key() { return thread() / 4; }
  __device__ __forceinline__ static uint32_t quarter() { return thread() % 4; }
  __device__ __forceinline__ QueryLoader<kPartLoadThreads, PartBlock> queries() {
    return {s_, a_, static_cast<int>(thread())};
  }

  __device__ __forceinline__ int topk(const PartWork& w, int tile) const {
    return tile < w.n_tiles() ? w.topk()[tile * kTileKeys + key()] : -1;
  }
  __device__ __forceinline__ const int32_t* entry_of(int pick) const {
    return a_.tables.data + first_entry_ + static_cast<uint32_t>(max(pick, 0)) / kIndexPageTokens;
  }
  __device__ __forceinline__ int entry(int pick) const { return *entry_of(pick); }
  __device__ __forceinline__ static int slot(int pick, int entry) {
    return kTables && pick >= 0 ? entry * kIndexPageTokens + pick % kIndexPageTokens : pick;
  }
  // Asks for the index of this key in a tile, and with tables for the page table's entry of the one that has come, in its place.
  __device__ __forceinline__ void ask_topk(const PartWork& w, int tile) {
    if (quarter() == 0 && tile < w.n_tiles()) async_copy_4(&s_.ahead[key()], w.topk() + tile * kTileKeys + key(), true);
  }
  __device__ __forceinline__ void ask_entry() {
    if (kTables && quarter() == 0) async_copy_4(&s_.ahead[key()], entry_of(next_), next_ >= 0);
  }
  __device__ __forceinline__ static int index_ahead(const PartWork& w, int tile, int came) {
    return tile + 2 < w.n_tiles() ? came : -1;
  }
  // `offset` bytes into a row. Without an index it is some row: its codes are multiplied by scales that come as zeros.
  __device__ __forceinline__ const std::byte* row_at(int slot, uint32_t offset) const {
    const uint32_t valid = max(slot, 0);
    return a_.cache + uint64_t{valid / kIndexPageTokens} * static_cast<uint32_t>(a_.page_bytes) +
           (valid % kIndexPageTokens * Format::kRowBytes + offset);
  }
  // A row comes to L2 now: when it is asked for itself, there is no time left to wait for memory. Its four lanes bring its lines,
  // at most six.
  __device__ __forceinline__ void bring(int slot) const {
    if (slot < 0) return;
    const std::byte* line = row_at(slot, quarter() * 128);
    prefetch_l2(line);
    if (quarter() < 2) prefetch_l2(line + 512 + quarter() * kLastLine);
  }

  // Asks for the pieces of half a row that come by way of shared memory, and for its scales, which are zero without an index.
  __device__ __forceinline__ void ask_copies(int half) {
    const std::byte* from = row_at(slot_, half * kHalfLatent + quarter() * 16);
#pragma unroll
    for (int c = 0; c < kCopiedChunks; ++c) async_copy_16(&s_.codes[c][thread()], from + c * 64, true);
    if (quarter() == 0) async_copy_8(&s_.scale[key()], row_at(slot_, Format::kScaleOffset + half * 8), slot_ >= 0);
    async_copy_commit();
  }
  // And for the others.
  __device__ __forceinline__ void ask_held(uint4 (&held)[kHeldChunks], int half) const {
    const std::byte* from = row_at(slot_, half * kHalfLatent + kCopiedChunks * 64 + quarter() * 16);
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) held[c] = load_16(from + c * 64, true);
  }
  __device__ __forceinline__ void copy_rope(uint8_t* to) {
    const uint32_t at = swizzle_128(key(), quarter() * 16);
    const std::byte* from = row_at(slot_, Format::kRopeOffset + quarter() * 16);
    async_copy_16(to + at, from, slot_ >= 0);
    async_copy_16(to + (at ^ 64), from + 64, slot_ >= 0);
  }

  __device__ __forceinline__ static void put(uint8_t* chunk, uint32_t at, const uint4& codes, uint32_t factor) {
    *reinterpret_cast<uint4*>(chunk + at) = convert_8(codes.x, codes.y, factor);
    *reinterpret_cast<uint4*>(chunk + (at ^ 16)) = convert_8(codes.z, codes.w, factor);
  }

  template <int kSide>
  __device__ __forceinline__ void put_unit(const PartWork& w, int tile) {
    const int parity = tile % 2, half = parity ^ kSide;
    const int next_half = kSide == 0 ? half ^ 1 : half;
    const bool more = kSide == 0 || tile + 1 < w.n_tiles();
    async_copy_wait<0>();
    __syncwarp();
    const float2 scale = s_.scale[key()];
    const int came = s_.ahead[key()];
    __syncwarp();  // all lanes have them
    if (kSide == 0 && kTables) {
      next_ = index_ahead(w, tile, came);
      ask_entry();
    }
    s_.key_empty[parity][half].wait_without_clock((w.turn(tile, parity) & 1) ^ 1);
    uint4 held[kHeldChunks];
    ask_held(held, half);
    if (kSide == 1) {
      copy_rope(s_.key[parity][kRopeChunk]);
      s_.key_full[parity][1].arrive_after_async_copies();
      slot_ = ahead_;
      ahead_ = slot(kTables ? next_ : index_ahead(w, tile, came), came);
      bring(ahead_);
      ask_topk(w, tile + 3);
    }
    __syncwarp();  // the loads stay here: the compiler would save registers by asking for them when they are needed
    uint8_t(*latent)[kChunkBytes] = &s_.key[parity][half * kChunks];
    const uint32_t at = swizzle_128(key(), quarter() * 32);
#pragma unroll
    for (int c = 0; c < kCopiedChunks; ++c) put(latent[c], at, s_.codes[c][thread()], code_factor(scale.x));
    if (more) ask_copies(next_half);
#pragma unroll
    for (int c = 0; c < kHeldChunks; ++c) put(latent[kCopiedChunks + c], at, held[c], code_factor(scale.y));
    if (fmaxf(scale.x, scale.y) > kMaxFactorScale) multiply_rest(latent, scale, at, at ^ 16);
    s_.key_full[parity][kSide].arrive();  // without a fence, see start_scores()
  }

  PartBlock& s_;
  const SparseMla& a_;
  int first_entry_ = 0;  // of the page table
  int next_;             // with tables: index of the tile whose entry is on its way
  int slot_;             // of the row that is asked for next
  int ahead_;            // of the one after it
};
static_assert(kCopiedChunks == 2, "the chunks of a scale");

template <bool kTables>
__device__ __forceinline__ void load_role(PartBlock& s, const SparseMla& a, int n_parts) {
  PartLoader<kTables> loader(s, a);
  for (PartWork w(a, n_parts); !w.is_at_end();)
    w.advance(w.n_tiles() > 0 ? loader.load_part(w) : w.count(w.ask_next()));
  __syncwarp();
  cluster_sync();
}

__device__ __forceinline__ void init_barriers(PartBlock& s) {
  init_tile_barriers(s, kPartLoadThreads, 2 * kPartLoadThreads, kPartLoadThreads);  // rope arrives by itself
  s.sums_shared.init();
  for (auto& turn : s.part_full)
    for (Mbarrier& full : turn) full.init(1);
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
  if (warp_index() < kHeadThreads / 32) {
    setmaxnreg_inc<kHeadRegs>();
    head_role(s, a, n_parts, scale_log2);
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
