// sparse_mla over FP8 rows for few query rows, sm_90a. P blocks, eight or four, attend with 64 heads of one query row over each
// 1024 of its top-k indices.
//
//   in, out, order, edge  as in bf16_sm90.cu, and the same bits
//   grid  rows x head groups x 2 parts x P      cluster  the 2 P blocks of a row and head group
//   block  2 score, 2 value warpgroups; all of them load
//   smem  struct FewRows (few_rows.cuh): queries and two tiles of keys over the whole depth; in their place later the weights of all
//         sixteen tiles of the part, and a ring of tiles of value columns
//   flow  Block c of a part has the scores of tiles c, c+P, c+2P, ... and 512 / P columns of its values. Queries: each block
//         asks for a share, which comes to all blocks of the cluster. Keys: those of the first tile by all threads, others by
//         the value warpgroups. Score warpgroup g: scores of every other own tile, whose ceilings go to the blocks of the
//         part; then weights, by way of L2, where one copy brings them to all of these blocks. An adder, one or two value
//         warpgroups, adds values to 64 columns, tile after tile, and puts its first tiles of them in place itself; the
//         others it gets from the second value warpgroup or from score warpgroups, which have nothing else to do by then.
//         The blocks with the same columns of both parts send each other their sums of half of them, and merge those.
//   cost  P = 8, a block: 72 wgmma m64n64k16 for scores, 64 m64n64k16 for values = 4352 tensor cycles; 148 KB of cache rows
//         and 5 KB of queries read, 69 KB of queries and 112 KB of weights received; 8 KB of sums sent
//   why   a row takes as long as the longest chain of waits. Here these are: indices, rows, ceilings, weights, sums of the other
//         part; a part's tiles go through them at once. The price is that value columns are read and converted twice,
//         which fills otherwise idle time. What many blocks need goes by way of L2: an SM sends about 20 bytes a cycle to
//         others, and seven copies of a tile's weights took longer than all their products. Each scheduler has four warps, of
//         which one or two have something to do, and a warp takes about five cycles for an instruction: their number counts.
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/few_rows.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {
namespace {

template <class S>
__device__ __forceinline__ RawQueries& raw_queries(S& s) {
  return *reinterpret_cast<RawQueries*>(s.query);
}

template <class S>
__device__ __forceinline__ int query_heads(const SparseMla& a, const BlockWork<S>& w) {
  return min(kMlaHeadGroup, a.n_heads - w.first_head());
}

// Every block asks for a few heads' queries on behalf of all blocks of the cluster.
template <class S>
__device__ __forceinline__ void ask_for_queries(S& s, const SparseMla& a, const BlockWork<S>& w) {
  constexpr auto kAllBlocks = static_cast<uint16_t>((1u << S::kClusterBlocks) - 1);
  const int head = static_cast<int>(cluster_rank()) * S::kQueryHeads;
  ask_for_queries(raw_queries(s), a, w.row(), w.first_head(), head, min(S::kQueryHeads, query_heads(a, w) - head),
                  s.query_full, kAllBlocks);
}

// The first value column of an adder.
template <class S>
__device__ __forceinline__ int first_column(const BlockWork<S>& w, int adder) {
  return w.place() * S::kBlockColumns + adder * kAdderColumns;
}

// The maxima of this thread's heads after own tile i, of ceilings as they come.
template <class S>
__device__ __forceinline__ void find_running_max(const S& s, int tile, int i, int32_t (&maximum)[2]) {
  maximum[0] = maximum[1] = kNoCeiling;
#pragma unroll 1
  for (int before = 0; before <= i; ++before) {
    s.ceilings_full[before].wait(0);
#pragma unroll
    for (int j = 0; j < S::kPartBlocks; ++j) {
      const int other = before * S::kPartBlocks + j;
      if (other > tile) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[h] = max(maximum[h], s.ceiling[other][head_row() + 8 * h]);
    }
  }
}

// One of four lanes tells each block of the part a tile's ceilings.
template <class S>
__device__ __forceinline__ void send_ceilings(S& s, const BlockWork<S>& w, int tile, const int32_t (&ceiling)[2]) {
#pragma unroll
  for (int i = 0; i < S::kPartBlocks; i += 4) {
    const uint32_t to = w.rank(w.part(), i + threadIdx.x % 4);
    const uint32_t barrier = cluster_address(s.ceilings_full[tile / S::kPartBlocks].address(), to);
    const uint32_t at = cluster_address(shared_address(&s.ceiling[tile][head_row()]), to);
#pragma unroll
    for (int h = 0; h < 2; ++h) cluster_store_async(at + h * 8 * 4, static_cast<uint32_t>(ceiling[h]), barrier);
  }
}

// A thread's weights of a tile as operands of wgmma, four words for each of four steps, 512 bytes of a warp apart.
template <class S>
__device__ __forceinline__ const float4* weight_slot(S& s, int tile) {
  const unsigned t = threadIdx.x % 128;
  return reinterpret_cast<const float4*>(weight_chunk(s, tile)) + t / 32 * 128 + t % 32;
}

// The same in scratch memory, where weights pass through.
template <class S>
__device__ __forceinline__ std::byte* passing_weights(const SparseMla& a, const BlockWork<S>& w, int tile) {
  return a.scratch + kMlaCounterBytes +
         (int64_t{w.item()} * kMaxParts * kPartTiles + w.part() * kPartTiles + tile) * kChunkBytes +
         threadIdx.x / 32 % 4 * kWeightBytes;
}

template <class S>
__device__ __forceinline__ void store_weights(const SparseMla& a, const BlockWork<S>& w, int tile,
                                              const float (&weight)[32]) {
  auto* to = reinterpret_cast<uint4*>(passing_weights(a, w, tile)) + threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(weight[8 * k + 2 * i], weight[8 * k + 2 * i + 1]);
      word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    to[32 * k] = {word[0], word[1], word[2], word[3]};
  }
  fence_async_global();
  __syncwarp();
}

// A warp's weights of a tile from scratch memory to all blocks of the part, and this lane's sums of them to the blocks that add
// them.
template <class S>
__device__ __forceinline__ void send_weights(S& s, const SparseMla& a, const BlockWork<S>& w, int tile,
                                             const float (&sum)[2]) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (elect_one())
    bulk_load_multicast(weight_chunk(s, tile) + warp * kWeightBytes, passing_weights(a, w, tile), kWeightBytes,
                        s.weights_full[tile],
                        static_cast<uint16_t>(((1u << S::kPartBlocks) - 1) << w.rank(w.part(), 0)));
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned head = 16 * warp + lane / 4 + 8 * h;
    const uint32_t to = w.rank(w.part(), head / S::kSumHeads);
    cluster_store_async(cluster_address(shared_address(&lane_sums(s)[tile][head % S::kSumHeads][lane % 4]), to),
                        __float_as_uint(sum[h]), cluster_address(s.lane_sums_full.address(), to));
  }
}

