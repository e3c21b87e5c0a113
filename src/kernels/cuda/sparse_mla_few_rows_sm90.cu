// sparse_mla over FP8 rows for few query rows, sm_90a. Eight blocks attend with 64 heads of one query row over each 1024 of
// its top-k indices.
//
//   in, out, order, edge  as in sparse_mla_sm90.cuh, and the same bits
//   grid  rows x head groups x 2 parts x 8      cluster  the sixteen blocks of a row and head group
//   block  2 score, 2 value warpgroups; all of them load
//   smem  struct FewRows below: queries and two tiles of keys over the whole depth; in their place later the weights of all
//         sixteen tiles of the part, and a ring of nine tiles of 64 value columns
//   flow  Block c of a part has tiles c and c+8 of its scores and columns 64c .. 64c+63 of its values. All threads: keys of
//         tile c; score warpgroups: queries; value warpgroups: indices, keys of tile c+8, value columns of tiles 0..7 and of
//         tiles 8..15, each. Score warpgroup g: scores of tile c + 8g, whose ceilings go to the eight blocks of the part,
//         then weights, those of the first eight tiles first. The first value warpgroup adds values, tile after tile; the
//         second fills the places that become free. The blocks with the same columns of both parts send each other their
//         sums of 32 of them, and merge those.
//   cost  a block: 72 wgmma m64n64k16 for scores, 64 m64n64k16 for values = 4352 tensor cycles; 148 KB of cache rows and 74
//         KB of queries read; 112 KB of weights and 8 KB of sums sent
//   why   a row takes as long as the longest chain of waits. Here these are: indices, rows, ceilings, weights, sums of the other
//         part; a part's tiles go through them at once. The price is that value columns are read and converted twice,
//         which fills otherwise idle time.
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla_load.cuh"
#include "kernels/cuda/sparse_mla_scores.cuh"
#include "kernels/cuda/sparse_mla_values.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kPartBlocks = 8;
constexpr int kClusterBlocks = kMaxParts * kPartBlocks;
constexpr int kOwnTiles = kPartTiles / kPartBlocks;  // 2
constexpr int kDeepChunks = kLatent / 64 + 1;        // the last one is rope
constexpr int kRopeChunk = kDeepChunks - 1;
constexpr int kBlockColumns = kLatent / kPartBlocks;    // 64, a chunk
constexpr int kBlockFours = kBlockColumns / 8;          // float4 of a thread's sums
constexpr int kSumHeads = kMlaHeadGroup / kPartBlocks;  // whose sums a block adds
constexpr int kSumFours = kBlockFours / kMaxParts;      // of those, the ones that a block of each part merges
constexpr int kValueRing = kDeepChunks;                 // tiles of value columns that are there at the same time
constexpr int kFewRowsThreads = kScoreThreads + kValueThreads;
constexpr int kKeysBarrier = 1;        // named barriers: the queries and the keys of own tile g are there, g + 1
constexpr int kScoresDoneBarrier = 3;  // the first score warpgroup has multiplied its keys
constexpr int kValuesBarrier = 4;      // of the first value warpgroup
static_assert(kOwnTiles == 2 && kMaxParts == 2 && kBlockColumns == 64 && kSumFours == 4);
static_assert(kValueRing > kPartBlocks, "the values of the first eight tiles and one more");

// What a part's values of a head are relative to, and the sums of its weights.
struct alignas(16) PartHead {
  float sum[2];  // of the even and the odd tiles
  int32_t max_bits;
  int32_t unused;
};

struct FewRows {
  alignas(1024) uint8_t query[kDeepChunks][kChunkBytes];  // later weights, weight_chunk(), and received_sums()
  uint8_t key[kOwnTiles][kDeepChunks][kChunkBytes];       // later value_chunk(); weight_chunk(), lane_sums()
  int32_t slot[kMlaPartTopk];
  float bias[kOwnTiles][kTileKeys];            // 0, or -inf for an invalid index
  int32_t ceiling[kPartTiles][kMlaHeadGroup];  // of each tile alone
  PartHead head[kMaxParts][kMlaHeadGroup];
  Mbarrier ceilings_full[kOwnTiles];  // of the first eight tiles, of the others
  Mbarrier weights_full[kPartTiles];
  Mbarrier values_full[kPartBlocks];       // of tiles 8 .. 15
  Mbarrier values_empty[kPartBlocks - 1];  // of tiles 0 .. 6, in whose places those of 9 .. 15 come
  Mbarrier lane_sums_full;
  Mbarrier heads_full;
  Mbarrier others_ready;  // the block with the same columns of the other part can take sums
  Mbarrier sums_full;
};
static_assert(sizeof(FewRows) <= kMaxSharedBytes, "too much shared memory");

