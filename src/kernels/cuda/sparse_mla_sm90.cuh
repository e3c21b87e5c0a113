// sparse_mla, sm_90a. A pair of blocks attends with 64 heads of one query row over its picked cache rows.
//
//   in    q [rows, H, 512 + 64] bf16, picks [rows, K], cache rows        out  [rows, H, 512] bf16 or f32
//   grid  whole rows, pairs: two blocks for every two multiprocessors, which go from item to item, an item being a row and
//         a head group, or a part of them; clusters: rows x head groups x parts x 2
//   cluster  a pair, or the pairs of all parts of one item: 2 x parts      block  2 score, 2 value, 1 load warpgroup
//   smem  struct Shared below: kStages half key tiles of 64 picks, the block's half of the queries, two weight tiles,
//         what the other block sends, cache rows on their way
//   flow  Block h of a pair holds half the depth, latent 256h .. 256h+255 and rope 32h .. 32h+31, which is also its half
//         of the value columns: no cache byte is converted twice in a pair. Load warpgroup: picks -> rows -> bf16 tiles.
//         Score warpgroup g, for tiles i = g, g+2, ...: scores over its half of the depth; the halves are exchanged and
//         added, in both blocks alike; running maximum, weights to shared memory. The half scores of tile i+2 are on
//         their way while those of i wait. Value warpgroup v: value columns 128v .. 128v+127 of the block's half, tile
//         after tile. Each role enters the next item as soon as it is done with its own part of this one.
//   parts A row's sums start afresh every 512 picks. One pair does all parts and merges them through scratch memory that
//         stays in L2; or each part has its own pair, and the cluster merges through shared memory, or the last of the
//         pairs through scratch memory. The same additions in the same order.
//   order The four columns of a word of FP8 codes stand in the tile as 1, 3, 0, 2, which saves a permutation of bytes a
//         word: so do the queries' columns, and the output's are put back.
//   edge  an invalid pick reads nothing, its tile row is zero and its score -inf; tiles without any pick are skipped;
//         heads beyond H are zero queries and not stored
//   cost  a tile and block: 18 wgmma m64n64k16 + 8 m64n128k16 = 1088 tensor cycles; 16 KB sent to the other block; 64 x
//         288 values converted at 9 instructions for four
//   why   sharing depth instead of heads or keys: every block converts only what it also multiplies, and accumulators are
//         64 registers a thread. Roles apart: the chain of a tile through exchange and softmax is long, and two tiles are
//         in it while values are added.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/sparse_mla_launch.h"
#include "kernels/cuda/tiles/fp8_to_bf16.cuh"
#include "kernels/cuda/tiles/log2_softmax.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda::mla {

constexpr int kTileKeys = 64;
constexpr int kPartTiles = kMlaPartPicks / kTileKeys;  // 8
constexpr int kMaxParts = 4;
constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kHalfLatent = kLatent / 2;
constexpr int kHalfRope = kRope / 2;
constexpr int kChunks = kHalfLatent / 64;  // 64 columns are one swizzled 128-byte row
constexpr int kChunkBytes = kTileKeys * 128;
constexpr int kRopeTileBytes = kTileKeys * kHalfRope * 2;
constexpr int kStages = 3;
constexpr int kRawStages = 3;
constexpr int kPickStages = 8;
constexpr int kEntryStages = 4;
constexpr int kScoreThreads = 256;
constexpr int kValueThreads = 256;
constexpr int kLoadThreads = 128;
constexpr int kThreads = kScoreThreads + kValueThreads + kLoadThreads;
constexpr int kLaunchRegs = 96;  // of each thread when the kernel starts; the warpgroups then exchange some
constexpr int kExchangeBytes = kMlaHeadGroup * kTileKeys * 4;
constexpr int kScoreBarrier = 1;  // named barriers
constexpr int kValueBarrier = 2;

struct KeyTile {
  alignas(1024) uint8_t latent[kChunks][kChunkBytes];
  uint8_t rope[kRopeTileBytes];  // rows of 64 bytes, 64-byte swizzle
};

// Half a tile of FP8 rows as they lie in the cache, a quarter of a key's half row for each thread of the load warpgroup.
struct RawKeys {
  uint4 pieces[kChunks + 1][kLoadThreads];  // codes of each chunk, then rope
  float2 scale[kLoadThreads];
};

// What a part leaves for the merge, one slot per value thread; lies over the key tiles, which are done by then.
struct PartResult {
  float4 acc[16][kValueThreads];
  int32_t max_bits[2][kValueThreads];
};

struct Shared {
  union {
    KeyTile key[kStages];
    PartResult part;
  };
  alignas(1024) uint8_t query[kChunks][kChunkBytes];
  alignas(1024) uint8_t weight[2][kChunkBytes];  // [64 heads, 64 picks] bf16, of the even and the odd tile
  alignas(16) float4 exchange[2][8][128];        // the other block's half of the scores, one slot per thread
  RawKeys raw[kRawStages];
  int32_t pick[kPickStages][kTileKeys / 2];    // of FP8 rows that will be asked for, by half tile
  int32_t entry[kEntryStages][kTileKeys / 2];  // of the page table, for those picks
  float bias[kStages][kTileKeys];              // 0, or -inf for an invalid pick
  int32_t running_max[4][kMlaHeadGroup];       // after tile i at i % 4
  float row_sum[2][kMlaHeadGroup];             // of the even and the odd tiles
  bool came_last;                              // this block merges a row's parts
  RingBarriers<kStages> key_ring;
  Mbarrier weight_full[2];
  Mbarrier weight_empty[2];
  Mbarrier max_full[2];
  Mbarrier sum_full;
  Mbarrier sum_empty;
  Mbarrier exchange_full[2];
  Mbarrier exchange_empty[2];
};
static_assert(sizeof(Shared) <= kMaxSharedBytes, "too much shared memory");

// What this block does at a time, an item: the tiles of a row with one group of heads, or those of a part. Items of a
// cluster follow each other, in turns over the clusters. Every warp walks by itself, with few registers: what
// follows from the block's index is formed anew where it is used.
template <MlaSharing kSharing>
class Work {
 public:
  __device__ __forceinline__ Work(const SparseMla& a, int n_parts) : a_(a), n_parts_(whole_row() ? 1 : n_parts) {
    item_ = static_cast<int>(blockIdx.x) / cluster_blocks();
    enter();
  }

  // False after the last item.
  __device__ __forceinline__ bool advance() {
    item_ += static_cast<int>(gridDim.x) / cluster_blocks();
    if (item_ >= static_cast<int>(a_.n_rows) * n_groups() * item_parts()) return false;
    base_ += n_tiles_;
    ++n_done_;
    enter();
    return true;
  }