// The sums of the part for kSumHeads heads, to all blocks of the cluster. Of the first threads, eight to a head, thread t has
// lane t % 4 of the even or the odd tiles of a head.
template <class S>
__device__ __forceinline__ void add_sums(S& s, const BlockWork<S>& w) {
  const unsigned t = threadIdx.x, parity = t / 4 % 2, own = t / 8;
  const int head = w.place() * S::kSumHeads + own;
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
  for (uint32_t to = t % 8; to < S::kClusterBlocks; to += 8)
    cluster_store_async(cluster_address(shared_address(&s.head[w.part()][head]), to), message,
                        cluster_address(s.heads_full.address(), to));
}

// An adder's columns of kTiles tiles from `first` on, by a warpgroup; each is put when before_put(tile) returns. A loop rather
// than all tiles one after the other: instructions would have to be fetched, which takes longer than they do.
template <int kTiles, class S, class Before, class After>
__device__ __forceinline__ void put_values(S& s, const SparseMla& a, const BlockWork<S>& w, int adder, int first,
                                           const Before& before_put, const After& after_put) {
  static_assert(kTiles % kTilesAhead == 0);
  ValuePieces<kAdderColumns, kTilesAhead> values;
#pragma unroll
  for (int i = 0; i < kTilesAhead; ++i) values.load(a, s.slot + (first + i) * kTileKeys, first_column(w, adder), i);
#pragma unroll 1
  for (int tile = first; tile < first + kTiles; tile += kTilesAhead) {
#pragma unroll
    for (int i = 0; i < kTilesAhead; ++i) {
      before_put(tile + i);
      values.put(value_chunk(s, adder, tile + i), i);
      after_put(tile + i);
      if (tile + kTilesAhead < first + kTiles)
        values.load(a, s.slot + (tile + kTilesAhead + i) * kTileKeys, first_column(w, adder), i);
    }
  }
  __syncwarp();
}