// What this block does.
class BlockWork {
 public:
  __device__ __forceinline__ explicit BlockWork(const SparseMla& a) : two_groups_(a.n_heads > kMlaHeadGroup) {}

  __device__ __forceinline__ int64_t row() const { return two_groups_ ? item() / 2 : item(); }
  __device__ __forceinline__ int first_head() const { return two_groups_ ? item() % 2 * kMlaHeadGroup : 0; }
  __device__ __forceinline__ int part() const { return static_cast<int>(blockIdx.x / kPartBlocks % kMaxParts); }
  __device__ __forceinline__ int place() const { return static_cast<int>(blockIdx.x % kPartBlocks); }
  // In the cluster.
  __device__ __forceinline__ static uint32_t rank(int part, int place) { return part * kPartBlocks + place; }

 private:
  __device__ __forceinline__ static int item() { return static_cast<int>(blockIdx.x / kClusterBlocks); }

  bool two_groups_;
};

// What lies in the places of queries and keys when their scores are there. The block's columns of a tile, where the keys of
// its first tile were: when the first score warpgroup is done.
__device__ __forceinline__ uint8_t* value_chunk(FewRows& s, int tile) { return s.key[0][tile % kValueRing]; }

// The weights of a tile, where queries and the keys of the second tile were: when all blocks of the part are done.
__device__ __forceinline__ uint8_t* weight_chunk(FewRows& s, int tile) {
  return tile < kPartBlocks ? s.query[tile] : s.key[1][tile - kPartBlocks];
}

// Sums of weights of kSumHeads heads, four lanes each, of every tile, relative to the running maximum: likewise.
using LaneSums = float[kPartTiles][kSumHeads][4];
__device__ __forceinline__ LaneSums& lane_sums(FewRows& s) {
  return *reinterpret_cast<LaneSums*>(s.key[1][kRopeChunk]);
}
static_assert(sizeof(LaneSums) <= kChunkBytes);

// The sums of the other part: likewise.
__device__ __forceinline__ float4* received_sums(FewRows& s) { return reinterpret_cast<float4*>(s.query[kRopeChunk]); }
static_assert(kSumFours * 128 * sizeof(float4) == kChunkBytes);

// The same as load_16(), but it stays before the next barrier, where others wait.
__device__ __forceinline__ uint4 load_16_now(const uint16_t* from, bool valid) {
  uint4 v{0, 0, 0, 0};
  if (valid)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
  return v;
}

// A score thread's share of the queries, on their way.
struct QueryPieces {
  uint4 latent[16];  // piece t % 64 of heads t / 64, and 4, 8, ... after it
  uint4 rope[2];     // piece t % 8 of head t / 8 and 32 after it

  __device__ __forceinline__ void load(const SparseMla& a, const BlockWork& w) {
    const int t = threadIdx.x;
    const auto* from = static_cast<const uint16_t*>(a.q_latent) + w.row() * a.q_latent_row_stride +
                       (w.first_head() + t / 64) * kLatent + t % 64 * 8;
#pragma unroll
    for (int k = 0; k < 16; ++k)
      latent[k] = load_16_now(from + 4 * k * kLatent, w.first_head() + t / 64 + 4 * k < a.n_heads);
    from = static_cast<const uint16_t*>(a.q_rope) + w.row() * a.q_rope_row_stride + (w.first_head() + t / 8) * kRope +
           t % 8 * 8;
#pragma unroll
    for (int k = 0; k < 2; ++k)
      rope[k] = load_16_now(from + 32 * k * kRope, w.first_head() + t / 8 + 32 * k < a.n_heads);
  }
  __device__ __forceinline__ void store(FewRows& s) const {
    const int t = threadIdx.x;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const uint4& v = latent[k];
      *reinterpret_cast<uint4*>(s.query[t % 64 / 8] + swizzle_128(t / 64 + 4 * k, t % 8 * 16)) = {
          odd_of(v.x, v.y), even_of(v.x, v.y), odd_of(v.z, v.w), even_of(v.z, v.w)};
    }
#pragma unroll
    for (int k = 0; k < 2; ++k)
      *reinterpret_cast<uint4*>(s.query[kRopeChunk] + swizzle_128(t / 8 + 32 * k, t % 8 * 16)) = rope[k];
  }
};

