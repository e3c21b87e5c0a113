// sparse_mla over FP8 rows for few query rows, sm_90a. Eight blocks that are no cluster attend with one or two groups of 64 heads of a
// query row over each 1024 of its top-k indices.
//
//   in, out, order, edge  as in bf16_sm90.cu, and the same bits
//   grid  rows (x head groups, where a block has one) x 8 x 2 parts, all on the device at the same time
//   cluster  the two blocks with the same place, one of each part
//   block  2 score, 2 value warpgroups; all of them load
//   smem  struct MailBlock (mail.cuh): keys and queries over the whole depth, two tiles of keys with one group of heads
//         and one with two; in their place later a ring of value columns and one of weights
//   flow  Block c of a part has the scores of tiles c and c+8 and 64 columns of its values. Queries: each block of a
//         cluster asks for half, which comes to both. Keys: those of the first tile by all threads, others by the value
//         warpgroups. Score warpgroups: scores of own tiles, of every other one, or with two groups of all for a group each;
//         their ceilings, and then their weights, go to L2, where the blocks of the part read them (struct PartMail). A score
//         warpgroup fetches the weights of all tiles of a group for its adder, a value warpgroup, and adds up their sums. Value
//         columns are put in place by warps that have nothing else to do. The blocks of a cluster send each other their sums of half
//         of their columns, and merge the others.
//   cost  one group, a block: 72 wgmma m64n64k16 for scores, 64 m64n64k16 for values = 4352 tensor cycles; 148 KB of
//         cache rows, 37 KB of queries and 160 KB of weights read; 8 KB of sums sent. Two groups: twice the products, queries
//         and weights for the same rows.
//   why   a row takes as long as the longest chain of waits. Here these are: indices, rows, ceilings, weights, sums of the other
//         part; a part's tiles go through them at once. The price is that value columns are read and converted twice,
//         which fills otherwise idle time. Blocks of a part are no cluster: of clusters of eight and more the device holds too
//         few to use all its SMs, of pairs it holds one for every two SMs. Two groups of heads share what is read and
//         converted, which is why 128 heads of twice the rows take little longer. Each scheduler has four warps, of which one or two
//         have something to do, and a warp takes about five cycles for an instruction: their number counts.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch_together.h"
#include "kernels/cuda/prims/shared_words.cuh"
#include "kernels/cuda/sparse_mla/mail.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {
namespace {

template <class S>
__device__ __forceinline__ int query_heads(const SparseMla& a, const BlockWork<S>& w, int group) {
  return min(kMlaHeadGroup, a.n_heads - w.first_head(group));
}

template <class S>
__device__ __forceinline__ RawQueries& raw_queries(S& s, int group) {
  return reinterpret_cast<RawQueries&>(s.query(group));
}

// Both blocks of the cluster ask for half the heads' queries on behalf of both.
template <class S>
__device__ __forceinline__ void ask_for_queries(S& s, const SparseMla& a, const BlockWork<S>& w) {
  constexpr uint16_t kBothBlocks = (1u << kMaxParts) - 1;
#pragma unroll
  for (int group = 0; group < S::kGroups; ++group) {
    const int head = w.part() * S::kQueryHeads, n = min(S::kQueryHeads, query_heads(a, w, group) - head);
    ask_for_queries(raw_queries(s, group), a, w.row(), w.first_head(group), head, n, s.query_full, kBothBlocks);
  }
}

// The mail of this warpgroup's heads and part in this launch.
template <class S>
__device__ __forceinline__ PartMail& part_mail(const S& s, const SparseMla& a, const BlockWork<S>& w) {
  auto* items = reinterpret_cast<PartMail(*)[kMaxParts]>(a.scratch + kMlaMailOffset + kMlaMailStateBytes);
  return items[s.n_launches % 2 * kMlaMailItems + w.item() * S::kGroups + w.group()][w.part()];
}

// Leaves the mail of the last launch as the next one expects it: this block's share.
template <class S>
__device__ __forceinline__ void clear_last_mail(const S& s, const SparseMla& a, unsigned thread, unsigned n_threads) {
  auto* last = reinterpret_cast<uint4*>(a.scratch + kMlaMailOffset + kMlaMailStateBytes +
                                        (s.n_launches + 1) % 2 * (kMlaMailItems * kMlaMailBytes));
  const unsigned n = s.n_last_items * static_cast<unsigned>(kMlaMailBytes / sizeof(uint4));
  for (unsigned i = blockIdx.x * n_threads + thread; i < n; i += gridDim.x * n_threads)
    last[i] = {kNoMail, kNoMail, kNoMail, kNoMail};
}

// One thread of each block: which launch this is.
template <class S>
__device__ __forceinline__ void enter_launch(S& s, const SparseMla& a) {
  const auto* state = reinterpret_cast<const MailState*>(a.scratch + kMlaMailOffset);
  s.n_launches = __ldcg(&state->n_launches);
  s.n_last_items = __ldcg(&state->n_items);
}

// The same when the block has read that: the last one counts the launch.
template <class S>
__device__ __forceinline__ void leave_launch(const S& s, const SparseMla& a) {
  auto* state = reinterpret_cast<MailState*>(a.scratch + kMlaMailOffset);
  if (add_acq_rel(&state->n_blocks, 1) + 1 < gridDim.x) return;
  state->n_blocks = 0;
  state->n_items = gridDim.x / (kMaxParts * S::kPartBlocks) * S::kGroups;
  state->n_launches = s.n_launches + 1;
}

// Whether the words whose bits each lane has collected have come, for the warp: see Mbarrier::wait_as_warp(). The vote is not
// __all_sync(), with which the compiler keeps mail that may have to be read again in local memory.
__device__ __forceinline__ bool have_come(uint32_t all) {
  uint32_t have;
  asm volatile(
      "{\n .reg .pred own, every;\n"
      "setp.ge.s32 own, %1, 0;\n"
      "vote.sync.all.pred every, own, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, every;\n}\n"
      : "=r"(have)
      : "r"(all));
  return have != 0;
}

// The maxima of this thread's heads up to a tile, the one before it and the one before that. Each of four lanes reads the ceilings
// of four tiles.
struct RunningMax {
  int32_t bits[3][2];