// Those after its first ones, each when its place in the ring is free. Who reads them puts the fence: here it would wait for
// the loads of later tiles.
template <class S, class Meanwhile>
__device__ __forceinline__ void put_later_values(S& s, const SparseMla& a, const BlockWork<S>& w, int adder,
                                                 const Meanwhile& meanwhile) {
  put_values<kLaterTiles>(
      s, a, w, adder, kFirstTiles,
      [&](int tile) {
        if (tile == kFirstTiles) meanwhile();
        if (tile >= S::kValueRing) s.values_empty[adder][tile - S::kValueRing].wait(0);
      },
      [&](int tile) { s.values_full[adder][tile - kFirstTiles].arrive(); });
}

// Scores of own tile i and their ceilings, which are sent.
template <class S>
__device__ __forceinline__ void score_tile(S& s, const BlockWork<S>& w, float (&score)[32], int i, float scale_log2) {
  const int group = warp_index() / 4, tile = i * S::kPartBlocks + w.place();
  if (i < 2)
    s.keys_full.arrive_and_wait(group, 0);
  else
    s.later_keys_full.arrive_and_wait(group, i / 2 - 1);
  multiply_tile(score, s.query, s.key[group]);
  if (i < S::kOwnTiles - 1) s.scores_done.arrive(group);
  drop_invalid(s.slot + tile * kTileKeys, score);
  int32_t ceiling[2];
  find_ceilings(score, ceiling, nullptr, scale_log2);
  send_ceilings(s, w, tile, ceiling);
}

// A lane's sums of own weights, for each round.
template <class S>
using WeightSums = float[S::kRounds][2];

// Scores of own tile i to its weights in scratch memory, when all ceilings before are known.
template <class S>
__device__ __forceinline__ void weigh_tile(S& s, const SparseMla& a, const BlockWork<S>& w, float (&score)[32],
                                           WeightSums<S>& sums, int i, float scale_log2) {
  const int tile = i * S::kPartBlocks + w.place();
  int32_t maximum[2];
  find_running_max(s, tile, i, maximum);
  int32_t sum_max[2] = {maximum[0], maximum[1]};
  float own[2] = {0, 0};
  weigh(own, sum_max, score, maximum, scale_log2);
#pragma unroll
  for (int r = 0; r < S::kRounds; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sums[r][h] = r == i / 2 ? own[h] : sums[r][h];
  }
  store_weights(a, w, tile, score);
}

// Once all ceilings of a part are known, its queries and keys have been read and others take their places. racecheck does not
// follow the stores between blocks that tell them; for it all threads of the cluster meet there.
__device__ __forceinline__ void meet_for_racecheck() {
  if constexpr (kForRacecheck) cluster_sync();
}

// From queries and keys to the weights of own tiles, which are sent.
template <class S>
__device__ __forceinline__ void score_role(S& s, const SparseMla& a, const BlockWork<S>& w, float scale_log2) {
  const int group = warp_index() / 4;
  {
    TileKeys<kFewRowsThreads / 32> keys;
    keys.load(a, s.slot + w.place() * kTileKeys, warp_index());
    keys.load_rope(a, s.slot + w.place() * kTileKeys, warp_index());
    s.query_full.wait(0);
    arrange_queries(s.query, kQueryBarrier);
    keys.put(s.key[0], warp_index());
  }
  s.keys_full.arrive(1 - group);
  float last[32];
  WeightSums<S> sums = {};
#pragma unroll 1
  for (int r = 0; r < S::kRounds; ++r) {  // scores of a round, then the weights of the one before
    float score[32];
    score_tile(s, w, score, 2 * r + group, scale_log2);
    if (r > 0) weigh_tile(s, a, w, last, sums, 2 * r - 2 + group, scale_log2);
#pragma unroll
    for (int i = 0; i < 32; ++i) last[i] = score[i];
  }
  weigh_tile(s, a, w, last, sums, S::kOwnTiles - 2 + group, scale_log2);
  const auto send = [&] {
    s.ceilings_full[S::kOwnTiles - 1].wait(0);  // queries and keys are not needed in any block of the part
    meet_for_racecheck();
#pragma unroll
    for (int r = 0; r < S::kRounds; ++r) send_weights(s, a, w, (2 * r + group) * S::kPartBlocks + w.place(), sums[r]);
    if (warp_index() < S::kSumHeads / 4) add_sums(s, w);
  };
  if constexpr (S::kAdders == 2)
    put_later_values(s, a, w, group, send);
  else
    send();
}