// Sixteen codes of a key, a quarter of a chunk.
__device__ __forceinline__ void put_codes(uint8_t* chunk, int key, int quarter, const uint4& codes, float scale) {
  const uint32_t factor = code_factor(scale);
  uint4 first = convert_8(codes.x, codes.y, factor), second = convert_8(codes.z, codes.w, factor);
  if (scale > kMaxFactorScale) {  // no sane row has such a scale
    const uint32_t rest = power_pair(scale / kMaxFactorScale);
    first = multiply_8(first, rest);
    second = multiply_8(second, rest);
  }
  *reinterpret_cast<uint4*>(chunk + swizzle_128(key, quarter * 32)) = first;
  *reinterpret_cast<uint4*>(chunk + swizzle_128(key, quarter * 32 + 16)) = second;
}

// A row of the cache; without a slot one that is not read.
struct CacheRow {
  using Format = RowFormat<LatentRows::kFp8>;
  const std::byte* row;
  bool valid;

  __device__ __forceinline__ CacheRow(const SparseMla& a, int slot)
      : row(slot_row(a, max(slot, 0), Format::kRowBytes)), valid(slot >= 0) {}
  __device__ __forceinline__ uint4 load(int offset) const { return load_16(row + offset, valid); }
  __device__ __forceinline__ float scale(int i) const {
    return valid ? __ldcg(reinterpret_cast<const float*>(row + Format::kScaleOffset) + i) : 0.0f;
  }
};

// The keys of an own tile, shared by kWarps warps and on their way. A warp has keys one after the other, loads 256 bytes of two
// of them at a time, and writes eight pieces at a time that have a bank each.
template <int kWarps>
struct TileKeys {
  static constexpr int kKeys = kTileKeys / kWarps;  // of a warp
  uint4 codes[kKeys / 2][2];                        // of both halves of the depth
  float scale[kKeys / 2][2];
  uint4 rope[kKeys / 4];

  __device__ __forceinline__ static int pair_key(int warp, int pair) {
    return warp * kKeys + 2 * pair + static_cast<int>(threadIdx.x) / 4 % 2;
  }
  __device__ __forceinline__ static int rope_key(int warp, int i) {
    return warp * kKeys + 4 * i + static_cast<int>(threadIdx.x) % 32 / 8;
  }
  __device__ __forceinline__ void load(const SparseMla& a, const int32_t* slot, int warp) {
    const int chunk = static_cast<int>(threadIdx.x) % 32 / 8, quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int pair = 0; pair < kKeys / 2; ++pair) {
      const CacheRow row(a, slot[pair_key(warp, pair)]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        codes[pair][half] = row.load((half * kChunks + chunk) * 64 + quarter * 16);
        scale[pair][half] = row.scale((half * kChunks + chunk) / 2);
      }
    }
  }
  __device__ __forceinline__ void load_rope(const SparseMla& a, const int32_t* slot, int warp) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      rope[i] = CacheRow(a, slot[rope_key(warp, i)])
                    .load(RowFormat<LatentRows::kFp8>::kRopeOffset + static_cast<int>(threadIdx.x) % 8 * 16);
  }
  __device__ __forceinline__ void put(uint8_t (&key)[kDeepChunks][kChunkBytes], int warp) const {
    const int chunk = static_cast<int>(threadIdx.x) % 32 / 8, quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int pair = 0; pair < kKeys / 2; ++pair) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_codes(key[half * kChunks + chunk], pair_key(warp, pair), quarter, codes[pair][half], scale[pair][half]);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      *reinterpret_cast<uint4*>(key[kRopeChunk] + swizzle_128(rope_key(warp, i), threadIdx.x % 8 * 16)) = rope[i];
  }
};