  __device__ __forceinline__ RunningMax(const PartMail& mail, int tile) {
    const int first = threadIdx.x % 4 * 4;
    uint4 v[2];
    poll_until([&] {
      v[0] = load_relaxed_16(&mail.ceiling[head_row()][first]);
      v[1] = load_relaxed_16(&mail.ceiling[head_row() + 8][first]);
      const uint32_t word[4] = {v[0].x | v[1].x, v[0].y | v[1].y, v[0].z | v[1].z, v[0].w | v[1].w};
      uint32_t all = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) all |= first + i <= tile ? word[i] : 0;
      return have_come(all);
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word[4] = {v[h].x, v[h].y, v[h].z, v[h].w};
      bits[0][h] = bits[1][h] = bits[2][h] = kNoCeiling;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int back = 0; back < 3; ++back)
          if (first + i <= tile - back) bits[back][h] = max(bits[back][h], static_cast<int32_t>(word[i]));
      }
    }
#pragma unroll
    for (int back = 0; back < 3; ++back) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        bits[back][h] = max(bits[back][h], __shfl_xor_sync(0xffffffff, bits[back][h], 1));
        bits[back][h] = max(bits[back][h], __shfl_xor_sync(0xffffffff, bits[back][h], 2));
      }
    }
  }
  __device__ __forceinline__ uint32_t factors(int h) const {
    return pack_factors(power_of_two(bits[1][h] - bits[0][h]), power_of_two(bits[2][h] - bits[0][h]));
  }
};

// Two of four lanes tell a tile's ceilings, one of a head each.
__device__ __forceinline__ void send_ceilings(PartMail& mail, int tile, const int32_t (&ceiling)[2]) {
  const unsigned lane = threadIdx.x % 4;
  if (lane < 2)
    store_relaxed(&mail.ceiling[head_row() + 8 * lane][tile],
                  static_cast<uint32_t>(max(lane == 0 ? ceiling[0] : ceiling[1], kNoCeiling)));
  __syncwarp();
}