// The factors that bring the values so far to the running maximum of a tile.
template <class S>
__device__ __forceinline__ void read_factors(const S& s, int tile, int32_t (&maximum)[2], float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t before = maximum[h];
    maximum[h] = max(before, s.ceiling[tile][head_row() + 8 * h]);
    factor[h] = power_of_two(before - maximum[h]);
  }
}

// Starts acc += weights x values for one tile, while those of the tile before are still added. The low word of a descriptor
// steps by itself: an addition of both takes four instructions more, and with one warp on each scheduler they count.
template <class S>
__device__ __forceinline__ void add_tile(S& s, float (&acc)[4 * kAdderFours], uint32_t (&weight)[16],
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
    for (int i = 0; i < 4 * kAdderFours; ++i) acc[i] *= factor[i / 2 % 2];
  }
  const auto value = static_cast<uint32_t>(wgmma_descriptor_mn_major(values, kChunkBytes));
  constexpr uint32_t kHigh = descriptor_high();
  wgmma_touch(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {weight[4 * k], weight[4 * k + 1], weight[4 * k + 2], weight[4 * k + 3]};
    Wgmma<kAdderColumns>::bf16<1>(
        acc, operand, join_descriptor(value + static_cast<uint32_t>(descriptor_step(2048 * k)), kHigh), true);
  }
  wgmma_commit();
}

// The part's sums of an adder's columns.
template <class S>
__device__ __forceinline__ void add_part(S& s, const BlockWork<S>& w, int adder, float (&acc)[4 * kAdderFours]) {
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
      if (own >= kFirstTiles) {
        s.values_full[adder][own - kFirstTiles].wait(0);
        fence_async_shared();
      }
      add_tile(s, acc, weight[i], factor, own, value_chunk(s, adder, own));
      wgmma_wait<1>();
      if (before >= 0 && before < kPartTiles - S::kValueRing) s.values_empty[adder][before].arrive_as_warp();
      if (own == kReadyTile && elect_one()) cluster_arrive_relaxed(s.others_ready, w.rank(1 - w.part(), w.place()));
      __syncwarp();
    }
  }
  wgmma_wait<0>();
  wgmma_touch(acc);
}

template <class S>
__device__ __forceinline__ void send_sums(S& s, int adder, uint32_t rank, const float4 (&value)[kSumFours]) {
  const uint32_t to = cluster_address(shared_address(received_sums(s, adder) + threadIdx.x % 128), rank);
  const uint32_t barrier = cluster_address(s.sums_full[adder].address(), rank);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) cluster_store_async(to + j * 128 * 16, value[j], barrier);
}

// The sums that the other part's block merges go there; this block's own come to `own`. Part p has a thread's float4 4p ..
// 4p+3.
template <class S>
__device__ __forceinline__ void exchange_sums(S& s, const BlockWork<S>& w, int adder,
                                              const float (&acc)[4 * kAdderFours], float4 (&own)[kSumFours]) {
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
      send_sums(s, adder, w.rank(part, w.place()), value);
    }
  }
}

// The columns of a block and part.
template <class S>
__device__ __forceinline__ void store_columns(const SparseMla& a, const BlockWork<S>& w, int adder,
                                              const float4 (&value)[kSumFours], const float (&inverse)[2]) {
  const int column = first_column(w, adder) + w.part() * (kAdderColumns / kMaxParts);
  if (!a.out_f32) return store_32_columns(a, w, column, value, inverse);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) store_output<LatentRows::kFp8, true>(a, w, column, j, value[j], inverse);
}

// Merges this block's share of the columns over the parts, ascending, and writes it.
template <class S>
__device__ __forceinline__ void write_own_columns(S& s, const SparseMla& a, const BlockWork<S>& w, int adder,
                                                  const float4 (&own)[kSumFours]) {
  float sum[2][2] = {{0, 0}, {0, 0}};  // even and odd tiles of both rows
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
  MergeFactors f[kMaxParts][2];
  s.heads_full.wait(0);
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PartHead& head = s.head[part][head_row() + 8 * h];
      f[part][h] = merge_factors(maximum[h], head.max_bits);
#pragma unroll
      for (int parity = 0; parity < 2; ++parity)
        sum[h][parity] = fmaf(head.sum[parity], f[part][h].part, sum[h][parity] * f[part][h].total);
    }
  }
  const float inverse[2] = {invert_sum(sum[0][0], sum[0][1]), invert_sum(sum[1][0], sum[1][1])};
  float4 value[kSumFours];
  s.sums_full[adder].wait(0);