  __device__ __forceinline__ int item() const { return item_; }
  __device__ __forceinline__ int64_t row() const { return item_ / item_parts() / n_groups(); }
  __device__ __forceinline__ int first_head() const { return item_ / item_parts() % n_groups() * kMlaHeadGroup; }
  // Of the depth and of the value columns.
  __device__ __forceinline__ int half() const { return static_cast<int>(blockIdx.x) % 2; }
  __device__ __forceinline__ int part() const {
    return (kSharing == MlaSharing::kPairs ? item_ : static_cast<int>(blockIdx.x) / 2) % n_parts_;
  }
  __device__ __forceinline__ int n_parts() const { return n_parts_; }
  __device__ __forceinline__ int first_tile() const { return part() * kPartTiles; }
  __device__ __forceinline__ int n_tiles() const { return n_tiles_; }
  __device__ __forceinline__ int n_row_tiles() const { return whole_row() ? n_tiles_ : n_row_tiles_; }
  __device__ __forceinline__ int n_used_parts() const { return (n_row_tiles() + kPartTiles - 1) / kPartTiles; }
  __device__ __forceinline__ int base() const { return base_; }      // tiles of earlier items: rings count on
  __device__ __forceinline__ int n_done() const { return n_done_; }  // earlier items

 private:
  __device__ __forceinline__ static constexpr bool whole_row() { return kSharing == MlaSharing::kWholeRows; }
  __device__ __forceinline__ int n_groups() const { return a_.n_heads > kMlaHeadGroup ? 2 : 1; }
  __device__ __forceinline__ int cluster_blocks() const { return kSharing == MlaSharing::kClusters ? 2 * n_parts_ : 2; }
  __device__ __forceinline__ int item_parts() const { return kSharing == MlaSharing::kPairs ? n_parts_ : 1; }

  // Counts the tiles that hold picks: lane i looks at tile i.
  __device__ __forceinline__ void enter() {
    const int lane = threadIdx.x % 32;
    const bool has_picks = lane < a_.n_picks / kTileKeys && a_.picks[row() * a_.n_picks + lane * kTileKeys] >= 0;
    n_row_tiles_ = 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, has_picks)));
    n_tiles_ = whole_row() ? n_row_tiles_ : max(0, min(n_row_tiles_ - first_tile(), kPartTiles));
  }

  const SparseMla& a_;
  int n_parts_;
  int item_;
  int n_row_tiles_;
  int n_tiles_;
  int base_ = 0;
  int n_done_ = 0;
};
static_assert(128 / kMlaHeadGroup == 2, "one or two groups of heads");

// Byte offset of 16-byte piece `piece` of `row` in a tile of 64-byte rows with the 64-byte swizzle.
__device__ __forceinline__ uint32_t swizzle_64(uint32_t row, uint32_t piece) {
  return row * 64 + ((piece ^ (row >> 1 & 3)) << 4);
}

// Descriptor of a K-major operand in that layout; groups of 8 rows are 512 bytes apart.
__device__ __forceinline__ uint64_t rope_descriptor(const void* tile) {
  return (static_cast<uint64_t>(shared_address(tile) & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{512 >> 4} << 32 |
         uint64_t{2} << 62;
}

// ---- Load warpgroup. Four lanes share a key; a thread has two keys of a tile, 32 apart.

template <LatentRows kFormat>
struct RowFormat;
template <>
struct RowFormat<LatentRows::kFp8> {
  static constexpr int kRowBytes = kLatent + 16 + kRope * 2;  // 656
  static constexpr int kScaleOffset = kLatent;
  static constexpr int kRopeOffset = kLatent + 16;
  static constexpr int kScoreRegs = 104, kValueRegs = 96, kLoadRegs = 80;
};
template <>
struct RowFormat<LatentRows::kBF16> {
  static constexpr int kRowBytes = (kLatent + kRope) * 2;  // 1152
  static constexpr int kRopeOffset = kLatent * 2;
  static constexpr int kScoreRegs = 88, kValueRegs = 96, kLoadRegs = 112;
};

// Slot of a pick, -1 for none.
__device__ __forceinline__ int pick_slot(int pick, const int32_t* table) {
  if (pick < 0 || table == nullptr) return pick;
  return table[pick / kIndexPageTokens] * kIndexPageTokens + pick % kIndexPageTokens;
}

__device__ __forceinline__ const std::byte* slot_row(const SparseMla& a, int slot, int row_bytes) {
  return a.cache + (slot / kIndexPageTokens) * a.page_bytes + slot % kIndexPageTokens * row_bytes;
}

__device__ __forceinline__ uint4 load_16(const std::byte* from, bool valid) {
  uint4 v{0, 0, 0, 0};
  if (valid)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  return v;
}

// FP8 rows: raw bytes to bf16 tile rows.

__device__ __forceinline__ uint4 convert_8(uint32_t first, uint32_t second, uint32_t factor) {
  const uint2 a = e4m3x4_to_bf16_1302(first, factor), b = e4m3x4_to_bf16_1302(second, factor);
  return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ uint4 multiply_8(const uint4& v, uint32_t pair) {
  return {multiply_bf16x2(v.x, pair), multiply_bf16x2(v.y, pair), multiply_bf16x2(v.z, pair),
          multiply_bf16x2(v.w, pair)};
}

// What one factor cannot say of scales beyond kMaxFactorScale, which no sane row has.
__device__ __forceinline__ void multiply_rest(KeyTile& tile, float2 scale, uint32_t low, uint32_t high) {
#pragma unroll 1
  for (int c = 0; c < kChunks; ++c) {
    const uint32_t rest = power_pair(fmaxf(c < 2 ? scale.x : scale.y, kMaxFactorScale) / kMaxFactorScale);
    uint4& first = *reinterpret_cast<uint4*>(tile.latent[c] + low);
    uint4& second = *reinterpret_cast<uint4*>(tile.latent[c] + high);
    first = multiply_8(first, rest);
    second = multiply_8(second, rest);
  }
}

// A thread's bytes of one row, on their way from the ring to the tile.
struct RawRow {
  uint4 codes[kChunks];
  uint4 rope;
  float2 scale;

  __device__ __forceinline__ void read(const RawKeys& raw, int thread) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) codes[c] = raw.pieces[c][thread];
    rope = raw.pieces[kChunks][thread];
    scale = raw.scale[thread];
  }
  __device__ __forceinline__ void convert(KeyTile& tile, int key, int quarter) const {
    const uint32_t factor[2] = {code_factor(scale.x), code_factor(scale.y)};
    const uint32_t low = swizzle_128(key, quarter * 32), high = swizzle_128(key, quarter * 32 + 16);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      *reinterpret_cast<uint4*>(tile.latent[c] + low) = convert_8(codes[c].x, codes[c].y, factor[c / 2]);
      *reinterpret_cast<uint4*>(tile.latent[c] + high) = convert_8(codes[c].z, codes[c].w, factor[c / 2]);
    }
    *reinterpret_cast<uint4*>(tile.rope + swizzle_64(key, quarter)) = rope;
    if (fmaxf(scale.x, scale.y) > kMaxFactorScale) multiply_rest(tile, scale, low, high);
  }
};