// The block's value columns of eight tiles, on their way to the warpgroup that puts them. Eight lanes have two neighbouring
// keys, whose pieces have a bank each.
struct ValuePieces {
  uint4 codes[kPartBlocks][2];  // of keys t / 4 and 32 after it
  float scale[kPartBlocks][2];

  __device__ __forceinline__ static int key(int i) { return i * 32 + static_cast<int>(threadIdx.x) % 128 / 4; }
  __device__ __forceinline__ void load(const SparseMla& a, const int32_t* slot, int place) {
    const int column = place * kBlockColumns + static_cast<int>(threadIdx.x) % 4 * 16;
#pragma unroll
    for (int tile = 0; tile < kPartBlocks; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const CacheRow row(a, slot[tile * kTileKeys + key(i)]);
        codes[tile][i] = row.load(column);
        scale[tile][i] = row.scale(column / 128);
      }
    }
  }
  __device__ __forceinline__ void put(uint8_t* chunk, int tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) put_codes(chunk, key(i), threadIdx.x % 4, codes[tile][i], scale[tile][i]);
  }
};

// The slots of the part's top-k indices, by the value threads.
__device__ __forceinline__ void find_slots(FewRows& s, const SparseMla& a, const BlockWork& w) {
  constexpr int kTopk = kMlaPartTopk / kValueThreads;
  const int t = static_cast<int>(threadIdx.x) - kScoreThreads;
  int pick[kTopk];
#pragma unroll
  for (int i = 0; i < kTopk; ++i) {
    const int number = w.part() * kMlaPartTopk + i * kValueThreads + t;
    pick[i] = number < a.n_topk ? a.topk[w.row() * a.n_topk + number] : -1;
  }
  const int32_t* table = a.tables.data != nullptr ? a.tables.data + a.table_row[w.row()] * a.tables.stride : nullptr;
#pragma unroll
  for (int i = 0; i < kTopk; ++i) {
    const int number = i * kValueThreads + t;
    s.slot[number] = topk_slot(pick[i], table);
    const int tile = number / kTileKeys;
    if (tile % kPartBlocks == w.place())
      s.bias[tile / kPartBlocks][number % kTileKeys] = pick[i] >= 0 ? 0.0f : -INFINITY;
  }
}

// The scores of an own tile. The fence: see start_scores().
__device__ __forceinline__ void multiply_tile(float (&score)[32], const FewRows& s, int group) {
  float upper[32];  // over the second half of the depth
  fence_async_shared();
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint64_t query = wgmma_descriptor(s.query[c]), key = wgmma_descriptor(s.key[group][c]);
#pragma unroll
    for (int k = 0; k < 128; k += 32) {
      const uint64_t at = descriptor_step(k), upper_at = at + descriptor_step(kChunks * kChunkBytes);
      Wgmma<64>::bf16<0, 0>(score, query + at, key + at, c > 0 || k > 0);
      Wgmma<64>::bf16<0, 0>(upper, query + upper_at, key + upper_at, c > 0 || k > 0);
    }
  }
  const uint64_t query = wgmma_descriptor(s.query[kRopeChunk]), key = wgmma_descriptor(s.key[group][kRopeChunk]);
