// A block of the kernel for few query rows (few_rows_sm90.cu): its share of the work and its shared memory, with what
// takes whose place there and when.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/sparse_mla/few_rows_load.cuh"
#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda::mla {

constexpr int kAdderColumns = 64;                   // that a warpgroup adds, a chunk
constexpr int kAdderFours = kAdderColumns / 8;      // float4 of a thread's sums
constexpr int kSumFours = kAdderFours / kMaxParts;  // of those, the ones that a block of each part merges
constexpr int kTilesAhead = 4;                      // whose values are on their way, as many as there are registers for
constexpr int kFirstTiles = 4;                      // whose values an adder puts in place itself
constexpr int kLaterTiles = kPartTiles - kFirstTiles;
constexpr int kWeightBytes = kChunkBytes / 4;  // of a warp
constexpr int kKeysBarrier = 1;  // named barriers: queries and the first keys of score warpgroup g are there, g + 1
constexpr int kLaterKeysBarrier = 3;   // later keys, g + 3
constexpr int kScoresDoneBarrier = 5;  // score warpgroup g has multiplied its keys, g + 5
constexpr int kQueryBarrier = 7;       // of the score warpgroups: all have read the queries as they came
constexpr int kValuesBarrier = 8;      // of adder v, v + 8
static_assert(kMaxParts == 2);

// A block, one of kBlocks to a part.
template <int kBlocks>
struct FewRows {
  static constexpr int kPartBlocks = kBlocks;
  static constexpr int kClusterBlocks = kMaxParts * kPartBlocks;
  static constexpr int kOwnTiles = kPartTiles / kPartBlocks;  // 2 or 4, two at a time
  static constexpr int kRounds = kOwnTiles / 2;
  static constexpr int kBlockColumns = kLatent / kPartBlocks;
  static constexpr int kAdders = kBlockColumns / kAdderColumns;
  static constexpr int kSumHeads = kMlaHeadGroup / kPartBlocks;       // whose sums a block adds
  static constexpr int kQueryHeads = kMlaHeadGroup / kClusterBlocks;  // that a block asks for, for all blocks
  // Tiles of an adder's columns that are there at once.
  static constexpr int kValueRing = kAdders == 1 ? kDeepChunks : 4;
  // Sums of weights of kSumHeads heads, four lanes each, of every tile, relative to the running maximum.
  using LaneSums = float[kPartTiles][kSumHeads][4];

  alignas(1024) uint8_t query[kDeepChunks][kChunkBytes];  // later weights, weight_chunk(), and received_sums()
  uint8_t key[2][kDeepChunks][kChunkBytes];               // later value_chunk(); weight_chunk(), lane_sums()
  uint32_t slot[kMlaPartTopk];                            // kNoSlot without an index
  int32_t ceiling[kPartTiles][kMlaHeadGroup];             // of each tile alone
  PartHead head[kMaxParts][kMlaHeadGroup];
  Mbarrier query_full;
  Mbarrier ceilings_full[kOwnTiles];  // of tiles i * kPartBlocks and those after it
  Mbarrier weights_full[kPartTiles];
  Mbarrier values_full[kAdders][kLaterTiles];  // of tiles kFirstTiles ..
  Mbarrier values_empty[kAdders][kPartTiles - kValueRing];
  Mbarrier lane_sums_full;
  Mbarrier heads_full;
  Mbarrier others_ready;  // the block with the same columns of the other part can take sums
  Mbarrier sums_full[kAdders];
  GroupBarriers<kKeysBarrier, 2, kFewRowsThreads> keys_full;
  GroupBarriers<kLaterKeysBarrier, 2, 128 + kValueThreads> later_keys_full;
  GroupBarriers<kScoresDoneBarrier, 2, 128 + kValueThreads> scores_done;
};
static_assert(sizeof(FewRows<8>) <= kMaxSharedBytes && sizeof(FewRows<4>) <= kMaxSharedBytes, "too much shared memory");

// What this block does.
template <class S>
class BlockWork {
 public:
  __device__ __forceinline__ explicit BlockWork(const SparseMla& a) : two_groups_(a.n_heads > kMlaHeadGroup) {}

  __device__ __forceinline__ int64_t row() const { return two_groups_ ? item() / 2 : item(); }
  __device__ __forceinline__ int first_head() const { return two_groups_ ? item() % 2 * kMlaHeadGroup : 0; }
  __device__ __forceinline__ int part() const { return static_cast<int>(blockIdx.x / S::kPartBlocks % kMaxParts); }
  __device__ __forceinline__ int place() const { return static_cast<int>(blockIdx.x % S::kPartBlocks); }
  __device__ __forceinline__ static int item() { return static_cast<int>(blockIdx.x / S::kClusterBlocks); }
  // In the cluster.
  __device__ __forceinline__ static uint32_t rank(int part, int place) { return part * S::kPartBlocks + place; }

 private:
  bool two_groups_;
};

// What lies in the places of queries and keys when their scores are there. An adder's columns of a tile, where the keys of
// its first tiles were: when the first score warpgroup is done.
template <class S>
__device__ __forceinline__ uint8_t* value_chunk(S& s, int adder, int tile) {
  return s.key[0][adder * S::kValueRing + tile % S::kValueRing];
}

// The weights of a tile, where queries and the keys of the second warpgroup's tiles were: when all blocks of the part are done.
template <class S>
__device__ __forceinline__ uint8_t* weight_chunk(S& s, int tile) {
  return tile < kPartTiles / 2 ? s.query[tile] : s.key[1][tile - kPartTiles / 2];
}

template <class S>
__device__ __forceinline__ typename S::LaneSums& lane_sums(S& s) {
  static_assert(sizeof(typename S::LaneSums) <= kChunkBytes);
  return *reinterpret_cast<typename S::LaneSums*>(s.key[1][kRopeChunk]);
}

// The sums of the other part, where the weights of the first tiles were: when the adders are done with kReadyTile.
constexpr int kReadyTile = 4;
template <class S>
__device__ __forceinline__ float4* received_sums(S& s, int adder) {
  static_assert(S::kAdders * kChunkBytes <= kReadyTile * kChunkBytes);
  return reinterpret_cast<float4*>(s.query[adder]);
}

}  // namespace levin::cuda::mla