#pragma unroll
  for (int j = 0; j < kSumFours; ++j) {
    value[j] = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      const float4 v = part == w.part() ? own[j] : received_sums(s, adder)[j * 128 + threadIdx.x % 128];
      const float of_part[4] = {v.x, v.y, v.z, v.w};
      value[j] = merge_four(of_part, 0, f[part], value[j]);
    }
  }
  store_columns(a, w, adder, value, inverse);
}

// Keys of own tile i, shared by the value warps and on their way.
using ValueWarpsKeys = TileKeys<kValueThreads / 32>;

template <class S>
__device__ __forceinline__ const uint32_t* own_slots(const S& s, const BlockWork<S>& w, int i) {
  return s.slot + (i * S::kPartBlocks + w.place()) * kTileKeys;
}

// The keys of own tiles after the second, each where those of the tile two before were.
template <class S>
__device__ __forceinline__ void put_later_keys(S& s, const SparseMla& a, const BlockWork<S>& w, int warp,
                                               ValueWarpsKeys& even) {
  ValueWarpsKeys odd;
  even.load_rope(a, own_slots(s, w, 2), warp);
  odd.load(a, own_slots(s, w, 3), warp);
#pragma unroll 1
  for (int i = 2; i < S::kOwnTiles; i += 2) {
    const bool last = i + 2 == S::kOwnTiles;
    s.scores_done.arrive_and_wait(0, i / 2 - 1);
    s.keys_full.show_passed(0, 0);
    even.put(s.key[0], warp);
    s.later_keys_full.arrive(0);
    odd.load_rope(a, own_slots(s, w, i + 1), warp);
    if (!last) even.load(a, own_slots(s, w, i + 2), warp);
    s.scores_done.arrive_and_wait(1, i / 2 - 1);
    s.keys_full.show_passed(1, 0);
    odd.put(s.key[1], warp);
    s.later_keys_full.arrive(1);
    if (last) break;
    even.load_rope(a, own_slots(s, w, i + 2), warp);
    odd.load(a, own_slots(s, w, i + 3), warp);
  }
}

// Until the first score warpgroup has multiplied its last keys, by the value warps.
template <class S>
__device__ __forceinline__ void wait_for_first_keys(S& s) {
  s.scores_done.arrive_and_wait(0, S::kRounds - 1);
  s.keys_full.show_passed(0, 0);
  if constexpr (S::kRounds > 1) s.later_keys_full.show_passed(0, S::kRounds - 2);
}

// An adder: its first values, the sums of the part, and the merge.
template <class S>
__device__ __forceinline__ void add_role(S& s, const SparseMla& a, const BlockWork<S>& w, int adder) {
  put_values<kFirstTiles>(
      s, a, w, adder, 0,
      [&](int tile) {
        if (tile == 0) wait_for_first_keys(s);
      },
      [](int) {});
  named_barrier(kValuesBarrier + adder, 128);
  fence_async_shared();
  for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.wait(0);
  meet_for_racecheck();
  float acc[4 * kAdderFours];
  float4 own[kSumFours];
  add_part(s, w, adder, acc);
  exchange_sums(s, w, adder, acc, own);
  write_own_columns(s, a, w, adder, own);
}