// A tile's weights, their sums and what they are relative to.
__device__ __forceinline__ void send_weights(PartMail& mail, int tile, const float (&weight)[32], const float (&sum)[2],
                                             const RunningMax& maximum) {
  const unsigned t = threadIdx.x % 128, lane = threadIdx.x % 4;
  TileMail& to = mail.tile[tile];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(weight[8 * k + 2 * i], weight[8 * k + 2 * i + 1]);
      word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    store_relaxed_16(&to.weight[k][t], {word[0], word[1], word[2], word[3]});
  }
  store_relaxed_16(&to.sums[t],
                   {__float_as_uint(sum[0]), __float_as_uint(sum[1]), maximum.factors(0), maximum.factors(1)});
  if (tile == kPartTiles - 1 && lane < 2)
    store_relaxed(&mail.maximum[head_row() + 8 * lane],
                  static_cast<uint32_t>(lane == 0 ? maximum.bits[0][0] : maximum.bits[0][1]));
  __syncwarp();
}

// Until value columns of a tile can be written where keys and queries were.
template <class S>
__device__ __forceinline__ void wait_for_place(const S& s, int tile) {
  s.scores_done[0].wait(0);
  if (S::kGroups > 1 || tile >= kDeepChunks) s.scores_done[1].wait(0);
#pragma unroll
  for (int place = 0; place < S::kKeyPlaces; ++place) {
    s.keys_full.show_passed(place, 0);
    if constexpr (S::kRounds > 1) s.later_keys_full.show_passed(place, S::kRounds - 2);
  }
}

// This block's columns of the tiles tile_of(0), tile_of(1), ..., by a warpgroup, each when its place is free. A loop rather than
// all tiles one after the other: instructions would have to be fetched, which takes longer than they do. The fence waits for the
// loads under way, which here are soon needed; in an adder they would be those of later mail.
template <int kTiles, class S, class Tile>
__device__ __forceinline__ void put_values(S& s, const SparseMla& a, const BlockWork<S>& w, const Tile& tile_of) {
  ValuePieces<S::kBlockColumns, S::kValuesAhead> values;
  const auto load = [&](int n, int at) {
    if (n < kTiles) values.load(a, s.slot + tile_of(n) * kTileKeys, w.place() * S::kBlockColumns, at);
  };
#pragma unroll
  for (int i = 0; i < S::kValuesAhead; ++i) load(i, i);
#pragma unroll 1
  for (int first = 0; first < kTiles; first += S::kValuesAhead) {
#pragma unroll
    for (int i = 0; i < S::kValuesAhead; ++i) {
      const int n = first + i;
      if (n >= kTiles) break;
      const int tile = tile_of(n);
      wait_for_place(s, tile);
      values.put(value_place(s, tile), i);
      fence_async_shared();
      s.values_full[tile].arrive();
      load(n + S::kValuesAhead, i);
    }
  }
  __syncwarp();
}

// Scores of the own tile of a round and their ceilings, which are sent.
template <class S>
__device__ __forceinline__ void score_tile(S& s, const SparseMla& a, const BlockWork<S>& w, float (&score)[32],
                                           int round, float scale_log2) {
  const int group = warp_index() / 4, tile = w.own_tile(round, group), place = w.key_place(group);
  if (round == 0)
    s.keys_full.arrive_and_wait(place, 0);
  else
    s.later_keys_full.arrive_and_wait(place, round - 1);
  multiply_tile(score, s.query(S::kGroups == 1 ? 0 : group), s.key(place));
  (round + 1 == S::kRounds ? s.scores_done : s.round_done)[group].arrive();
  drop_invalid(s.slot + tile * kTileKeys, score);
  int32_t ceiling[2];
  find_ceilings(score, ceiling, nullptr, scale_log2);
  send_ceilings(part_mail(s, a, w), tile, ceiling);
}