// Asks for this thread's bytes of a row; without a slot they become zero.
__device__ __forceinline__ void fetch_row(RawKeys& raw, const SparseMla& a, int slot, int half, int thread) {
  using Format = RowFormat<LatentRows::kFp8>;
  const bool valid = slot >= 0;
  const std::byte* row = slot_row(a, max(slot, 0), Format::kRowBytes);
  const std::byte* codes = row + half * kHalfLatent + thread % 4 * 16;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) async_copy_16(&raw.pieces[c][thread], codes + c * 64, valid);
  async_copy_16(&raw.pieces[kChunks][thread], row + Format::kRopeOffset + half * kHalfRope * 2 + thread % 4 * 16,
                valid);
  async_copy_8(&raw.scale[thread], row + Format::kScaleOffset + half * 8, valid);
  async_copy_commit();
}

// Rows arrive in a ring of half tiles, and only the thread that asked for bytes reads them. A half tile is read into
// registers while the one before is converted, and its place in the ring asked for anew. With the row of half tile h + 3
// go the page table's entry of h + 6 and the pick of h + 9, by the first of the four lanes of a key: they have arrived
// when row h + 3, h + 6 has, so that nothing is waited for twice.
template <bool kTables, class W>
class Fp8Loader {
 public:
  __device__ __forceinline__ Fp8Loader(Shared& s, const SparseMla& a, const W& w, RingPosition<kStages>& at)
      : s_(s),
        at_(at),
        a_(a),
        w_(w),
        thread_(static_cast<int>(threadIdx.x) - kScoreThreads - kValueThreads),
        picks_(a.picks + w.row() * a.n_picks + w.first_tile() * kTileKeys + thread_ / 4),
        table_(kTables ? a.tables.data + a.table_row[w.row()] * a.tables.stride : nullptr) {}

  __device__ __forceinline__ void run() {
    if (w_.n_tiles() == 0) return;
    RawRow even, odd;
    begin();
    even.read(s_.raw[0], thread_);
    for (int half_tile = 0; half_tile < 2 * w_.n_tiles(); half_tile += 2) {
      ask(half_tile);
      odd.read(s_.raw[raw_.stage], thread_);
      s_.key_ring.empty[at_.stage].wait(at_.parity ^ 1);
      put(even, 0);
      ask(half_tile + 1);
      even.read(s_.raw[raw_.stage], thread_);
      put(odd, 1);
      s_.key_ring.full[at_.stage].arrive();  // without a fence, see start_scores()
      at_.advance();
    }
    async_copy_wait<0>();
  }

 private:
  static constexpr int kKeys = kLoadThreads / 4;  // of half a tile

  __device__ __forceinline__ int key() const { return thread_ / 4; }
  __device__ __forceinline__ bool asks(int half_tile) const { return thread_ % 4 == 0 && half_tile < 2 * w_.n_tiles(); }

  __device__ __forceinline__ void ask_pick(int half_tile) {
    if (asks(half_tile)) async_copy_4(&s_.pick[half_tile % kPickStages][key()], picks_ + half_tile * kKeys, true);
  }
  __device__ __forceinline__ void ask_entry(int half_tile) {
    if (!kTables || !asks(half_tile)) return;
    const int pick = s_.pick[half_tile % kPickStages][key()];
    async_copy_4(&s_.entry[half_tile % kEntryStages][key()], table_ + max(pick, 0) / kIndexPageTokens, pick >= 0);
  }
  // Reads what the slot follows from; slot() forms it a half tile later, when nothing waits for the reads any more.
  __device__ __forceinline__ void read_pick(int half_tile) {
    pick_ = s_.pick[half_tile % kPickStages][key()];
    if (kTables) entry_ = s_.entry[half_tile % kEntryStages][key()];
  }
  __device__ __forceinline__ int slot(int half_tile) const {
    if (half_tile >= 2 * w_.n_tiles()) return -1;
    return kTables && pick_ >= 0 ? entry_ * kIndexPageTokens + pick_ % kIndexPageTokens : pick_;
  }

  // Until all but the last kPending rows that were asked for have arrived, with what was asked for beside them.
  template <int kPending>
  __device__ __forceinline__ void wait_for_rows() {
    async_copy_wait<kPending>();
    __syncwarp();
  }

  // Asks for the first three half tiles and waits for the first.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < 2 * kRawStages; ++i) ask_pick(i);
    async_copy_commit();
    wait_for_rows<0>();
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) ask_entry(i);
    async_copy_commit();
    wait_for_rows<0>();
    int slots[kRawStages];
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) {
      read_pick(i);
      slots[i] = slot(i);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) ask_with(i, i, slots[i]);
    wait_for_rows<kRawStages - 1>();
    read_pick(kRawStages);
  }

  // Asks for a row and for what later ones need.
  __device__ __forceinline__ void ask_with(int half_tile, int stage, int slot) {
    valid_ |= static_cast<uint32_t>(slot >= 0) << min(half_tile, kRawStages);
    ask_entry(half_tile + kRawStages);
    ask_pick(half_tile + 2 * kRawStages);
    fetch_row(s_.raw[stage], a_, slot, w_.half(), thread_);
  }

  // With half tile `half_tile` in registers, asks for the one that takes its place; the next one has arrived then.
  __device__ __forceinline__ void ask(int half_tile) {
    ask_with(half_tile + kRawStages, raw_.stage, slot(half_tile + kRawStages));
    raw_.advance();
    wait_for_rows<kRawStages - 1>();
    read_pick(half_tile + kRawStages + 1);
  }

  __device__ __forceinline__ void put(const RawRow& row, int half) {
    const int row_of_tile = half * kKeys + key();
    row.convert(s_.key[at_.stage], row_of_tile, thread_ % 4);
    if (thread_ % 4 == 0) s_.bias[at_.stage][row_of_tile] = (valid_ & 1) != 0 ? 0.0f : -INFINITY;
    valid_ >>= 1;
  }

  Shared& s_;
  RingPosition<kStages>& at_;  // goes on from item to item
  const SparseMla& a_;
  const W& w_;
  int thread_;
  const int32_t* picks_;
  const int32_t* table_;
  int pick_;            // of the half tile that is asked for next
  int entry_;           // of the page table, for it
  uint32_t valid_ = 0;  // bit i: this thread's key of the half tile that is i after the one to be put next
  RingPosition<kRawStages> raw_;
};

// BF16 rows: one key's half row between global and shared memory, a quarter of it in each of four lanes.
struct KeyPieces {
  using Format = RowFormat<LatentRows::kBF16>;
  uint4 values[2 * kChunks];
  uint4 rope;

  __device__ __forceinline__ void load(const std::byte* row, int half, int quarter, bool valid) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::byte* from = row + half * kHalfLatent * 2 + c * 128 + quarter * 32;
      values[2 * c] = load_16(from, valid);
      values[2 * c + 1] = load_16(from + 16, valid);
    }
    rope = load_16(row + Format::kRopeOffset + half * kHalfRope * 2 + quarter * 16, valid);
  }
  __device__ __forceinline__ void store(KeyTile& tile, int key, int quarter) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      *reinterpret_cast<uint4*>(tile.latent[c] + swizzle_128(key, quarter * 32)) = values[2 * c];
      *reinterpret_cast<uint4*>(tile.latent[c] + swizzle_128(key, quarter * 32 + 16)) = values[2 * c + 1];
    }
    *reinterpret_cast<uint4*>(tile.rope + swizzle_64(key, quarter)) = rope;
  }
};