template <class S>
__device__ __forceinline__ void value_role(S& s, const SparseMla& a, const BlockWork<S>& w) {
  constexpr int kWarps = kFewRowsThreads / 32, kValueWarps = kValueThreads / 32, kOtherWarps = kWarps - kValueWarps;
  const int warp = warp_index() - kOtherWarps, group = warp / 4;
  ValueWarpsKeys third;
  {
    TileKeys<kWarps> first;
    ValueWarpsKeys second;
    first.load(a, own_slots(s, w, 0), warp_index());
    first.load_rope(a, own_slots(s, w, 0), warp_index());
    second.load(a, own_slots(s, w, 1), warp);
    second.load_rope(a, own_slots(s, w, 1), warp);
    first.put(s.key[0], warp_index());
    s.keys_full.arrive(0);
    if constexpr (S::kRounds > 1) third.load(a, own_slots(s, w, 2), warp);
    second.put(s.key[1], warp);
    s.keys_full.arrive(1);
  }
  if constexpr (S::kRounds > 1) put_later_keys(s, a, w, warp, third);
  if (S::kAdders == 2 || group == 0) {
    add_role(s, a, w, S::kAdders == 2 ? group : 0);
  } else {
    wait_for_first_keys(s);  // no earlier: values of the first tiles are waited for
    meet_for_racecheck();
    put_later_values(s, a, w, 0, [] {});
  }
}

template <class S>
__device__ __forceinline__ void init_barriers(S& s, const SparseMla& a, const BlockWork<S>& w) {
  s.query_full.init(1);
  s.lane_sums_full.init(1);
  s.heads_full.init(1);
  s.others_ready.init(4 * S::kAdders);
  for (int adder = 0; adder < S::kAdders; ++adder) {
    s.sums_full[adder].init(1);
    for (Mbarrier& full : s.values_full[adder]) full.init(128);
    for (Mbarrier& empty : s.values_empty[adder]) empty.init(4 * kWarpArrivals);
  }
  for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.init(1);
  for (Mbarrier& weights_full : s.weights_full) weights_full.init(1);
  s.keys_full.init();
  s.later_keys_full.init();
  s.scores_done.init();
  fence_barrier_init();
  s.query_full.arrive_expect_bytes(query_heads(a, w) * kHeadBytes);
  for (Mbarrier& ceilings_full : s.ceilings_full) ceilings_full.arrive_expect_bytes(sizeof(s.ceiling) / S::kOwnTiles);
  s.lane_sums_full.arrive_expect_bytes(sizeof(typename S::LaneSums));
  s.heads_full.arrive_expect_bytes(sizeof(s.head));
  for (Mbarrier& sums_full : s.sums_full) sums_full.arrive_expect_bytes(kChunkBytes);
  for (Mbarrier& weights_full : s.weights_full) weights_full.arrive_expect_bytes(kChunkBytes);
}

template <int kPartBlocks>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    few_rows_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using S = FewRows<kPartBlocks>;
  S& s = *reinterpret_cast<S*>(shared_bytes);
  const BlockWork<S> w(a);
  if (threadIdx.x == 0) init_barriers(s, a, w);
  clear_missing_queries(raw_queries(s), query_heads(a, w));
  __syncwarp();
  cluster_arrive_shared();
  launch_dependents();
  cluster_wait();  // all blocks can be sent to
  grid_dependency_wait();
  if (threadIdx.x == kScoreThreads) ask_for_queries(s, a, w);
  __syncwarp();
  find_slots(s.slot, a, w.row(), w.part());
  __syncthreads();
  if (warp_index() < kScoreThreads / 32)
    score_role(s, a, w, scale_log2);
  else
    value_role(s, a, w);
}

template <int kPartBlocks>
Launch launch_of(int64_t n_items, StreamHandle stream) {
  using S = FewRows<kPartBlocks>;
  return {.grid = {static_cast<unsigned>(n_items * S::kClusterBlocks)},
          .block = {kFewRowsThreads},
          .shared_bytes = sizeof(S),
          .cluster = S::kClusterBlocks,
          .pdl = true,
          .stream = stream};
}

template <int kPartBlocks>
int count_at_once() {
  static PerDevice counts;
  return counts.get([] {
    return clusters_at_once(reinterpret_cast<const void*>(few_rows_kernel<kPartBlocks>),
                            launch_of<kPartBlocks>(1, nullptr));
  });
}

template <int kPartBlocks>
void launch_few_rows(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_items = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup);
  launch_kernel(few_rows_kernel<kPartBlocks>, launch_of<kPartBlocks>(n_items, stream), a, a.scale * kLog2E);
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

int few_rows_at_once(int n_blocks) { return n_blocks == 8 ? mla::count_at_once<8>() : mla::count_at_once<4>(); }

void launch_sparse_mla_few_rows(const SparseMla& a, int n_blocks, StreamHandle stream) {
  return n_blocks == 8 ? mla::launch_few_rows<8>(a, stream) : mla::launch_few_rows<4>(a, stream);
}

}  // namespace levin::cuda