// Scores of the own tile of a round to its weights, when all ceilings before are known.
template <class S>
__device__ __forceinline__ void weigh_tile(S& s, const SparseMla& a, const BlockWork<S>& w, float (&score)[32],
                                           int round, float scale_log2) {
  const int tile = w.own_tile(round, warp_index() / 4);
  PartMail& mail = part_mail(s, a, w);
  const RunningMax maximum(mail, tile);
  int32_t sum_max[2] = {maximum.bits[0][0], maximum.bits[0][1]};
  float sum[2] = {0, 0};
  weigh(sum, sum_max, score, maximum.bits[0], scale_log2);
  send_weights(mail, tile, score, sum, maximum);
}

// From queries and keys to the weights of own tiles, which are sent.
template <class S>
__device__ __forceinline__ void score_own_tiles(S& s, const SparseMla& a, const BlockWork<S>& w, float scale_log2) {
  const int group = warp_index() / 4;
  {
    TileKeys<kFewRowsThreads / 32> keys;
    keys.load(a, s.slot + w.place() * kTileKeys, warp_index());
    keys.load_rope(a, s.slot + w.place() * kTileKeys, warp_index());
    s.query_full.wait(0);
#pragma unroll 1
    for (int g = 0; g < S::kGroups; ++g) arrange_queries(s.query(g), kQueryBarrier);
    keys.put(s.key(0), warp_index());
  }
  if (S::kKeyPlaces > 1) s.keys_full.arrive(1 - group);
  float last[32];
#pragma unroll 1
  for (int r = 0; r < S::kRounds; ++r) {  // scores of a round, then the weights of the one before
    float score[32];
    score_tile(s, a, w, score, r, scale_log2);
    if (r > 0) weigh_tile(s, a, w, last, r - 1, scale_log2);
#pragma unroll
    for (int i = 0; i < 32; ++i) last[i] = score[i];
  }
  weigh_tile(s, a, w, last, S::kRounds - 1, scale_log2);
}

template <class S>
__device__ __forceinline__ void score_role(S& s, const SparseMla& a, const BlockWork<S>& w, float scale_log2) {
  const int group = warp_index() / 4;
  score_own_tiles(s, a, w, scale_log2);
  put_values<S::kScoreTiles>(s, a, w, [group](int n) {
    return S::kGroups == 1 ? 8 + group + 3 * n : S::kGroups * (S::kAdderTiles + n) + group;
  });
  clear_last_mail(s, a, threadIdx.x, kScoreThreads);
  if (threadIdx.x == 0) leave_launch(s, a);
}

// A tile's mail for this thread.
struct OwnMail {
  uint32_t weight[16];
  uint4 sums;

  __device__ __forceinline__ void load(const TileMail& from) {
    const unsigned t = threadIdx.x % 128;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 v = load_relaxed_16(&from.weight[k][t]);
      weight[4 * k] = v.x, weight[4 * k + 1] = v.y, weight[4 * k + 2] = v.z, weight[4 * k + 3] = v.w;
    }
    sums = load_relaxed_16(&from.sums[t]);
  }
  __device__ __forceinline__ bool has_come() const {
    uint32_t all = sums.x | sums.y | sums.z | sums.w;
#pragma unroll
    for (const uint32_t word : weight) all |= word;
    return have_come(all);
  }
};

// A part's sums in one thread: values of a block's columns, and weights.
template <class S>
struct PartSums {
  float acc[4 * S::kAccFours] = {};
  float sum[2][2] = {{0, 0}, {0, 0}};  // of the even and the odd tiles, of both heads
  int32_t maximum[2];                  // what all are relative to, of both heads
};