// The rows of the next tile are loaded as soon as the registers of this one's are free. Their slots are known by then, and
// the picks after them are asked for before, because loads come back in order.
template <class W>
__device__ __forceinline__ void load_bf16_rows(Shared& s, const SparseMla& a, const W& w, RingPosition<kStages>& at) {
  constexpr int kRowBytes = RowFormat<LatentRows::kBF16>::kRowBytes;
  constexpr int kKeys = kTileKeys * 4 / kLoadThreads;  // of a tile, for each thread
  constexpr int kKeyStep = kLoadThreads / 4;
  const int thread = threadIdx.x - kScoreThreads - kValueThreads;
  const int key = thread / 4, quarter = thread % 4;
  const int32_t* picks = a.picks + w.row() * a.n_picks + w.first_tile() * kTileKeys + key;
  const int32_t* table = a.tables.data ? a.tables.data + a.table_row[w.row()] * a.tables.stride : nullptr;
  KeyPieces pieces[kKeys];
  bool valid[kKeys];
  int slot[kKeys], next_pick[kKeys];
  const auto pick_of = [&](int tile, int o) {
    return tile < w.n_tiles() ? picks[tile * kTileKeys + o * kKeyStep] : -1;
  };
  const auto turn_picks = [&](int tile) {  // slots of the tile before, picks of this one
#pragma unroll
    for (int o = 0; o < kKeys; ++o) {
      slot[o] = pick_slot(next_pick[o], table);
      next_pick[o] = pick_of(tile, o);
    }
  };
  const auto load_row = [&](int o) {
    valid[o] = slot[o] >= 0;
    pieces[o].load(slot_row(a, max(slot[o], 0), kRowBytes), w.half(), quarter, valid[o]);
  };
#pragma unroll
  for (int o = 0; o < kKeys; ++o) next_pick[o] = pick_of(0, o);
  turn_picks(1);
#pragma unroll
  for (int o = 0; o < kKeys; ++o) load_row(o);
  for (int tile = 0; tile < w.n_tiles(); ++tile) {
    turn_picks(tile + 2);
    s.key_ring.empty[at.stage].wait(at.parity ^ 1);
#pragma unroll
    for (int o = 0; o < kKeys; ++o) {
      pieces[o].store(s.key[at.stage], key + o * kKeyStep, quarter);
      if (quarter == 0) s.bias[at.stage][key + o * kKeyStep] = valid[o] ? 0.0f : -INFINITY;
      load_row(o);
    }
    s.key_ring.full[at.stage].arrive();  // without a fence, see start_scores()
    at.advance();
  }
}

// ---- Score warpgroups.

// The factors that bring a total and a further part to their common maximum; the total's maximum becomes the common
// one.
struct MergeFactors {
  float total;
  float part;
};
__device__ __forceinline__ MergeFactors merge_factors(int32_t& total_max, int32_t part_max) {
  const int32_t common = max(total_max, part_max);
  const MergeFactors f{power_of_two(total_max - common), power_of_two(part_max - common)};
  total_max = common;
  return f;
}

// Thread t of a score or value warpgroup has heads row and row + 8 of the group, row = 16 * (t / 32) + t % 32 / 4;
// index h in 0, 1 below.
__device__ __forceinline__ int own_row() {
  const int thread = read_thread_index();
  return 16 * (thread / 32 % 4) + thread % 32 / 4;
}

struct ScoreState {
  uint32_t rope[2][4];  // the queries' rope half as wgmma A operands
  float sum[2];         // of the weights of own tiles of the part in this lane's columns, relative to 2^sum_max
  int32_t sum_max[2];
  float total_sum[2];  // of the merged parts, over the row's four lanes, relative to 2^total_max
  int32_t total_max[2];
};

struct ValueState {
  float acc[64];  // value columns of the part so far, relative to 2^acc_max
  int32_t acc_max[2];
  int32_t total_max[2];  // of the merged parts, which lie in scratch memory; whole rows only
};

// Adds a finished part, over the row's four lanes, to the total of this warpgroup's tiles and starts the next.
__device__ __forceinline__ void merge_sums(ScoreState& m, const int32_t (&part_max)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const MergeFactors f = merge_factors(m.total_max[h], part_max[h]);
    float part_sum = m.sum[h] * power_of_two(m.sum_max[h] - part_max[h]);
    part_sum += __shfl_xor_sync(0xffffffff, part_sum, 1);
    part_sum += __shfl_xor_sync(0xffffffff, part_sum, 2);
    m.total_sum[h] = fmaf(part_sum, f.part, m.total_sum[h] * f.total);
    m.sum[h] = 0;
    m.sum_max[h] = kNoCeiling;
  }
}

template <LatentRows kFormat, class W>
__device__ __forceinline__ void load_queries(Shared& s, ScoreState& m, const SparseMla& a, const W& w) {
  const auto* latent =
      static_cast<const uint16_t*>(a.q_latent) + w.row() * a.q_latent_row_stride + w.half() * kHalfLatent;
  const auto* rope = static_cast<const uint16_t*>(a.q_rope) + w.row() * a.q_rope_row_stride + w.half() * kHalfRope;
  // Thread t has piece t % 8 of chunk t / 8 % 4 of head t / 32, and of every eighth head from there. All are on their way
  // before the first is used.
  const int piece = threadIdx.x % 8, chunk = threadIdx.x / 8 % kChunks, first_head = threadIdx.x / 32;
  const uint16_t* from = latent + int64_t{w.first_head() + first_head} * kLatent + chunk * 64 + piece * 8;
  uint4 v[8];
#pragma unroll
  for (int k = 0; k < 8; ++k)
    v[k] = load_16(reinterpret_cast<const std::byte*>(from + k * 8 * kLatent),
                   w.first_head() + first_head + 8 * k < a.n_heads);
  if (w.n_done() > 0)
    named_barrier(kScoreBarrier, kScoreThreads);  // the other warpgroup may still multiply the last ones
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (kFormat == LatentRows::kFp8)
      v[k] = {odd_of(v[k].x, v[k].y), even_of(v[k].x, v[k].y), odd_of(v[k].z, v[k].w), even_of(v[k].z, v[k].w)};
    *reinterpret_cast<uint4*>(s.query[chunk] + swizzle_128(first_head + 8 * k, piece * 16)) = v[k];
  }
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int head = w.first_head() + 16 * (threadIdx.x / 32 % 4) + lane / 4 + 8 * (r % 2);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int column = 16 * step + 8 * (r / 2) + 2 * (lane % 4);
      m.rope[step][r] =
          head < a.n_heads ? *reinterpret_cast<const uint32_t*>(rope + int64_t{head} * kRope + column) : 0;
    }
  }
  fence_async_shared();
  named_barrier(kScoreBarrier, kScoreThreads);
}

