// A block of the kernel for few query rows whose blocks are on the device together (mail_sm90.cu): its share of the work and its shared memory, with what
// takes whose place there and when.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/sparse_mla/few_rows_load.cuh"
#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda::mla {

constexpr int kQueryBarrier = 1;      // named barriers: all score warps have read the queries as they came
constexpr int kKeysBarrier = 2;       // queries and the first tile in key place g are there, g + 2
constexpr int kLaterKeysBarrier = 4;  // a later tile in key place g, g + 4
static_assert(kMaxParts == 2);

// What blocks of a part tell each other by way of L2. A word is kNoMail until it comes, and has no sign bit when it has: weights,
// their sums and the bits of ceilings are never negative, and NaNs of the device have no sign. So words are read again until
// they are there, and nobody fences or counts.
constexpr uint32_t kNoMail = 0xFFFFFFFF;

// Of a tile, from a thread of a score warpgroup to those with the same heads that add values, one slot for each.
struct TileMail {
  uint4 weight[4][128];  // operands of four steps of wgmma
  uint4 sums[128];       // of both heads' weights in this lane, f32; then both heads' pack_factors()
};
struct PartMail {
  TileMail tile[kPartTiles];
  uint32_t ceiling[kMlaHeadGroup][kPartTiles];  // of each tile alone, at least kNoCeiling
  uint32_t maximum[kMlaHeadGroup];              // of all tiles
};
static_assert(kMaxParts * sizeof(PartMail) == kMlaMailBytes);

// The factors that bring sums up to the tile before, and up to the one before that, to a tile's maximum: powers of two, of which the
// upper half of a word holds all.
__device__ __forceinline__ uint32_t pack_factors(float from_last, float from_last_but_one) {
  return __byte_perm(__float_as_uint(from_last_but_one), __float_as_uint(from_last), 0x7632);
}
__device__ __forceinline__ float factor_from_last(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000); }
__device__ __forceinline__ float factor_from_last_but_one(uint32_t pair) { return __uint_as_float(pair << 16); }

// Of the launches so far.
struct MailState {
  uint32_t n_launches;
  uint32_t n_items;   // of the last one
  uint32_t n_blocks;  // of this one, that have read the above
};
static_assert(sizeof(MailState) <= kMlaMailStateBytes);

// A block, one of eight to a part, with one or two groups of heads. Two groups share the keys: each score warpgroup has one, and
// each value warpgroup adds for one. With one group the score warpgroups have tiles of their own, and one warpgroup adds.
template <int kHeadGroups>
struct MailBlock {
  static constexpr int kPartBlocks = 8;
  static constexpr int kGroups = kHeadGroups;
  static constexpr int kKeyPlaces = kGroups == 1 ? 2 : 1;     // for tiles over the whole depth
  static constexpr int kOwnTiles = kPartTiles / kPartBlocks;  // kKeyPlaces at a time
  static constexpr int kRounds = kOwnTiles / kKeyPlaces;
  static constexpr int kBlockColumns = kLatent / kPartBlocks;
  static_assert(kBlockColumns == 64);                      // a chunk
  static constexpr int kAccFours = kBlockColumns / 8;      // float4 of a thread's sums
  static constexpr int kSumFours = kAccFours / kMaxParts;  // of those, the ones that the block of each part merges
  static constexpr int kQueryHeads = kMlaHeadGroup / kMaxParts;  // of a group, that a block asks for, for both
  static constexpr int kChunkCount = (kKeyPlaces + kGroups) * kDeepChunks;
  static_assert(kPartTiles + kGroups <= kChunkCount);  // value columns, and the other part's sums
  static constexpr int kValuesAhead = 4;  // tiles whose values are on their way, as many as there are registers for
  // Tiles whose values a warpgroup puts in place: one that adds, before there is something to add; with one group the other value
  // warpgroup; a score warpgroup when it has nothing else to do.
  static constexpr int kAdderTiles = kGroups == 1 ? 4 : 5;
  static constexpr int kHelperTiles = kGroups == 1 ? 6 : 0;
  static constexpr int kScoreTiles = (kPartTiles - kGroups * kAdderTiles - kHelperTiles) / 2;

  // Keys and queries over the whole depth; later value_place() and received_sums().
  alignas(1024) uint8_t chunk[kChunkCount][kChunkBytes];
  uint32_t slot[kMlaPartTopk];            // kNoSlot without an index
  PartHead head[kGroups][kMlaHeadGroup];  // of the other part
  uint32_t n_launches, n_last_items;      // MailState
  Mbarrier query_full;
  Mbarrier round_done[2];   // score warpgroup g has multiplied a tile, and another one follows
  Mbarrier scores_done[2];  // the last one
  Mbarrier values_full[kPartTiles];
  Mbarrier others_ready;  // the block of the other part can take sums
  Mbarrier sums_full[kGroups];
  // Of a key place: those that wait and those that put.
  GroupBarriers<kKeysBarrier, kKeyPlaces, kFewRowsThreads> keys_full;
  GroupBarriers<kLaterKeysBarrier, kKeyPlaces, kScoreThreads / kKeyPlaces + kValueThreads> later_keys_full;

  __device__ __forceinline__ DeepTile& key(int place) {
    return *reinterpret_cast<DeepTile*>(chunk[place * kDeepChunks]);
  }
  __device__ __forceinline__ DeepTile& query(int group) { return key(kKeyPlaces + group); }
};

// What this block does, and a warpgroup in it.
template <class S>
class BlockWork {
 public:
  __device__ __forceinline__ explicit BlockWork(const SparseMla& a)
      : two_items_(S::kGroups == 1 && a.n_heads > kMlaHeadGroup) {}

  __device__ __forceinline__ int64_t row() const { return two_items_ ? item() / 2 : item(); }
  // Of this warpgroup, in the block; of a group, in the row.
  __device__ __forceinline__ static int group() {
    return S::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x / 128 % 2);
  }
  __device__ __forceinline__ int first_head(int group) const {
    return (two_items_ ? item() % 2 : group) * kMlaHeadGroup;
  }
  __device__ __forceinline__ int first_head() const { return first_head(group()); }
  __device__ __forceinline__ static int part() {
    return static_cast<int>(blockIdx.x % kMaxParts);
  }  // rank in the cluster
  __device__ __forceinline__ static int place() { return static_cast<int>(blockIdx.x / kMaxParts % S::kPartBlocks); }
  __device__ __forceinline__ static int item() { return static_cast<int>(blockIdx.x / (kMaxParts * S::kPartBlocks)); }
  // Tile of a round, of a score warpgroup.
  __device__ __forceinline__ static int own_tile(int round, int score_group) {
    return (round * S::kKeyPlaces + key_place(score_group)) * S::kPartBlocks + place();
  }
  __device__ __forceinline__ static int key_place(int score_group) { return S::kKeyPlaces == 1 ? 0 : score_group; }

 private:
  bool two_items_;
};

// What lies in the places of keys and queries when their scores are there: value columns of a tile,
template <class S>
__device__ __forceinline__ uint8_t* value_place(S& s, int tile) {
  return s.chunk[tile];
}

// and the sums of the other part.
template <class S>
__device__ __forceinline__ float4* received_sums(S& s, int group) {
  static_assert(S::kSumFours * 128 * sizeof(float4) == kChunkBytes);
  return reinterpret_cast<float4*>(s.chunk[kPartTiles + group]);
}

}  // namespace levin::cuda::mla