// Starts acc += weights x values for one tile. The low word of a descriptor steps by itself: an addition of both takes four
// instructions more, and with one warp on each scheduler they count.
template <class S>
__device__ __forceinline__ void add_tile(S& s, PartSums<S>& m, const OwnMail& mail, int tile, int parity) {
  const uint32_t factors[2] = {mail.sums.z, mail.sums.w};
  const float tile_sum[2] = {__uint_as_float(mail.sums.x), __uint_as_float(mail.sums.y)};
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = factor_from_last(factors[h]);
    m.sum[parity][h] = fmaf(m.sum[parity][h], factor_from_last_but_one(factors[h]), tile_sum[h]);
    if (tile == kPartTiles - 1) m.sum[0][h] *= factor[h];  // of even tiles: still at the maximum of the last of them
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (int i = 0; i < 4 * S::kAccFours; ++i) m.acc[i] *= factor[i / 2 % 2];
  }
  s.values_full[tile].wait(0);
  const auto value = static_cast<uint32_t>(wgmma_descriptor_mn_major(value_place(s, tile), kChunkBytes));
  constexpr uint32_t kHigh = descriptor_high();
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {mail.weight[4 * k], mail.weight[4 * k + 1], mail.weight[4 * k + 2],
                                 mail.weight[4 * k + 3]};
    Wgmma<S::kBlockColumns>::template bf16<1>(
        m.acc, operand, join_descriptor(value + static_cast<uint32_t>(descriptor_step(2048 * k)), kHigh), true);
  }
  wgmma_commit();
}

// Asks for the mail of a tile and of those after it, if there are any.
template <class... Mail>
__device__ __forceinline__ void load_mail(const PartMail& from, int tile, OwnMail& first, Mail&... others) {
  if (tile < kPartTiles) first.load(from.tile[tile]);
  if constexpr (sizeof...(others) > 0) load_mail(from, tile + 1, others...);
}
template <class... Mail>
__device__ __forceinline__ OwnMail& last_of(OwnMail& first, Mail&... others) {
  if constexpr (sizeof...(others) == 0)
    return first;
  else
    return last_of(others...);
}

// The next tile of a part, whose mail is `now`; `later` is that of the tiles after it, the last of which is asked for when the
// products of the tile before are done with its registers. If a tile's is late, the others' may be too, and are read again with it.
template <class S, class... Later>
__device__ __forceinline__ void add_next_tile(S& s, const BlockWork<S>& w, const PartMail& mail, PartSums<S>& m,
                                              int tile, int parity, OwnMail& now, Later&... later) {
  wgmma_wait<0>();
  wgmma_touch(m.acc);
  if (tile == 1 && elect_one()) cluster_arrive_relaxed(s.others_ready, w.part() ^ 1);
  __syncwarp();
  load_mail(mail, tile + static_cast<int>(sizeof...(later)), last_of(later...));
  if (!now.has_come()) {
    const Watchdog watchdog;
    do {
      load_mail(mail, tile, now, later...);
      watchdog.check();
    } while (!now.has_come());
  }
  add_tile(s, m, now, tile, parity);
}

// The part's sums of this block's columns, and those of the weights over the four lanes.
template <class S>
__device__ __forceinline__ void add_part(S& s, const SparseMla& a, const BlockWork<S>& w, PartSums<S>& m) {
  const PartMail& mail = part_mail(s, a, w);
  s.scores_done[0].wait(0);  // sums of the other part come to the place of keys and queries
  s.scores_done[1].wait(0);
  OwnMail x, y, z;
  static_assert(kPartTiles % 6 == 4);
  load_mail(mail, 0, x, y);
#pragma unroll 1
  for (int tile = 0; tile < kPartTiles - 4; tile += 6) {
    add_next_tile(s, w, mail, m, tile, 0, x, y, z);
    add_next_tile(s, w, mail, m, tile + 1, 1, y, z, x);
    add_next_tile(s, w, mail, m, tile + 2, 0, z, x, y);
    add_next_tile(s, w, mail, m, tile + 3, 1, x, y, z);
    add_next_tile(s, w, mail, m, tile + 4, 0, y, z, x);
    add_next_tile(s, w, mail, m, tile + 5, 1, z, x, y);
  }
  add_next_tile(s, w, mail, m, kPartTiles - 4, 0, x, y, z);
  add_next_tile(s, w, mail, m, kPartTiles - 3, 1, y, z, x);
  add_next_tile(s, w, mail, m, kPartTiles - 2, 0, z, x, y);
  add_next_tile(s, w, mail, m, kPartTiles - 1, 1, x, y, z);
  poll_until([&] {
    uint32_t all = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = load_relaxed(&mail.maximum[head_row() + 8 * h]);
      m.maximum[h] = static_cast<int32_t>(word);
      all |= word;
    }
    return have_come(all);
  });
