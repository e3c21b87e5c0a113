// A block of sparse_mla (bf16_sm90.cu): its shared memory, the work that comes to it, and what its roles share.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/sparse_mla/launch.h"
#include "kernels/cuda/tiles/log2_softmax.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"

namespace levin::cuda::mla {

constexpr int kTileKeys = 64;
constexpr int kPartTiles = kMlaPartTopk / kTileKeys;  // 16
constexpr int kMaxParts = kMlaMaxParts;
constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kHalfLatent = kLatent / 2;
constexpr int kHalfRope = kRope / 2;
constexpr int kChunks = kHalfLatent / 64;  // 64 columns are one swizzled 128-byte row
constexpr int kChunkBytes = kTileKeys * 128;
constexpr int kRopeTileBytes = kTileKeys * kHalfRope * 2;
constexpr int kStages = 3;
constexpr int kPickStages = 8;
constexpr int kEntryStages = 4;
constexpr int kScoreThreads = 256;
constexpr int kValueThreads = 256;
constexpr int kLoadThreads = 128;
constexpr int kThreads = kScoreThreads + kValueThreads + kLoadThreads;
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
  float2 scale[kTileKeys / 2];              // of each key
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
  alignas(1024) uint8_t weight[2][kChunkBytes];  // [64 heads, 64 top-k indices] bf16, of the even and the odd tile
  alignas(16) float4 exchange[2][8][128];        // the other block's half of the scores, one slot per thread
  float bias[kStages][kTileKeys];                // 0, or -inf for an invalid index
  int32_t running_max[4][kMlaHeadGroup];         // after tile i at i % 4
  float row_sum[2][kMlaHeadGroup];               // of the even and the odd tiles
  uint32_t shares;                               // of a row's merge that are this block's
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

// Whether a query row belongs to no request. It has no top-k indices then, whatever its list says.
__device__ __forceinline__ bool is_padding(const SparseMla& a, int64_t row) {
  return a.tables.data != nullptr && a.table_row[row] < 0;
}

// What Work calls meanwhile, unless told.
struct Nothing {
  template <class W>
  __device__ __forceinline__ void operator()(const W&) const {}
};

// What this block does at a time, an item: the tiles of a row with one group of heads, or with all of them, or those of a
// part. Items of a cluster follow each other, in turns over the clusters. Every warp walks by itself, with few registers:
// what follows from the block's index is formed anew where it is used. With all heads the warpgroups 0 and 1 have a
// group each.
template <MlaSharing kSharing, bool kAllHeads = false>
class Work {
 public:
  // `meanwhile` is called with this while an item's tiles are counted, which takes a latency of memory.
  template <class F = Nothing>
  __device__ __forceinline__ Work(const SparseMla& a, int n_parts, const F& meanwhile = {})
      : a_(a), n_parts_(whole_row() ? 1 : n_parts) {
    item_ = static_cast<int>(blockIdx.x) / cluster_blocks();
    enter(meanwhile);
  }

  // False after the last item.
  template <class F = Nothing>
  __device__ __forceinline__ bool advance(const F& meanwhile = {}) {
    item_ += static_cast<int>(gridDim.x) / cluster_blocks();
    if (item_ >= static_cast<int>(a_.n_rows) * n_groups() * item_parts()) return false;
    base_ += n_tiles_;
    ++n_done_;
    enter(meanwhile);
    return true;
  }

  __device__ __forceinline__ int item() const { return item_; }
  __device__ __forceinline__ int64_t row() const { return item_ / item_parts() / n_groups(); }
  __device__ __forceinline__ int first_head() const {
    return (kAllHeads ? read_thread_index() / 128 : item_ / item_parts() % n_groups()) * kMlaHeadGroup;
  }
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
  // Whether all parts of the row are worked on at the same time.
  __device__ __forceinline__ bool row_is_in_one_turn() const {
    const int n_clusters = static_cast<int>(gridDim.x) / cluster_blocks(), first = item_ - part();
    return first / n_clusters == (first + n_parts_ - 1) / n_clusters;
  }
  __device__ __forceinline__ int base() const { return base_; }      // tiles of earlier items: rings count on
  __device__ __forceinline__ int n_done() const { return n_done_; }  // earlier items

 private:
  __device__ __forceinline__ static constexpr bool whole_row() { return kSharing == MlaSharing::kWholeRows; }
  __device__ __forceinline__ int n_groups() const { return !kAllHeads && a_.n_heads > kMlaHeadGroup ? 2 : 1; }
  __device__ __forceinline__ int cluster_blocks() const { return kSharing == MlaSharing::kClusters ? 2 * n_parts_ : 2; }
  __device__ __forceinline__ int item_parts() const { return kSharing == MlaSharing::kPairs ? n_parts_ : 1; }

  // Counts the tiles that hold top-k indices: lane i looks at tile i. A row of no request has none, whatever its list says.
  template <class F>
  __device__ __forceinline__ void enter(const F& meanwhile) {
    const int lane = threadIdx.x % 32;
    const int32_t table_row = a_.tables.data == nullptr ? 0 : a_.table_row[row()];
    const int32_t topk = lane < a_.n_topk / kTileKeys ? a_.topk[row() * a_.n_topk + lane * kTileKeys] : -1;
    meanwhile(*this);
    n_row_tiles_ = 32 - __clz(static_cast<int>(__ballot_sync(0xffffffff, min(table_row, topk) >= 0)));
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

__device__ __forceinline__ bool begins_later_part(int tile) { return tile > 0 && tile % kPartTiles == 0; }

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

// Which of a kernel's head warpgroups a thread is in, where those stand first. Formed anew where it is used: what follows from it
// would be kept in local memory.
__device__ __forceinline__ int head_group() { return read_thread_index() / 128; }

// Thread t of a score or value warpgroup has heads row and row + 8 of the group, row = 16 * (t / 32) + t % 32 / 4;
// index h in 0, 1 below.
__device__ __forceinline__ int own_row() {
  const int thread = read_thread_index();
  return 16 * (thread / 32 % 4) + thread % 32 / 4;
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

}  // namespace levin::cuda::mla