// Scores of 64 heads against one tile over this block's half of the depth.
__device__ __forceinline__ void multiply_scores(float (&score)[32], const Shared& s, const ScoreState& m,
                                                const KeyTile& tile) {
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint64_t query = wgmma_descriptor(s.query[c]), key = wgmma_descriptor(tile.latent[c]);
#pragma unroll
    for (int k = 0; k < 128; k += 32)
      Wgmma<64>::bf16<0, 0>(score, query + descriptor_step(k), key + descriptor_step(k), c > 0 || k > 0);
  }
  const uint64_t key = rope_descriptor(tile.rope);
#pragma unroll
  for (int step = 0; step < 2; ++step) Wgmma<64>::bf16<0>(score, m.rope[step], key + descriptor_step(32 * step), true);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(score);
}

// Sixteen bytes to each of the slots of this thread, 128 slots apart.
template <int... kSlots>
__device__ __forceinline__ void send_quarters(uint32_t to, const float (&score)[32], uint32_t barrier,
                                              std::integer_sequence<int, kSlots...>) {
  (cluster_store_async<kSlots * 128 * static_cast<int>(sizeof(float4))>(
       to, {score[4 * kSlots], score[4 * kSlots + 1], score[4 * kSlots + 2], score[4 * kSlots + 3]}, barrier),
   ...);
}

__device__ __forceinline__ void send_scores(Shared& s, const float (&score)[32], int group, int turn, uint32_t other) {
  const int t = read_thread_index() % 128;
  if (t == 0) s.exchange_full[group].arrive_expect_bytes(kExchangeBytes);  // for what the other block sends
  s.exchange_empty[group].wait((turn & 1) ^ 1);
  const uint32_t to = cluster_address(shared_address(&s.exchange[group][0][t]), other);
  const uint32_t barrier = cluster_address(s.exchange_full[group].address(), other);
  send_quarters(to, score, barrier, std::make_integer_sequence<int, 8>());
}

__device__ __forceinline__ void add_received(Shared& s, float (&score)[32], int group, int turn, uint32_t other) {
  const int t = read_thread_index() % 128;
  s.exchange_full[group].wait(turn & 1);
#pragma unroll
  for (int first = 0; first < 8; first += 4) {  // as many as there are registers for
    float4 received[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) received[v] = load_shared_float4(&s.exchange[group][first + v][t]);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      float* own = &score[4 * (first + v)];
      own[0] += received[v].x;
      own[1] += received[v].y;
      own[2] += received[v].z;
      own[3] += received[v].w;
    }
  }
  __syncwarp();
  if (elect_one()) cluster_arrive_relaxed(s.exchange_empty[group], other);
  __syncwarp();
}

// Scores of invalid picks to -inf; returns the ceilings of the tile's highest in both rows, in the log2 domain.
__device__ __forceinline__ void find_ceilings(float (&score)[32], int32_t (&ceiling)[2], const float* bias,
                                              float scale_log2) {
  if (bias != nullptr) {
    const float* own = bias + 2 * (read_thread_index() % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 b = *reinterpret_cast<const float2*>(own + 8 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        score[4 * j + 2 * h] += b.x;
        score[4 * j + 2 * h + 1] += b.y;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float highest = fmaxf(score[2 * h], score[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) highest = fmaxf(highest, fmaxf(score[4 * j + 2 * h], score[4 * j + 2 * h + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
    ceiling[h] = ceiling_bits(highest * scale_log2);
  }
}

// The running maximum after a tile, for the other warpgroup's next tile and for the values.
__device__ __forceinline__ void publish_max(Shared& s, const int32_t (&maximum)[2], int tile) {
  const int row = own_row();
  if (read_thread_index() % 4 == 0) {
    s.running_max[tile % 4][row] = maximum[0];
    s.running_max[tile % 4][row + 8] = maximum[1];
  }
  s.max_full[tile % 2].arrive();
  __syncwarp();
}
__device__ __forceinline__ void read_max(const Shared& s, int32_t (&maximum)[2], int tile) {
  maximum[0] = s.running_max[tile % 4][own_row()];
  maximum[1] = s.running_max[tile % 4][own_row() + 8];
}

// Scores to weights relative to the running maximum. Updates the lane's sums.
__device__ __forceinline__ void weigh(ScoreState& m, float (&score)[32], const int32_t (&maximum)[2],
                                      float scale_log2) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float below = -ceiling_value(maximum[h]);
    float tile_sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& v = score[4 * j + 2 * h + e];
        v = exp2_flushed(fmaf(v, scale_log2, below));
        tile_sum[e] += v;
      }
    }
    m.sum[h] = fmaf(m.sum[h], power_of_two(m.sum_max[h] - maximum[h]), tile_sum[0] + tile_sum[1]);
    m.sum_max[h] = maximum[h];
  }
}

__device__ __forceinline__ void store_weights(uint8_t* tile, const float (&weight)[32]) {
  const int lane = read_thread_index() % 32, row = own_row();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(weight[4 * j + 2 * h], weight[4 * j + 2 * h + 1]);
      *reinterpret_cast<__nv_bfloat162*>(tile + swizzle_128(row + 8 * h, 16 * j + 4 * (lane % 4))) = pair;
    }
  }
  fence_async_shared();
}

__device__ __forceinline__ bool begins_later_part(int tile) { return tile > 0 && tile % kPartTiles == 0; }

// This block's half of a tile's scores, on its way to the other block; what remains here waits in `score`. The fence that
// makes the tile visible to the matrix unit stands here, between the writers' arrival and the products, and not with the
// writers: it waits for all earlier memory accesses of its thread, which there are the loads of the next rows.
__device__ __forceinline__ void start_scores(Shared& s, float (&score)[32], const ScoreState& m, int number, int group,
                                             uint32_t other) {
  s.key_ring.full[number % kStages].wait(number / kStages & 1);
  fence_async_shared();
  multiply_scores(score, s, m, s.key[number % kStages]);
  send_scores(s, score, group, number / 2, other);
}

// The running maximum before `tile`, kNoCeiling at the first of a part. Where this warpgroup enters a part, its sums of
// the last one are merged: at the first tile, or, for the warpgroup of odd tiles, at the second.
__device__ __forceinline__ void enter_tile(Shared& s, ScoreState& m, int tile, int number, int32_t (&previous_max)[2]) {
  s.max_full[(number - 1) % 2].wait((number - 1) / 2 & 1);
  read_max(s, previous_max, number - 1);
  if (begins_later_part(tile)) {
    merge_sums(m, previous_max);
    previous_max[0] = previous_max[1] = kNoCeiling;
  } else if (begins_later_part(tile - 1)) {
    const int32_t part_max[2] = {m.sum_max[0], m.sum_max[1]};  // its own last tile was the part's
    merge_sums(m, part_max);
  }
}