#pragma unroll
  for (int parity = 0; parity < 2; ++parity) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& sum = m.sum[parity][h];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
    }
  }
  wgmma_wait<0>();
  wgmma_touch(m.acc);
}

// Float4 j of this thread's that the block of a part merges: those of part p begin at p * kSumFours.
template <class S>
__device__ __forceinline__ float4 four_of_part(const PartSums<S>& m, int part, int j) {
  const float* first = m.acc + 4 * j;
  const float* second = m.acc + 4 * (S::kSumFours + j);
  return part == 0 ? float4{first[0], first[1], first[2], first[3]}
                   : float4{second[0], second[1], second[2], second[3]};
}

// The sums that the other part's block merges go there, with those of the weights.
template <class S>
__device__ __forceinline__ void send_sums(S& s, const BlockWork<S>& w, const PartSums<S>& m) {
  s.others_ready.wait(0);
  const uint32_t other = w.part() ^ 1;
  const uint32_t to = cluster_address(shared_address(received_sums(s, w.group()) + threadIdx.x % 128), other);
  const uint32_t barrier = cluster_address(s.sums_full[w.group()].address(), other);
#pragma unroll
  for (int j = 0; j < S::kSumFours; ++j) cluster_store_async(to + j * 128 * 16, four_of_part(m, other, j), barrier);
  const unsigned lane = threadIdx.x % 4;
  if (lane < 2)
    cluster_store_async(cluster_address(shared_address(&s.head[w.group()][head_row() + 8 * lane]), other),
                        float4{lane == 0 ? m.sum[0][0] : m.sum[0][1], lane == 0 ? m.sum[1][0] : m.sum[1][1],
                               __int_as_float(lane == 0 ? m.maximum[0] : m.maximum[1]), 0},
                        barrier);
  __syncwarp();
}

// Merges this block's share of the columns over the parts, ascending, and writes it.
template <class S>
__device__ __forceinline__ void write_own_columns(S& s, const SparseMla& a, const BlockWork<S>& w,
                                                  const PartSums<S>& m) {
  float sum[2][2] = {{0, 0}, {0, 0}};  // even and odd tiles of both rows
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
  MergeFactors f[kMaxParts][2];
  s.sums_full[w.group()].wait_as_warp(0);
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    const bool own = part == w.part();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PartHead& other = s.head[w.group()][head_row() + 8 * h];
      f[part][h] = merge_factors(maximum[h], own ? m.maximum[h] : other.max_bits);
#pragma unroll
      for (int parity = 0; parity < 2; ++parity)
        sum[h][parity] =
            fmaf(own ? m.sum[parity][h] : other.sum[parity], f[part][h].part, sum[h][parity] * f[part][h].total);
    }
  }
  const float inverse[2] = {invert_sum(sum[0][0], sum[0][1]), invert_sum(sum[1][0], sum[1][1])};
  const int column = w.place() * S::kBlockColumns + w.part() * (S::kBlockColumns / kMaxParts);
#pragma unroll
  for (int first = 0; first < S::kSumFours; first += 4) {
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 own = four_of_part(m, w.part(), first + j);
      const float4 other = received_sums(s, w.group())[(first + j) * 128 + threadIdx.x % 128];
      value[j] = {0, 0, 0, 0};
#pragma unroll
      for (int part = 0; part < kMaxParts; ++part) {
        const float4 v = part == w.part() ? own : other;
        const float of_part[4] = {v.x, v.y, v.z, v.w};
        value[j] = merge_four(of_part, 0, f[part], value[j]);
      }
    }
    store_columns(a, w, column + 8 * first, value, inverse);
  }
}

// Keys of an own tile, shared by the value warps and on their way.
using ValueWarpsKeys = TileKeys<kValueThreads / 32>;