#pragma unroll
  for (int k = 0; k < 64; k += 32) {
    const uint64_t at = descriptor_step(k), upper_at = descriptor_step(k + 64);
    Wgmma<64>::bf16<0, 0>(score, query + at, key + at, true);
    Wgmma<64>::bf16<0, 0>(upper, query + upper_at, key + upper_at, true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(score);
  wgmma_touch(upper);
#pragma unroll
  for (int i = 0; i < 32; ++i) score[i] += upper[i];
}

__device__ __forceinline__ int32_t running_max(const FewRows& s, int tile, int head) {
  int32_t maximum = kNoCeiling;
#pragma unroll
  for (int i = 0; i < kPartTiles; ++i)
    if (i <= tile) maximum = max(maximum, s.ceiling[i][head]);
  return maximum;
}

// One of four lanes tells each block of the part a tile's ceilings.
__device__ __forceinline__ void send_ceilings(FewRows& s, const BlockWork& w, int tile, const int32_t (&ceiling)[2]) {
#pragma unroll
  for (int place = static_cast<int>(threadIdx.x % 4); place < kPartBlocks; place += 4) {
    const uint32_t to = w.rank(w.part(), place);
    const uint32_t barrier = cluster_address(s.ceilings_full[tile / kPartBlocks].address(), to);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      cluster_store_async(cluster_address(shared_address(&s.ceiling[tile][own_row() + 8 * h]), to),
                          static_cast<uint32_t>(ceiling[h]), barrier);
  }
}

// A thread's weights of a tile as operands of wgmma, four words for each of four steps, 512 bytes of a warp apart.
__device__ __forceinline__ float4* weight_slot(FewRows& s, int tile) {
  const int t = static_cast<int>(threadIdx.x) % 128;
  return reinterpret_cast<float4*>(weight_chunk(s, tile)) + t / 32 * 128 + t % 32;
}

// A warp's weights of a tile to the blocks of the part, and this lane's sums of them to the blocks that add them.
__device__ __forceinline__ void send_weights(FewRows& s, const BlockWork& w, int tile, const float (&weight)[32],
                                             const float (&sum)[2]) {
  constexpr uint32_t kBytes = 32 * 64;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(weight[8 * k + 2 * i], weight[8 * k + 2 * i + 1]);
      word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    *reinterpret_cast<uint4*>(weight_slot(s, tile) + 32 * k) = {word[0], word[1], word[2], word[3]};
  }
  fence_async_shared();
  __syncwarp();
  if (elect_one()) {
    const uint32_t from = shared_address(weight_chunk(s, tile)) + warp * kBytes;
    for (int i = 1; i < kPartBlocks; ++i) {
      const uint32_t to = w.rank(w.part(), (w.place() + i) % kPartBlocks);
      cluster_copy(cluster_address(from, to), from, kBytes, cluster_address(s.weights_full[tile].address(), to));
    }
  }
  __syncwarp();
  s.weights_full[tile].arrive();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t rank = w.rank(w.part(), 2 * warp + h);
    cluster_store_async(cluster_address(shared_address(&lane_sums(s)[tile][lane / 4][lane % 4]), rank),
                        __float_as_uint(sum[h]), cluster_address(s.lane_sums_full.address(), rank));
  }
}
static_assert(kSumHeads == 8, "half the heads of a warp");

// The sums of the part for kSumHeads heads, to all blocks of the cluster. Of kAddThreads threads, thread t has lane t % 4 of
// the even or the odd tiles of a head.
constexpr int kAddThreads = kSumHeads * 8;
__device__ __forceinline__ void add_sums(FewRows& s, const BlockWork& w) {
  const int t = static_cast<int>(threadIdx.x) % 128, parity = t / 4 % 2, own = t / 8;
  const int head = w.place() * kSumHeads + own;
  s.lane_sums_full.wait(0);
  float sum = 0;
  int32_t maximum = kNoCeiling, sum_max = kNoCeiling;
#pragma unroll
  for (int tile = 0; tile < kPartTiles; ++tile) {
    maximum = max(maximum, s.ceiling[tile][head]);
    if (tile % 2 != parity) continue;
    sum = fmaf(sum, power_of_two(sum_max - maximum), lane_sums(s)[tile][own][t % 4]);
    sum_max = maximum;
  }
  sum *= power_of_two(sum_max - maximum);
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  sum += __shfl_xor_sync(0xffffffff, sum, 2);
  const float other = __shfl_xor_sync(0xffffffff, sum, 4);
  const float4 message{parity == 0 ? sum : other, parity == 0 ? other : sum, __int_as_float(maximum), 0};
#pragma unroll
  for (uint32_t to = t % 8; to < kClusterBlocks; to += 8)
    cluster_store_async(cluster_address(shared_address(&s.head[w.part()][head]), to), message,
                        cluster_address(s.heads_full.address(), to));
}