// All tiles of a score warpgroup: half scores of the next tile are sent before the weights of this one are stored. A
// tile's number counts those of earlier items too; a warpgroup has every other number.
template <class W>
__device__ __forceinline__ void attend_scores(Shared& s, ScoreState& m, const W& w, float scale_log2, uint32_t other) {
  const int group = threadIdx.x / 128, begin = (w.base() ^ group) & 1;
  float score[32];
  if (begin < w.n_tiles()) start_scores(s, score, m, w.base() + begin, group, other);
  for (int tile = begin; tile < w.n_tiles(); tile += 2) {
    const int number = w.base() + tile, turn = number / 2;
    int32_t maximum[2] = {kNoCeiling, kNoCeiling}, ceiling[2];
    add_received(s, score, group, turn, other);
    const bool some_invalid = w.first_tile() + tile + 1 == w.n_row_tiles();  // only a row's last tile can have
    find_ceilings(score, ceiling, some_invalid ? s.bias[number % kStages] : nullptr, scale_log2);
    if (tile > 0) enter_tile(s, m, tile, number, maximum);
    maximum[0] = max(maximum[0], ceiling[0]);
    maximum[1] = max(maximum[1], ceiling[1]);
    publish_max(s, maximum, number);
    weigh(m, score, maximum, scale_log2);
    s.weight_empty[group].wait((turn & 1) ^ 1);
    store_weights(s.weight[group], score);
    s.weight_full[group].arrive();
    if (tile + 2 < w.n_tiles()) start_scores(s, score, m, number + 2, group, other);
  }
}

// The maximum of the last tile this warpgroup has not merged yet, after the last tile of an item.
template <class W>
__device__ __forceinline__ void finish_sums(Shared& s, ScoreState& m, const W& w) {
  if (w.n_tiles() == 0) return;
  const int group = threadIdx.x / 128, last = w.base() + w.n_tiles() - 1;
  int32_t part_max[2];
  if (group != last % 2) {
    s.max_full[last % 2].wait(last / 2 & 1);
    if (begins_later_part(w.n_tiles() - 1)) {  // the last part has no tile of this warpgroup
      read_max(s, part_max, last - 1);
      merge_sums(m, part_max);
    }
  }
  read_max(s, part_max, last);
  merge_sums(m, part_max);
}

// The sums over this warpgroup's tiles: for this block's values and, behind a cluster barrier, for the other parts'.
__device__ __forceinline__ void publish_sums(Shared& s, const float (&sum)[2], int n_done) {
  s.sum_empty.wait((n_done & 1) ^ 1);
  if (threadIdx.x % 4 == 0) {
    s.row_sum[threadIdx.x / 128][own_row()] = sum[0];
    s.row_sum[threadIdx.x / 128][own_row() + 8] = sum[1];
    s.sum_full.arrive();
  }
  __syncwarp();
}

// ---- Value warpgroups.

__device__ __forceinline__ void start_part(ValueState& m) {
#pragma unroll
  for (int i = 0; i < 64; ++i) m.acc[i] = 0;
  m.acc_max[0] = m.acc_max[1] = kNoCeiling;
}

// acc += weights x values for one tile.
__device__ __forceinline__ void add_values(Shared& s, ValueState& m, int tile) {
  const int group = read_thread_index() / 128 - kScoreThreads / 128;
  int32_t tile_max[2];
  float factor[2];
  s.weight_full[tile % 2].wait(tile / 2 & 1);
  read_max(s, tile_max, tile);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = power_of_two(m.acc_max[h] - tile_max[h]);
    m.acc_max[h] = tile_max[h];
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (int i = 0; i < 64; ++i) m.acc[i] *= factor[i / 2 % 2];
  }
  const uint64_t weight = wgmma_descriptor(s.weight[tile % 2]);
  const uint64_t value = wgmma_descriptor_mn_major(s.key[tile % kStages].latent[2 * group], kChunkBytes);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k)
    Wgmma<128>::bf16<0, 1>(m.acc, weight + descriptor_step(32 * k), value + descriptor_step(2048 * k), true);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(m.acc);
  if (elect_one()) s.key_ring.empty[tile % kStages].arrive();
  s.weight_empty[tile % 2].arrive();  // all threads: all have read the maxima that will be written over
  __syncwarp();
}

// One slot of 16 float4 per value thread of a multiprocessor, 256 threads apart.
__device__ __forceinline__ float4* scratch_slot(const SparseMla& a, int value_thread) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes) + int64_t{sm} * 16 * kValueThreads + value_thread;
}

__device__ __forceinline__ float4 merge_four(const ValueState& m, int j, const MergeFactors (&f)[2], float4 total) {
  return {fmaf(m.acc[4 * j], f[0].part, total.x * f[0].total), fmaf(m.acc[4 * j + 1], f[0].part, total.y * f[0].total),
          fmaf(m.acc[4 * j + 2], f[1].part, total.z * f[1].total),
          fmaf(m.acc[4 * j + 3], f[1].part, total.w * f[1].total)};
}

// A few of a thread's totals at once, as many as there are registers for.
constexpr int kTotalBatch = 4;
__device__ __forceinline__ void read_total(float4 (&before)[kTotalBatch], const float4* total, int first,
                                           bool first_part) {
#pragma unroll
  for (int j = 0; j < kTotalBatch; ++j)
    before[j] = first_part ? float4{0, 0, 0, 0} : __ldcg(total + (first + j) * kValueThreads);
}

// Adds the finished part to the total in scratch memory and starts the next.
__device__ __forceinline__ void merge_values(ValueState& m, float4* total, bool first_part) {
  const MergeFactors f[2] = {merge_factors(m.total_max[0], m.acc_max[0]), merge_factors(m.total_max[1], m.acc_max[1])};
#pragma unroll
  for (int first = 0; first < 16; first += kTotalBatch) {
    float4 before[kTotalBatch];
    read_total(before, total, first, first_part);
#pragma unroll
    for (int j = 0; j < kTotalBatch; ++j) total[(first + j) * kValueThreads] = merge_four(m, first + j, f, before[j]);
  }
  start_part(m);
}

// 1 / (sum of a row's weights); 0 for a row without picks.
__device__ __forceinline__ float invert_sum(float even, float odd) {
  const float sum = even + odd;
  return sum > 0 ? __frcp_rn(sum) : 0.0f;
}

// Four columns in the order 1, 3, 0, 2, two in each of a pair of lanes, to their own order.
__device__ __forceinline__ float4 sort_columns(const float4& v) {
  const bool upper = (threadIdx.x & 1) != 0;
  const float first = __shfl_xor_sync(0xffffffff, upper ? v.x : v.y, 1);
  const float second = __shfl_xor_sync(0xffffffff, upper ? v.z : v.w, 1);
  return upper ? float4{v.y, first, v.w, second} : float4{first, v.x, second, v.z};
}