template <class S>
__device__ __forceinline__ const uint32_t* own_slots(const S& s, const BlockWork<S>& w, int round, int place) {
  return s.slot + w.own_tile(round, place) * kTileKeys;
}

// The keys of rounds after the first, each where those of the round before were.
template <class S>
__device__ __forceinline__ void put_later_keys(S& s, const SparseMla& a, const BlockWork<S>& w, int warp,
                                               ValueWarpsKeys& even) {
  ValueWarpsKeys odd;
  even.load_rope(a, own_slots(s, w, 1, 0), warp);
  odd.load(a, own_slots(s, w, 1, 1), warp);
#pragma unroll 1
  for (int r = 1; r < S::kRounds; ++r) {
    const bool last = r + 1 == S::kRounds;
    s.round_done[0].wait((r - 1) % 2);
    s.keys_full.show_passed(0, 0);
    even.put(s.key(0), warp);
    s.later_keys_full.arrive(0);
    odd.load_rope(a, own_slots(s, w, r, 1), warp);
    if (!last) even.load(a, own_slots(s, w, r + 1, 0), warp);
    s.round_done[1].wait((r - 1) % 2);
    s.keys_full.show_passed(1, 0);
    odd.put(s.key(1), warp);
    s.later_keys_full.arrive(1);
    if (last) break;
    even.load_rope(a, own_slots(s, w, r + 1, 0), warp);
    odd.load(a, own_slots(s, w, r + 1, 1), warp);
  }
}

// The keys of all rounds, by the value warps: with one place or two.
template <class S>
__device__ __forceinline__ void put_keys_of_one_place(S& s, const SparseMla& a, const BlockWork<S>& w, int warp) {
  ValueWarpsKeys next;
  {
    TileKeys<kFewRowsThreads / 32> first;
    first.load(a, own_slots(s, w, 0, 0), warp_index());
    first.load_rope(a, own_slots(s, w, 0, 0), warp_index());
    next.load(a, own_slots(s, w, 1, 0), warp);
    next.load_rope(a, own_slots(s, w, 1, 0), warp);
    first.put(s.key(0), warp_index());
    s.keys_full.arrive(0);
  }
#pragma unroll 1
  for (int r = 1; r < S::kRounds; ++r) {
    s.round_done[0].wait((r - 1) % 2);
    s.round_done[1].wait((r - 1) % 2);
    s.keys_full.show_passed(0, 0);
    next.put(s.key(0), warp);
    s.later_keys_full.arrive(0);
    if (r + 1 == S::kRounds) break;
    next.load(a, own_slots(s, w, r + 1, 0), warp);
    next.load_rope(a, own_slots(s, w, r + 1, 0), warp);
  }
}
template <class S>
__device__ __forceinline__ void put_keys_of_two_places(S& s, const SparseMla& a, const BlockWork<S>& w, int warp) {
  ValueWarpsKeys third;
  {
    TileKeys<kFewRowsThreads / 32> first;
    ValueWarpsKeys second;
    first.load(a, own_slots(s, w, 0, 0), warp_index());
    first.load_rope(a, own_slots(s, w, 0, 0), warp_index());
    second.load(a, own_slots(s, w, 0, 1), warp);
    second.load_rope(a, own_slots(s, w, 0, 1), warp);
    first.put(s.key(0), warp_index());
    s.keys_full.arrive(0);
    second.put(s.key(1), warp);
    s.keys_full.arrive(1);
    if constexpr (S::kRounds > 1) third.load(a, own_slots(s, w, 1, 0), warp);
  }
  if constexpr (S::kRounds > 1) put_later_keys(s, a, w, warp, third);
}

template <class S>
__device__ __forceinline__ void value_role(S& s, const SparseMla& a, const BlockWork<S>& w) {
  const int warp = warp_index() - kScoreThreads / 32, group = warp / 4;
  if constexpr (S::kKeyPlaces == 1)
    put_keys_of_one_place(s, a, w, warp);
  else
    put_keys_of_two_places(s, a, w, warp);
  if constexpr (S::kGroups == 1) {
    if (group != 0)
      return put_values<S::kHelperTiles>(s, a, w, [](int n) { return n < 3 ? S::kAdderTiles + n : 7 + 3 * (n - 3); });
  }
  put_values<S::kAdderTiles>(s, a, w, [group](int n) { return S::kGroups * n + group; });
  PartSums<S> m;
  add_part(s, a, w, m);
  send_sums(s, w, m);
  write_own_columns(s, a, w, m);
}