// From queries and keys to the weights of a tile, which are sent.
__device__ __forceinline__ void score_role(FewRows& s, const SparseMla& a, const BlockWork& w, float scale_log2) {
  const int group = warp_index() / 4, tile = group * kPartBlocks + w.place();
  {
    QueryPieces query;
    TileKeys<kFewRowsThreads / 32> keys;
    query.load(a, w);
    __syncthreads();  // slots are known
    keys.load(a, s.slot + w.place() * kTileKeys, warp_index());
    keys.load_rope(a, s.slot + w.place() * kTileKeys, warp_index());
    query.store(s);
    keys.put(s.key[0], warp_index());
  }
  named_barrier_arrive(kKeysBarrier + 1 - group, kFewRowsThreads);
  named_barrier(kKeysBarrier + group, kFewRowsThreads);
  float score[32];
  multiply_tile(score, s, group);
  if (group == 0) named_barrier_arrive(kScoresDoneBarrier, 128 + kValueThreads);
  int32_t maximum[2];
  const bool some_invalid = s.slot[tile * kTileKeys + kTileKeys - 1] < 0;
  find_ceilings(score, maximum, some_invalid ? s.bias[group] : nullptr, scale_log2);
  cluster_wait();  // all blocks have begun
  send_ceilings(s, w, tile, maximum);
  s.ceilings_full[0].wait(0);
  if (group == 1) s.ceilings_full[1].wait(0);
#pragma unroll
  for (int h = 0; h < 2; ++h) maximum[h] = running_max(s, tile, own_row() + 8 * h);
  float sum[2] = {0, 0};
  int32_t sum_max[2] = {maximum[0], maximum[1]};
  weigh(sum, sum_max, score, maximum, scale_log2);
  s.ceilings_full[1].wait(0);  // queries and second tiles are not needed in any block of the part
  if (threadIdx.x == 0) cluster_arrive_relaxed(s.others_ready, w.rank(1 - w.part(), w.place()));
  __syncwarp();
  send_weights(s, w, tile, score, sum);
  if (warp_index() < kAddThreads / 32) add_sums(s, w);
  cluster_arrive_shared();
  cluster_wait();  // nobody leaves while others copy from here
}

// The factors that bring the values so far to the running maximum of a tile.
__device__ __forceinline__ void read_factors(const FewRows& s, int tile, int32_t (&maximum)[2], float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t before = maximum[h];
    maximum[h] = max(before, s.ceiling[tile][own_row() + 8 * h]);
    factor[h] = power_of_two(before - maximum[h]);
  }
}

// Starts acc += weights x values for one tile, while those of the tile before are still added.
__device__ __forceinline__ void add_tile(FewRows& s, float (&acc)[4 * kBlockFours], uint32_t (&weight)[16],
                                         const float (&factor)[2], int tile, const uint8_t* values) {
  s.weights_full[tile].wait(0);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 v = load_shared_float4(weight_slot(s, tile) + 32 * k);
    weight[4 * k] = __float_as_uint(v.x);
    weight[4 * k + 1] = __float_as_uint(v.y);
    weight[4 * k + 2] = __float_as_uint(v.z);
    weight[4 * k + 3] = __float_as_uint(v.w);
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
    wgmma_wait<0>();
    wgmma_touch(acc);
#pragma unroll
    for (int i = 0; i < 4 * kBlockFours; ++i) acc[i] *= factor[i / 2 % 2];
  }
  const uint64_t value = wgmma_descriptor_mn_major(values, kChunkBytes);
  wgmma_touch(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {weight[4 * k], weight[4 * k + 1], weight[4 * k + 2], weight[4 * k + 3]};
    Wgmma<64>::bf16<1>(acc, operand, value + descriptor_step(2048 * k), true);
  }
  wgmma_commit();
}

// The part's sums of the block's columns.
__device__ __forceinline__ void add_part(FewRows& s, float (&acc)[4 * kBlockFours]) {
  uint32_t weight[2][16];
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
  float factor[2];
#pragma unroll
  for (float& v : acc) v = 0;
#pragma unroll 1
  for (int tile = 0; tile < kPartTiles; tile += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = tile + i, before = own - 1;
      read_factors(s, own, maximum, factor);
      if (own >= kPartBlocks) s.values_full[own - kPartBlocks].wait(0);
      add_tile(s, acc, weight[i], factor, own, value_chunk(s, own));
      wgmma_wait<1>();
      if (before >= 0 && before < kPartBlocks - 1) s.values_empty[before].arrive_as_warp();
      __syncwarp();
    }
  }
  wgmma_wait<0>();
  wgmma_touch(acc);
}