// Columns 8j + 2 * (lane % 4) and the next of both heads of this thread. All lanes call.
template <LatentRows kFormat, class W>
__device__ __forceinline__ void store_output(const SparseMla& a, const W& w, int j, const float4& value,
                                             const float (&inverse)[2]) {
  const int group = threadIdx.x / 128 - kScoreThreads / 128;
  const int column = w.half() * kHalfLatent + group * 128 + 8 * j + 2 * (threadIdx.x % 4);
  const float4 columns = kFormat == LatentRows::kFp8 ? sort_columns(value) : value;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = w.first_head() + own_row() + 8 * h;
    if (head >= a.n_heads) continue;
    const int64_t at = (w.row() * a.n_heads + head) * kLatent + column;
    const float2 v = h == 0 ? float2{columns.x * inverse[0], columns.y * inverse[0]}
                            : float2{columns.z * inverse[1], columns.w * inverse[1]};
    if (a.out_f32) {
      *reinterpret_cast<float2*>(static_cast<float*>(a.out) + at) = v;
    } else {
      *reinterpret_cast<__nv_bfloat162*>(static_cast<uint16_t*>(a.out) + at) = __floats2bfloat162_rn(v.x, v.y);
    }
  }
}

template <LatentRows kFormat, class W>
__device__ __forceinline__ void write_whole_row(Shared& s, ValueState& m, const SparseMla& a, const W& w,
                                                const float4* total) {
  const bool first_part = w.n_tiles() <= kPartTiles;
  const MergeFactors f[2] = {merge_factors(m.total_max[0], m.acc_max[0]), merge_factors(m.total_max[1], m.acc_max[1])};
  s.sum_full.wait(w.n_done() & 1);
  const int row = own_row();
  const float inverse[2] = {invert_sum(s.row_sum[0][row], s.row_sum[1][row]),
                            invert_sum(s.row_sum[0][row + 8], s.row_sum[1][row + 8])};
  __syncwarp();
  if (elect_one()) s.sum_empty.arrive();
#pragma unroll
  for (int first = 0; first < 16; first += kTotalBatch) {
    float4 before[kTotalBatch];
    read_total(before, total, first, first_part);
#pragma unroll
    for (int j = 0; j < kTotalBatch; ++j)
      store_output<kFormat>(a, w, first + j, merge_four(m, first + j, f, before[j]), inverse);
  }
}

// Leaves the part's sums where others can read them.
__device__ __forceinline__ void publish_part(PartResult& to, const ValueState& m) {
  const int t = threadIdx.x - kScoreThreads;
#pragma unroll
  for (int j = 0; j < 16; ++j) to.acc[j][t] = {m.acc[4 * j], m.acc[4 * j + 1], m.acc[4 * j + 2], m.acc[4 * j + 3]};
#pragma unroll
  for (int h = 0; h < 2; ++h) to.max_bits[h][t] = m.acc_max[h];
}

// The parts of a row as they lie in the shared memory of the cluster's blocks.
struct PartsOfCluster {
  Shared& s;
  int half;

  __device__ __forceinline__ uint32_t rank(int part) const { return static_cast<uint32_t>(2 * part + half); }
  __device__ __forceinline__ int32_t max_bits(int part, int h, int t) const {
    return static_cast<int32_t>(cluster_load_u32(&s.part.max_bits[h][t], rank(part)));
  }
  __device__ __forceinline__ float row_sum(int part, int parity, int row) const {
    return __uint_as_float(cluster_load_u32(&s.row_sum[parity][row], rank(part)));
  }
  __device__ __forceinline__ float4 acc(int part, int j, int t) const {
    return cluster_load_float4(&s.part.acc[j][t], rank(part));
  }
};

// The same in scratch memory, written by blocks that may be gone.
struct PartRecord {
  PartResult result;
  float row_sum[2][kMlaHeadGroup];
};
static_assert(sizeof(PartRecord) == kMlaPartRecordBytes);
struct PartsInScratch {
  const PartRecord* of_part;  // two apart: the halves take turns

  __device__ __forceinline__ int32_t max_bits(int part, int h, int t) const {
    return __ldcg(&of_part[2 * part].result.max_bits[h][t]);
  }
  __device__ __forceinline__ float row_sum(int part, int parity, int row) const {
    return __ldcg(&of_part[2 * part].row_sum[parity][row]);
  }
  __device__ __forceinline__ float4 acc(int part, int j, int t) const {
    return __ldcg(&of_part[2 * part].result.acc[j][t]);
  }
};

// Merges columns first_j .. end_j - 1 of each thread over the parts, ascending, and writes them.
template <LatentRows kFormat, class W, class Parts>
__device__ __forceinline__ void write_merged_parts(const Parts& parts, const SparseMla& a, const W& w, int first_j,
                                                   int end_j) {
  const int t = threadIdx.x - kScoreThreads, row = own_row(), n_used = w.n_used_parts();
  MergeFactors factor[kMaxParts][2];
  float sum[2][2] = {{0, 0}, {0, 0}};  // even and odd tiles of both rows
  int32_t total_max[2] = {kNoCeiling, kNoCeiling};
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    if (part >= n_used) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factor[part][h] = merge_factors(total_max[h], parts.max_bits(part, h, t));
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        const float part_sum = parts.row_sum(part, parity, row + 8 * h);
        sum[h][parity] = fmaf(part_sum, factor[part][h].part, sum[h][parity] * factor[part][h].total);
      }
    }
  }
  const float inverse[2] = {invert_sum(sum[0][0], sum[0][1]), invert_sum(sum[1][0], sum[1][1])};
#pragma unroll 4
  for (int j = first_j; j < end_j; ++j) {
    float4 value{0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      if (part >= n_used) continue;
      const float4 v = parts.acc(part, j, t);
      value.x = fmaf(v.x, factor[part][0].part, value.x * factor[part][0].total);
      value.y = fmaf(v.y, factor[part][0].part, value.y * factor[part][0].total);
      value.z = fmaf(v.z, factor[part][1].part, value.z * factor[part][1].total);
      value.w = fmaf(v.w, factor[part][1].part, value.w * factor[part][1].total);
    }
    store_output<kFormat>(a, w, j, value, inverse);
  }
}

// Leaves a part in scratch memory. Of the blocks that hold parts of a row, the one that comes last merges them all: the
// order of the additions is that of the parts, whoever adds.
template <LatentRows kFormat, class W>
__device__ __forceinline__ void share_part(Shared& s, const ValueState& m, const SparseMla& a, const W& w) {
  s.sum_full.wait(w.n_done() & 1);
  auto* records = reinterpret_cast<PartRecord*>(a.scratch + kMlaCounterBytes);
  PartRecord& own = records[2 * w.item() + w.half()];
  const int t = threadIdx.x - kScoreThreads;
  if (t < 2 * kMlaHeadGroup) {  // by tiles of the part, whichever warpgroup had them
    const int group = t / kMlaHeadGroup, head = t % kMlaHeadGroup;
    own.row_sum[(group ^ w.base()) & 1][head] = s.row_sum[group][head];
  }
  __syncwarp();
  if (elect_one()) s.sum_empty.arrive();
  if (w.n_tiles() == 0 && w.part() > 0) return;  // the row has no such part
  publish_part(own.result, m);
  __threadfence();
  named_barrier(kValueBarrier, kValueThreads);
  uint32_t* counter = reinterpret_cast<uint32_t*>(a.scratch) + 2 * (w.item() / w.n_parts()) + w.half();
  const uint32_t n_used = max(w.n_used_parts(), 1);
  if (t == 0) {
    s.came_last = atomicAdd(counter, 1) + 1 == n_used;
    if (s.came_last) *counter = 0;  // for the next launch
    __threadfence();
  }
  named_barrier(kValueBarrier, kValueThreads);
  if (!s.came_last) return;
  write_merged_parts<kFormat>(PartsInScratch{records + 2 * (w.item() - w.part()) + w.half()}, a, w, 0, 16);
}