template <class S>
__device__ __forceinline__ void init_barriers(S& s, const SparseMla& a, const BlockWork<S>& w) {
  s.query_full.init(1);
  s.others_ready.init(4 * S::kGroups);
  for (int g = 0; g < 2; ++g) {
    s.round_done[g].init(128);
    s.scores_done[g].init(128);
  }
  for (Mbarrier& full : s.sums_full) full.init(1);
  for (Mbarrier& full : s.values_full) full.init(128);
  s.keys_full.init();
  s.later_keys_full.init();
  fence_barrier_init();
  int n_heads = 0;
  for (int group = 0; group < S::kGroups; ++group) n_heads += query_heads(a, w, group);
  s.query_full.arrive_expect_bytes(n_heads * kHeadBytes);
  for (Mbarrier& full : s.sums_full) full.arrive_expect_bytes(S::kSumFours * 128 * sizeof(float4) + sizeof(s.head[0]));
}

template <class S>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    mail_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  static_assert(sizeof(S) <= kMaxSharedBytes, "too much shared memory");
  S& s = *reinterpret_cast<S*>(shared_bytes);
  const BlockWork<S> w(a);
  if (threadIdx.x == 0) init_barriers(s, a, w);
  for (int group = 0; group < S::kGroups; ++group)
    clear_missing_queries(raw_queries(s, group), query_heads(a, w, group));
  __syncwarp();
  cluster_arrive_shared();
  launch_dependents();
  cluster_wait();  // all blocks can be sent to
  grid_dependency_wait();
  if (threadIdx.x == kScoreThreads) ask_for_queries(s, a, w);
  if (threadIdx.x == 0) enter_launch(s, a);
  __syncwarp();
  find_slots(s.slot, a, w.row(), w.part());
  __syncthreads();
  if (warp_index() < kScoreThreads / 32)
    score_role(s, a, w, scale_log2);
  else
    value_role(s, a, w);
}

template <class S>
Launch launch_of(int64_t n_items, StreamHandle stream) {
  return {.grid = {static_cast<unsigned>(n_items * kMaxParts * S::kPartBlocks)},
          .block = {kFewRowsThreads},
          .shared_bytes = sizeof(S),
          .cluster = kMaxParts,
          .pdl = true,
          .stream = stream};
}

template <class S>
int rows_at_once(int n_heads) {
  static PerDevice counts;
  const int n_clusters = counts.get(
      [] { return clusters_at_once(reinterpret_cast<const void*>(mail_kernel<S>), launch_of<S>(1, nullptr)); });
  const int n_items = std::min(n_clusters / S::kPartBlocks, kMlaMailItems / S::kGroups);
  return n_items / (S::kGroups == 1 && n_heads > kMlaHeadGroup ? 2 : 1);
}

template <class S>
void launch_mail(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_items = a.n_rows * (S::kGroups == 1 && a.n_heads > kMlaHeadGroup ? 2 : 1);
  launch_together(mail_kernel<S>, launch_of<S>(n_items, stream), a, a.scale * kLog2E);
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

int64_t mail_rows_at_once(MlaSharing sharing, int n_heads) {
  switch (sharing) {
    case MlaSharing::kEightApart:
      return mla::rows_at_once<mla::MailBlock<1>>(n_heads);
    case MlaSharing::kEightApartAllHeads:
      return mla::rows_at_once<mla::MailBlock<2>>(n_heads);
    default:
      return 0;
  }
}

void launch_sparse_mla_mail(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  if (sharing == MlaSharing::kEightApart)
    mla::launch_mail<mla::MailBlock<1>>(a, stream);
  else
    mla::launch_mail<mla::MailBlock<2>>(a, stream);
}

}  // namespace levin::cuda