__device__ __forceinline__ void send_sums(FewRows& s, uint32_t rank, const float4 (&value)[kSumFours]) {
  const uint32_t to = cluster_address(shared_address(received_sums(s) + threadIdx.x % 128), rank);
  const uint32_t barrier = cluster_address(s.sums_full.address(), rank);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) cluster_store_async(to + j * 128 * 16, value[j], barrier);
}

// The sums that the other part's block merges go there; this block's own come to `own`. Part p has a thread's float4 4p ..
// 4p+3.
__device__ __forceinline__ void exchange_sums(FewRows& s, const BlockWork& w, const float (&acc)[4 * kBlockFours],
                                              float4 (&own)[kSumFours]) {
  s.others_ready.wait(0);
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    const float* from = acc + 4 * kSumFours * part;
    float4 value[kSumFours];
#pragma unroll
    for (int j = 0; j < kSumFours; ++j) value[j] = {from[4 * j], from[4 * j + 1], from[4 * j + 2], from[4 * j + 3]};
    if (part == w.part()) {
#pragma unroll
      for (int j = 0; j < kSumFours; ++j) own[j] = value[j];
    } else {
      send_sums(s, w.rank(part, w.place()), value);
    }
  }
}

// The columns of a block and part.
__device__ __forceinline__ void store_columns(const SparseMla& a, const BlockWork& w, const float4 (&value)[kSumFours],
                                              const float (&inverse)[2]) {
  const int first_column = w.place() * kBlockColumns + w.part() * (kBlockColumns / kMaxParts);
  if (!a.out_f32) return store_32_columns(a, w, first_column, value, inverse);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) store_output<LatentRows::kFp8, true>(a, w, first_column, j, value[j], inverse);
}

// Merges this block's share of the columns over the parts, ascending, and writes it.
__device__ __forceinline__ void write_own_columns(FewRows& s, const SparseMla& a, const BlockWork& w,
                                                  const float4 (&own)[kSumFours]) {
  float sum[2][2] = {{0, 0}, {0, 0}};  // even and odd tiles of both rows
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
  MergeFactors f[kMaxParts][2];
  s.heads_full.wait(0);
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PartHead& head = s.head[part][own_row() + 8 * h];
      f[part][h] = merge_factors(maximum[h], head.max_bits);
#pragma unroll
      for (int parity = 0; parity < 2; ++parity)
        sum[h][parity] = fmaf(head.sum[parity], f[part][h].part, sum[h][parity] * f[part][h].total);
    }
  }
  const float inverse[2] = {invert_sum(sum[0][0], sum[0][1]), invert_sum(sum[1][0], sum[1][1])};
  float4 value[kSumFours];
  s.sums_full.wait(0);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) {
    value[j] = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      const float4 v = part == w.part() ? own[j] : received_sums(s)[j * 128 + threadIdx.x % 128];
      const float of_part[4] = {v.x, v.y, v.z, v.w};
      value[j] = merge_four(of_part, 0, f[part], value[j]);
    }
  }
  store_columns(a, w, value, inverse);
}

// The block's columns of tiles 8 .. 15, each when its place in the ring is free.
__device__ __forceinline__ void put_last_values(FewRows& s, const ValuePieces& values) {
#pragma unroll
  for (int i = 0; i < kPartBlocks; ++i) {
    if (i > 0) s.values_empty[i - 1].wait(0);
    values.put(value_chunk(s, kPartBlocks + i), i);
    fence_async_shared();
    s.values_full[i].arrive();
  }
  __syncwarp();
}