template <MlaSharing kSharing, LatentRows kFormat>
__device__ __forceinline__ void score_role(Shared& s, const SparseMla& a, int n_parts, float scale_log2) {
  Work<kSharing> w(a, n_parts);
  do {
    ScoreState m;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      m.sum[h] = m.total_sum[h] = 0;
      m.sum_max[h] = m.total_max[h] = kNoCeiling;
    }
    load_queries<kFormat>(s, m, a, w);
    attend_scores(s, m, w, scale_log2, cluster_rank() ^ 1);
    finish_sums(s, m, w);
    publish_sums(s, m.total_sum, w.n_done());
  } while (w.advance());
  if (kSharing == MlaSharing::kClusters) cluster_sync();
  cluster_sync();  // nobody leaves while others may read or signal here
}

// The values of one item, in `m`; those of finished parts of a whole row in `total`.
template <bool kWholeRow, class W>
__device__ __forceinline__ void attend_values(Shared& s, ValueState& m, const W& w, float4* total) {
  start_part(m);
  m.total_max[0] = m.total_max[1] = kNoCeiling;
  for (int tile = 0; tile < w.n_tiles(); ++tile) {
    if (kWholeRow && begins_later_part(tile)) merge_values(m, total, tile == kPartTiles);
    add_values(s, m, w.base() + tile);
  }
}

template <MlaSharing kSharing, LatentRows kFormat>
__device__ __forceinline__ void value_role(Shared& s, const SparseMla& a, int n_parts) {
  Work<kSharing> w(a, n_parts);
  ValueState m;
  if constexpr (kSharing == MlaSharing::kWholeRows) {
    float4* total = scratch_slot(a, threadIdx.x - kScoreThreads);
    do {
      attend_values<true>(s, m, w, total);
      write_whole_row<kFormat>(s, m, a, w, total);
    } while (w.advance());
  } else if constexpr (kSharing == MlaSharing::kPairs) {
    do {
      attend_values<false>(s, m, w, nullptr);
      share_part<kFormat>(s, m, a, w);
    } while (w.advance());
  } else {
    attend_values<false>(s, m, w, nullptr);
    named_barrier(kValueBarrier, kValueThreads);  // the other warpgroup may still read key tiles
    publish_part(s.part, m);
    cluster_sync();
    write_merged_parts<kFormat>(PartsOfCluster{s, w.half()}, a, w, w.part() * 16 / w.n_parts(),
                                (w.part() + 1) * 16 / w.n_parts());
  }
  cluster_sync();
}

template <MlaSharing kSharing, LatentRows kFormat, bool kTables>
__device__ __forceinline__ void load_role(Shared& s, const SparseMla& a, int n_parts) {
  Work<kSharing> w(a, n_parts);
  RingPosition<kStages> at;
  do {
    if constexpr (kFormat == LatentRows::kFp8)
      Fp8Loader<kTables, Work<kSharing>>(s, a, w, at).run();
    else
      load_bf16_rows(s, a, w, at);
  } while (w.advance());
  __syncwarp();
  if (kSharing == MlaSharing::kClusters) cluster_sync();
  cluster_sync();
}

__device__ __forceinline__ void init_barriers(Shared& s) {
  s.key_ring.init(kLoadThreads, 8);  // the load threads; the warps of both value warpgroups
  s.sum_full.init(kScoreThreads / 4);
  s.sum_empty.init(kValueThreads / 32);
  for (int g = 0; g < 2; ++g) {
    s.weight_full[g].init(128);
    s.max_full[g].init(128);  // all threads: some write maxima, all have read earlier ones
    s.weight_empty[g].init(kValueThreads);
    s.exchange_full[g].init(1);   // and the bytes of the other block
    s.exchange_empty[g].init(4);  // warps of the other block
  }
  fence_barrier_init();
}

template <int kRegs>
__device__ __forceinline__ void set_registers() {
  if constexpr (kRegs > kLaunchRegs) grow_registers<kRegs>();
  if constexpr (kRegs < kLaunchRegs) shrink_registers<kRegs>();
}

template <MlaSharing kSharing, LatentRows kFormat, bool kTables>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_kernel(const __grid_constant__ SparseMla a, int n_parts, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  let_next_start();
  wait_for_previous();
  cluster_sync();
  using Format = RowFormat<kFormat>;
  if (warp_index() < kScoreThreads / 32) {
    set_registers<Format::kScoreRegs>();
    score_role<kSharing, kFormat>(s, a, n_parts, scale_log2);
  } else if (warp_index() < (kScoreThreads + kValueThreads) / 32) {
    set_registers<Format::kValueRegs>();
    value_role<kSharing, kFormat>(s, a, n_parts);
  } else {
    set_registers<Format::kLoadRegs>();
    load_role<kSharing, kFormat, kTables>(s, a, n_parts);
  }
}

// kTables: picks may be positions. Without, no instruction of the loads is spent on them.
template <MlaSharing kSharing, LatentRows kFormat, bool kTables>
void launch_as(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int n_parts = mla_parts(a.n_picks);
  const int64_t n_rows = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup);
  const bool clusters = kSharing == MlaSharing::kClusters;
  const int64_t n_items = kSharing == MlaSharing::kPairs ? n_rows * n_parts : n_rows;
  const int64_t n_clusters = clusters ? n_items : std::min<int64_t>(n_items, n_multiprocessors() / 2);
  const int cluster_blocks = clusters ? 2 * n_parts : 2;
  const Launch l{.grid = {static_cast<unsigned>(n_clusters * cluster_blocks)},
                 .block = {kThreads},
                 .shared_bytes = sizeof(Shared),
                 .cluster = cluster_blocks,
                 .follows_closely = true,
                 .stream = stream};
  launch_kernel(sparse_mla_kernel<kSharing, kFormat, kTables>, l, a, n_parts, a.scale * kLog2E);
}

template <LatentRows kFormat, bool kTables>
void launch(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  switch (sharing) {
    case MlaSharing::kWholeRows:
      return launch_as<MlaSharing::kWholeRows, kFormat, kTables>(a, stream);
    case MlaSharing::kClusters:
      return launch_as<MlaSharing::kClusters, kFormat, kTables>(a, stream);
    case MlaSharing::kPairs:
      return launch_as<MlaSharing::kPairs, kFormat, kTables>(a, stream);
  }
}

}  // namespace levin::cuda::mla