__device__ __forceinline__ void value_role(FewRows& s, const SparseMla& a, const BlockWork& w) {
  constexpr int kWarps = kFewRowsThreads / 32, kValueWarps = kValueThreads / 32, kOtherWarps = kWarps - kValueWarps;
  const int warp = warp_index(), group = (warp - kOtherWarps) / 4;
  find_slots(s, a, w);
  __syncthreads();
  {
    TileKeys<kWarps> first;
    TileKeys<kValueWarps> second;
    const int32_t* first_slot = s.slot + w.place() * kTileKeys;
    const int32_t* second_slot = first_slot + kPartBlocks * kTileKeys;
    first.load(a, first_slot, warp);
    first.load_rope(a, first_slot, warp);
    second.load(a, second_slot, warp - kOtherWarps);
    first.put(s.key[0], warp);
    named_barrier_arrive(kKeysBarrier, kFewRowsThreads);
    second.load_rope(a, second_slot, warp - kOtherWarps);  // there were no registers for it
    second.put(s.key[1], warp - kOtherWarps);
    named_barrier_arrive(kKeysBarrier + 1, kFewRowsThreads);
  }
  ValuePieces values;
  if (group == 0) {
    values.load(a, s.slot, w.place());
    named_barrier(kScoresDoneBarrier, 128 + kValueThreads);
#pragma unroll
    for (int tile = 0; tile < kPartBlocks; ++tile) values.put(value_chunk(s, tile), tile);
    cluster_wait();  // all blocks have begun
    named_barrier(kValuesBarrier, 128);
    fence_async_shared();
    for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.wait(0);
    float acc[4 * kBlockFours];
    float4 own[kSumFours];
    add_part(s, acc);
    cluster_arrive_shared();
    exchange_sums(s, w, acc, own);
    write_own_columns(s, a, w, own);
  } else {
    named_barrier(kScoresDoneBarrier, 128 + kValueThreads);
    values.load(a, s.slot + kPartBlocks * kTileKeys, w.place());  // no earlier: those of the first tiles are waited for
    put_last_values(s, values);
    cluster_wait();  // all blocks have begun
    cluster_arrive_shared();
  }
  cluster_wait();  // nobody leaves while others copy from here
}

__device__ __forceinline__ void init_barriers(FewRows& s) {
  s.lane_sums_full.init(1);
  s.heads_full.init(1);
  s.sums_full.init(1);
  s.others_ready.init(kMaxParts - 1);
  for (Mbarrier& full : s.values_full) full.init(128);
  for (Mbarrier& empty : s.values_empty) empty.init(4 * kWarpArrivals);
  for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.init(1);
  const int place = static_cast<int>(blockIdx.x % kPartBlocks);
  for (int tile = 0; tile < kPartTiles; ++tile) s.weights_full[tile].init(tile % kPartBlocks == place ? 128 : 1);
  fence_barrier_init();
  for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.arrive_expect_bytes(sizeof(s.ceiling) / kOwnTiles);
  s.lane_sums_full.arrive_expect_bytes(sizeof(LaneSums));
  s.heads_full.arrive_expect_bytes(sizeof(s.head));
  s.sums_full.arrive_expect_bytes((kMaxParts - 1) * kChunkBytes);
  for (int tile = 0; tile < kPartTiles; ++tile)
    if (tile % kPartBlocks != place) s.weights_full[tile].arrive_expect_bytes(kChunkBytes);
}

__global__ void __launch_bounds__(kFewRowsThreads, 1)
    few_rows_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  FewRows& s = *reinterpret_cast<FewRows*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  __syncwarp();
  cluster_arrive_shared();
  launch_dependents();
  grid_dependency_wait();
  const BlockWork w(a);
  if (warp_index() < kScoreThreads / 32)
    score_role(s, a, w, scale_log2);
  else
    value_role(s, a, w);
}

Launch launch_of(int64_t n_items, StreamHandle stream) {
  return {.grid = {static_cast<unsigned>(n_items * kClusterBlocks)},
          .block = {kFewRowsThreads},
          .shared_bytes = sizeof(FewRows),
          .cluster = kClusterBlocks,
          .pdl = true,
          .stream = stream};
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

int few_rows_at_once() {
  static PerDevice counts;
  return counts.get(
      [] { return clusters_at_once(reinterpret_cast<const void*>(mla::few_rows_kernel), mla::launch_of(1, nullptr)); });
}

void launch_sparse_mla_few_rows(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_items = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup);
  launch_kernel(mla::few_rows_kernel, mla::launch_of(n_items, stream), a, a.scale * kLog2E);
}

}  // namespace levin::cuda
