// sparse_mla over FP8 rows, sm_90a. A pair of blocks attends with all of 65 to 128 heads of one query row, to all its top-k
// indices or, in parts, to 1024 of them; or in parts with 64 heads.
//
//   in, out, order, parts, edge  as in bf16_sm90.cu, and the same bits
//   grid  two blocks for every two SMs, which go from row to row; in parts rows x head groups x 2 parts x 2, on the device at
//         the same time
//   cluster  a pair      block  2 head warpgroups, or 1 for 64 heads, + 1 load warpgroup
//   smem  struct HalfDepth below: kStages half key tiles of 64 indices, the block's half of the queries, what the other block
//         sends, cache rows on their way
//   flow  Block h of a pair holds half the depth, which is also its half of the value columns. Load warpgroup: indices ->
//         rows -> bf16 tiles, which all head warpgroups multiply. Head warpgroup g has heads 64g .. 64g+63. A thread has two of
//         them, of which it weighs one and the same thread of the other block the other one: it sends its half of the other's
//         scores, adds what comes to its own, and sends the weights, which stay in registers in both blocks. Then its 256 value
//         columns, for both. Scores of tile i+1 are computed before the values of tile i, and weighed while these are added,
//         but where a row's first part ends: its sums go to scratch memory, and are read from there while the row's last
//         values are added. In parts the pairs of a row send each other half of their columns by way of scratch memory, and
//         merge the others.
//   cost  a tile and head warpgroup: 18 wgmma m64n64k16 + 4 m64n256k16 = 1088 tensor cycles; 13 KB sent to the other block. A
//         tile and block: 64 x 288 values converted at 9 instructions for four
//   why   sharing depth instead of heads or keys: no row is loaded and converted twice in a pair, and with all heads once for
//         128. The head warpgroups wait for the other block and for rows only, so that of two one multiplies while the
//         other weighs. One has the shorter chain, where there are SMs enough for few rows.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/prims/launch_together.h"
#include "kernels/cuda/prims/shared_words.cuh"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {
namespace {

// With two head warpgroups; with one there are enough for all threads.
constexpr int kHeadRegs = 224, kLoadRegs = 56, kStartRegs = 168;
static_assert(2 * kHeadRegs + kLoadRegs == 3 * kStartRegs);
constexpr int kFours = kHalfLatent / 8;  // groups of four sums of a thread: two neighbouring columns of two heads
constexpr int kHeadBarrier = 1;          // of head warpgroup 0; 2 of the other
static_assert(kMaxParts == 2);

// A block with kHeadGroups groups of 64 heads.
template <int kHeadGroups>
struct HalfDepth {
  static constexpr int kGroups = kHeadGroups;
  static constexpr int kHeadThreads = 128 * kGroups;
  static constexpr int kThreads = kHeadThreads + kLoadThreads;
  static constexpr int kRawStages = kGroups == 1 ? 3 : 2;
  static constexpr int kFirstLoadThread = kHeadThreads;

  // That of a head thread.
  __device__ __forceinline__ static int group() { return kGroups == 1 ? 0 : head_group(); }

  KeyTile key[kStages];
  alignas(1024) uint8_t query[kGroups][kChunks][kChunkBytes];
  // What the other block sends, in slots of each thread: its half of the scores of own heads; weights of the others, what
  // they are relative to, and in the end their sums.
  alignas(16) float4 score[kGroups][4][128];
  alignas(16) float4 weight[kGroups][2][128];
  int32_t maximum[kGroups][128];
  float2 sum[kGroups][128];
  RawKeys raw[kRawStages];
  int32_t pick[kPickStages][kTileKeys / 2];
  int32_t entry[kEntryStages][kTileKeys / 2];
  float bias[kStages][kTileKeys];
  RingBarriers<kStages> key_ring;
  Mbarrier score_full[kGroups];
  Mbarrier weight_full[kGroups];
  Mbarrier sum_full[kGroups];
};
static_assert(sizeof(HalfDepth<1>) <= kMaxSharedBytes && sizeof(HalfDepth<2>) <= kMaxSharedBytes,
              "too much shared memory");

template <class S, bool kParts>
using HeadsWork = Work<kParts ? MlaSharing::kPairs : MlaSharing::kWholeRows, S::kGroups == 2>;

// A head warpgroup's thread has two heads of its group, row and row + 8 (own_row()), in block 1 of a pair the other way round:
// index h below, and in `acc` columns 8j + 2 * (lane % 4) and the next of them in acc[4j + 2h] and the next. The first of them
// is its own, which it weighs; the other is weighed by the same thread of the other block.
struct HeadState {
  uint32_t rope[2][4];  // the queries' rope half as wgmma A operands
  float acc[4 * kFours];
  int32_t maximum[2];          // running maximum of the part: of acc, and of the own head's weights
  int32_t earlier_maximum[1];  // the own head's before its last tile
  // Of the own head in this lane's columns, of the weights of every other tile: of those up to the last but one, relative to
  // earlier_maximum, and of those up to the last, relative to maximum.
  float sum[2][1];
};

// A head's weights of a tile in a thread's columns, in pairs of bf16.
struct Weights {
  uint32_t pair[8];

  __device__ __forceinline__ void set(const float (&weight)[16]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(weight[2 * i], weight[2 * i + 1]);
      pair[i] = *reinterpret_cast<const uint32_t*>(&two);
    }
  }
  // Four of the pairs as they are sent.
  __device__ __forceinline__ float4 four(int i) const {
    return {__uint_as_float(pair[4 * i]), __uint_as_float(pair[4 * i + 1]), __uint_as_float(pair[4 * i + 2]),
            __uint_as_float(pair[4 * i + 3])};
  }
  __device__ __forceinline__ void set_four(int i, const float4& v) {
    pair[4 * i] = __float_as_uint(v.x), pair[4 * i + 1] = __float_as_uint(v.y);
    pair[4 * i + 2] = __float_as_uint(v.z), pair[4 * i + 3] = __float_as_uint(v.w);
  }
};

// By how much the heads of a thread are in another order than its rows.
template <class W>
__device__ __forceinline__ int head_swap(const W& w) {
  return 8 * w.half();
}

// The sums of the parts of a row that have been merged, over the row's four lanes, relative to 2^maximum.
struct RowTotal {
  float sum[2] = {0, 0};  // of the own head: of the even and the odd tiles
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
};

__device__ __forceinline__ void start_part(HeadState& m) {
#pragma unroll
  for (int i = 0; i < 4 * kFours; ++i) m.acc[i] = 0;
  m.maximum[0] = m.maximum[1] = m.earlier_maximum[0] = kNoCeiling;
  m.sum[0][0] = m.sum[1][0] = 0;
}

// Merges the sums of a finished part, whose last tile is an even or an odd one; returns the factors for its values.
__device__ __forceinline__ void merge_part_sums(RowTotal& total, const HeadState& m, bool last_is_even,
                                                MergeFactors (&f)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) f[h] = merge_factors(total.maximum[h], m.maximum[h]);
  float part_sum[2] = {m.sum[0][0] * power_of_two(m.earlier_maximum[0] - m.maximum[0]), m.sum[1][0]};
#pragma unroll
  for (float& sum : part_sum) {
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
  }
  total.sum[0] = fmaf(last_is_even ? part_sum[1] : part_sum[0], f[0].part, total.sum[0] * f[0].total);
  total.sum[1] = fmaf(last_is_even ? part_sum[0] : part_sum[1], f[0].part, total.sum[1] * f[0].total);
}

// The first part of a whole row in scratch memory: kTotalFours float4 of each head thread of a block, kHeadThreads apart, the
// values and then the RowTotal. Of a block: see scratch_slot().
constexpr int kTotalFours = kFours + 1;
static_assert(kTotalFours * HalfDepth<2>::kHeadThreads * sizeof(float4) <= kMlaTotalBytes);
template <class S>
__device__ __forceinline__ float4* total_slot(const SparseMla& a) {
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes) +
         int64_t{read_block_index()} * kTotalFours * S::kHeadThreads + read_thread_index();
}

__device__ __forceinline__ float4 pack_row_total(const RowTotal& total) {
  return {total.sum[0], total.sum[1], __int_as_float(total.maximum[0]), __int_as_float(total.maximum[1])};
}
__device__ __forceinline__ RowTotal unpack_row_total(const float4& v) {
  return {{v.x, v.y}, {__float_as_int(v.z), __float_as_int(v.w)}};
}

// What of it is read while the last values of a row are added: its registers are then free.
constexpr int kFoursAhead = 8, kFoursAtOnce = 12;
static_assert((kFours - kFoursAhead) % kFoursAtOnce == 0);
struct TotalAhead {
  float4 four[kFoursAhead];
  RowTotal sums;
};
template <class S>
__device__ __forceinline__ void read_ahead(TotalAhead& total, const float4* slot, bool first_part) {
  total.sums = {};
  read_total<S::kHeadThreads>(total.four, slot, 0, first_part);
  if (first_part) return;
  total.sums = unpack_row_total(__ldcg(slot + kFours * S::kHeadThreads));
}

// Merges kCount times four values, from `first` on.
template <int kCount>
__device__ __forceinline__ void merge_fours(float4 (&total)[kCount], const HeadState& m, int first,
                                            const MergeFactors (&f)[2]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) total[j] = merge_four(m.acc, first + j, f, total[j]);
}

// Leaves the first part of a row, all kPartTiles tiles of it, in scratch memory as the total so far, and starts the other. L2 is
// asked to keep it: rows would otherwise take its place before it is read again.
template <class S>
__device__ __forceinline__ void store_first_part(HeadState& m, float4* slot) {
  RowTotal total;
  MergeFactors f[2];
  merge_part_sums(total, m, false, f);
  slot[kFours * S::kHeadThreads] = pack_row_total(total);
#pragma unroll
  for (int j = 0; j < kFours; ++j) store_to_stay(slot + j * S::kHeadThreads, merge_four(m.acc, j, f, {0, 0, 0, 0}));
  start_part(m);
}

// The own head's scores of a tile turned into weights; returns what brings its sums to the new maximum.
__device__ __forceinline__ float weigh_own_head(HeadState& m, float (&score)[16], const float* bias, float scale_log2) {
  int32_t ceiling[1];
  find_ceilings(score, ceiling, bias, scale_log2);
  const int32_t before = m.maximum[0], now[1] = {max(before, ceiling[0])};
  weigh(m.sum[0], m.earlier_maximum, score, now, scale_log2);
  const float sum = m.sum[0][0];
  m.sum[0][0] = m.sum[1][0];
  m.sum[1][0] = sum;
  m.earlier_maximum[0] = before;
  m.maximum[0] = now[0];
  return power_of_two(before - now[0]);
}

// A value that all lanes have, as one that the compiler knows to be such: descriptors are then stepped once for the warp.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Starts this block's half of a tile's scores. The fence: see start_scores().
template <class S>
__device__ __forceinline__ void multiply_tile(S& s, float (&score)[32], const HeadState& m, int number) {
  s.key_ring.full[number % kStages].wait(number / kStages & 1);
  fence_async_shared();
  multiply_scores(score, s.query[uniform(S::group())], m.rope, s.key[uniform(number % kStages)]);
}

// Starts acc += weights x values of one tile.
template <class S>
__device__ __forceinline__ void multiply_values(S& s, HeadState& m, const Weights& own, const Weights& other,
                                                int number) {
  const uint64_t value = wgmma_descriptor_mn_major(s.key[uniform(number % kStages)].latent[0], kChunkBytes);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {own.pair[2 * k], other.pair[2 * k], own.pair[2 * k + 1], other.pair[2 * k + 1]};
    Wgmma<256>::bf16<1>(m.acc, operand, value + descriptor_step(2048 * k), true);
  }
  wgmma_commit();
}

// Messages between a thread and the same thread of the other block, by stores that count their bytes there. A message's place
// is free when the next of its kind is sent. Scores go out after the other's weights of the tile before have been read here,
// which it sends when it has read the scores before; weights after the other's scores of their tile, which it sends when it
// has read the weights before; and both follow each other so from row to row too.
constexpr int kScoreBytes = 128 * 64, kWeightBytes = 128 * (32 + 4), kSumBytes = 128 * 8;  // of a warpgroup

__device__ __forceinline__ void expect(Mbarrier& full, uint32_t n_bytes) {
  if (read_thread_index() % 128 == 0) full.arrive_expect_bytes(n_bytes);
}
template <class T>
__device__ __forceinline__ uint32_t address_there(const T* own) {
  return cluster_address(shared_address(own), cluster_rank() ^ 1);
}

template <int... kSlots>
__device__ __forceinline__ void send_other_head(uint32_t to, const float (&score)[32], uint32_t barrier,
                                                std::integer_sequence<int, kSlots...>) {
  (cluster_store_async<kSlots * 128 * static_cast<int>(sizeof(float4))>(
       to, {score[8 * kSlots + 2], score[8 * kSlots + 3], score[8 * kSlots + 6], score[8 * kSlots + 7]}, barrier),
   ...);
}

// Sends this half of the other head's scores and keeps that of the own head's.
template <class S>
__device__ __forceinline__ void share_scores(S& s, float (&own)[16], const float (&score)[32]) {
  const int group = S::group(), t = read_thread_index() % 128;
  expect(s.score_full[group], kScoreBytes);
  send_other_head(address_there(&s.score[group][0][t]), score, address_there(&s.score_full[group]),
                  std::make_integer_sequence<int, 4>());
#pragma unroll
  for (int i = 0; i < 16; ++i) own[i] = score[i / 2 * 4 + i % 2];
}

// Adds the other block's half to the own head's scores.
template <class S>
__device__ __forceinline__ void add_other_half(S& s, float (&own)[16], int number) {
  const int group = S::group();
  s.score_full[group].wait_as_warp(number & 1);
  add_slots<2>(own, s.score[group]);
}

template <class S>
__device__ __forceinline__ void send_weights(S& s, const Weights& own, int32_t maximum) {
  const int group = S::group(), t = read_thread_index() % 128;
  expect(s.weight_full[group], kWeightBytes);
  const uint32_t barrier = address_there(&s.weight_full[group]), to = address_there(&s.weight[group][0][t]);
  cluster_store_async(to, own.four(0), barrier);
  cluster_store_async<128 * sizeof(float4)>(to, own.four(1), barrier);
  cluster_store_async(address_there(&s.maximum[group][t]), static_cast<uint32_t>(maximum), barrier);
}

// The other head's weights of a tile; factor[1] is what brings its sums to its new maximum. Returns whether a factor of the warp
// is not 1, for which all that has come is read before more is sent.
template <class S>
__device__ __forceinline__ bool receive_weights(S& s, HeadState& m, Weights& other, float (&factor)[2], int number) {
  const int group = S::group(), t = read_thread_index() % 128;
  s.weight_full[group].wait_as_warp(number & 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) other.set_four(i, load_shared_float4(&s.weight[group][i][t]));
  const int32_t maximum = s.maximum[group][t];
  factor[1] = power_of_two(m.maximum[1] - maximum);
  m.maximum[1] = maximum;
  return __any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1);
}

// The sums of the own head's weights, of even and of odd tiles, to the other block, once a row; and what comes of the other head.
// n_before: earlier rows with tiles.
template <class S>
__device__ __forceinline__ void send_sums(S& s, const RowTotal& own) {
  const int group = S::group(), t = read_thread_index() % 128;
  expect(s.sum_full[group], kSumBytes);
  const uint32_t to = address_there(&s.sum[group][t]), barrier = address_there(&s.sum_full[group]);
  cluster_store_async(to, __float_as_uint(own.sum[0]), barrier);
  cluster_store_async(to + sizeof(float), __float_as_uint(own.sum[1]), barrier);
}
template <class S>
__device__ __forceinline__ float2 receive_sums(S& s, int n_before) {
  const int group = S::group(), t = read_thread_index() % 128;
  s.sum_full[group].wait_as_warp(n_before & 1);
  return s.sum[group][t];
}

// Brings the sums of both heads to their new maxima; all products that add to them are done.
__device__ __forceinline__ void rescale(HeadState& m, const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4 * kFours; ++i) m.acc[i] *= factor[i / 2 % 2];
}

__device__ __forceinline__ void wait_for_values(HeadState& m) {
  wgmma_wait<0>();
  wgmma_touch(m.acc);
}

template <class S>
__device__ __forceinline__ void release_tile(S& s, int number) {
  s.key_ring.empty[number % kStages].arrive_as_warp();
  __syncwarp();
}

// Fours j .. j + 3 of this block's half, which are 32 columns.
template <class W>
__device__ __forceinline__ void store_fours(const SparseMla& a, const W& w, int j, const float4* value,
                                            const float (&inverse)[2]) {
  if (!a.out_f32) return store_32_columns(a, w, w.half() * kHalfLatent + 8 * j, value, inverse, head_swap(w));
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_output<LatentRows::kFp8, true>(a, w, w.half() * kHalfLatent, j + i, value[i], inverse, head_swap(w));
}

// Merges the last part of a whole row and writes the row.
template <class S, class W>
__device__ __forceinline__ void write_row(S& s, TotalAhead& total, const HeadState& m, const float4* slot,
                                          const SparseMla& a, const W& w, int n_before) {
  const bool first_part = w.n_tiles() <= kPartTiles;
  MergeFactors f[2];
  merge_part_sums(total.sums, m, w.n_tiles() % 2 != 0, f);
  send_sums(s, total.sums);
  const float2 other = receive_sums(s, n_before);
  const float inverse[2] = {invert_sum(total.sums.sum[0], total.sums.sum[1]), invert_sum(other.x, other.y)};
  merge_fours(total.four, m, 0, f);
#pragma unroll
  for (int j = 0; j < kFoursAhead; j += 4) store_fours(a, w, j, total.four + j, inverse);
#pragma unroll
  for (int first = kFoursAhead; first < kFours; first += kFoursAtOnce) {
    float4 four[kFoursAtOnce];
    read_total<S::kHeadThreads>(four, slot, first, first_part);
    merge_fours(four, m, first, f);
#pragma unroll
    for (int j = 0; j < kFoursAtOnce; j += 4) store_fours(a, w, first + j, four + j, inverse);
  }
}

// A row without top-k indices.
template <class W>
__device__ __forceinline__ void write_zeros(const SparseMla& a, const W& w) {
  const float4 zeros[4] = {};
#pragma unroll 1
  for (int j = 0; j < kFours; j += 4) store_fours(a, w, j, zeros, {0, 0});
}

// What a warp leaves in scratch memory for the warp of the other part that has the same heads and columns: the half of the columns
// that that one merges, and of both heads the sums of the weights of even and of odd tiles, and what all is relative to.
constexpr int kHalfFours = kFours / kMaxParts;
struct WarpShare {
  float4 four[kHalfFours][32];
  float4 sums[32];
  int2 maximum[32];
  uint32_t has_come;  // zero when no launch is under way
};
static_assert(sizeof(WarpShare) <= kMlaWarpShareBytes);

// Of the part `part`, which is to read it.
template <class S, class W>
__device__ __forceinline__ WarpShare& warp_share(const SparseMla& a, const W& w, int part) {
  const int block = (w.item() - w.part() + part) * 2 + w.half();
  const int warp = block * (S::kHeadThreads / 32) + read_thread_index() / 32;
  return *reinterpret_cast<WarpShare*>(a.scratch + kMlaShareOffset + warp * kMlaWarpShareBytes);
}

__device__ __forceinline__ float4 choose(bool second, const float4& x, const float4& y) {
  return {second ? y.x : x.x, second ? y.y : x.y, second ? y.z : x.z, second ? y.w : x.w};
}

// Fours of the first or the second half of a thread's columns.
__device__ __forceinline__ float4 four_of(const HeadState& m, bool second_half, int j) {
  const float *x = m.acc + 4 * j, *y = x + 4 * kHalfFours;
  return choose(second_half, {x[0], x[1], x[2], x[3]}, {y[0], y[1], y[2], y[3]});
}

// Says that a warp's share is there; waits for the other part's, and leaves its word as it was. All lanes wait: see
// Mbarrier::wait_as_warp().
__device__ __forceinline__ void exchange_shares(WarpShare& to, WarpShare& from) {
  const bool first_lane = read_thread_index() % 32 == 0;
  __threadfence();
  __syncwarp();
  if (first_lane) store_relaxed(&to.has_come, 1);
  poll_until([&] { return __all_sync(0xffffffff, load_acquire(&from.has_come) != 0); });
  if (first_lane) store_relaxed(&from.has_come, 0);
}

// Merges this block's columns of both parts of a row, the earlier first, and writes them.
template <class S, class W>
__device__ __forceinline__ void merge_with_other_part(S& s, const HeadState& m, const SparseMla& a, const W& w,
                                                      int n_before) {
  constexpr int kFoursAtOnce = S::kGroups == 1 ? kHalfFours : kHalfFours / 2;  // as many as there are registers for
  const int lane = read_thread_index() % 32;
  const bool later = w.part() == 1;
  WarpShare &to = warp_share<S>(a, w, w.part() ^ 1), &from = warp_share<S>(a, w, w.part());
  RowTotal own;
  MergeFactors unused[2];
  merge_part_sums(own, m, w.n_tiles() % 2 != 0, unused);
  send_sums(s, own);
#pragma unroll
  for (int j = 0; j < kHalfFours; ++j) __stcg(&to.four[j][lane], four_of(m, !later, j));
  __stcg(&to.maximum[lane], int2{m.maximum[0], m.maximum[1]});
  const float2 other = receive_sums(s, n_before);
  const float4 sums{own.sum[0], own.sum[1], other.x, other.y};
  __stcg(&to.sums[lane], sums);
  exchange_shares(to, from);

  const float4 their_sums = __ldcg(&from.sums[lane]);
  const int2 their_maximum = __ldcg(&from.maximum[lane]);
  float4 theirs[kFoursAtOnce];
  const auto read = [&](int first) {
#pragma unroll
    for (int j = 0; j < kFoursAtOnce; ++j) theirs[j] = __ldcg(&from.four[first + j][lane]);
  };
  read(0);
  const float4 part_sums[kMaxParts] = {choose(later, sums, their_sums), choose(later, their_sums, sums)};
  float4 total{0, 0, 0, 0};
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
  MergeFactors f[kMaxParts][2];
#pragma unroll
  for (int p = 0; p < kMaxParts; ++p) {
    f[p][0] = merge_factors(maximum[0], p == w.part() ? m.maximum[0] : their_maximum.x);
    f[p][1] = merge_factors(maximum[1], p == w.part() ? m.maximum[1] : their_maximum.y);
    const float part[4] = {part_sums[p].x, part_sums[p].y, part_sums[p].z, part_sums[p].w};
    total = merge_four(part, 0, f[p], total);
  }
  const float inverse[2] = {invert_sum(total.x, total.y), invert_sum(total.z, total.w)};
#pragma unroll
  for (int first = 0; first < kHalfFours; first += 4) {
    if (first > 0 && first % kFoursAtOnce == 0) read(first);
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 x = four_of(m, later, first + j), y = theirs[first % kFoursAtOnce + j];
      const float4 early = choose(later, x, y), late = choose(later, y, x);
      const float part[kMaxParts][4] = {{early.x, early.y, early.z, early.w}, {late.x, late.y, late.z, late.w}};
      value[j] = merge_four(part[1], 0, f[1], merge_four(part[0], 0, f[0], {0, 0, 0, 0}));
    }
    store_fours(a, w, w.part() * kHalfFours + first, value, inverse);
  }
}

// Weighs the own head's scores of a tile, once the other block's half of them is there; returns as weigh_own_head().
template <class S>
__device__ __forceinline__ float weigh_tile(S& s, HeadState& m, float (&own_score)[16], int number, bool is_last,
                                            float scale_log2) {
  add_other_half(s, own_score, number);
  const float* bias = is_last ? s.bias[number % kStages] : nullptr;  // only a row's last tile can have invalid indices
  return weigh_own_head(m, own_score, bias, scale_log2);
}

// All tiles of this block's row or part, up to the values of the last, which are still being added.
template <bool kParts, class S>
__device__ __forceinline__ void attend_tiles(S& s, HeadState& m, const SparseMla& a, const HeadsWork<S, kParts>& w,
                                             float scale_log2) {
  const int last = w.n_tiles() - 1;
  float score[32], own_score[16];
  Weights own, other;
  start_part(m);
  multiply_tile(s, score, m, w.base());
  wgmma_wait<0>();
  wgmma_touch(score);
  share_scores(s, own_score, score);
  float factor[2] = {weigh_tile(s, m, own_score, w.base(), last == 0, scale_log2)};
  own.set(own_score);
  send_weights(s, own, m.maximum[0]);
  for (int tile = 0; tile < last; ++tile) {
    const int number = w.base() + tile;
    multiply_tile(s, score, m, number + 1);
    const bool some_change = receive_weights(s, m, other, factor, number);
    wgmma_wait<0>();
    wgmma_touch(score);
    share_scores(s, own_score, score);
    if (some_change) rescale(m, factor);
    multiply_values(s, m, own, other, number);
    if (!kParts && tile + 1 == kPartTiles) {
      wait_for_values(m);
      store_first_part<S>(m, total_slot<S>(a));
    }
    factor[0] = weigh_tile(s, m, own_score, number + 1, tile + 1 == last, scale_log2);
    wait_for_values(m);
    release_tile(s, number);
    own.set(own_score);
    send_weights(s, own, m.maximum[0]);
  }
  if (receive_weights(s, m, other, factor, w.base() + last)) rescale(m, factor);
  multiply_values(s, m, own, other, w.base() + last);
}

// A whole row. While the last values are added its first part is read, if there is one.
template <class S>
__device__ __forceinline__ void attend_row(S& s, HeadState& m, const SparseMla& a, const HeadsWork<S, false>& w,
                                           float scale_log2, int n_before) {
  attend_tiles<false>(s, m, a, w, scale_log2);
  TotalAhead total;
  read_ahead<S>(total, total_slot<S>(a), w.n_tiles() <= kPartTiles);
  wait_for_values(m);
  release_tile(s, w.base() + w.n_tiles() - 1);
  write_row(s, total, m, total_slot<S>(a), a, w, n_before);
}

// One part of a row, whose other part another pair has at the same time.
template <class S>
__device__ __forceinline__ void attend_row(S& s, HeadState& m, const SparseMla& a, const HeadsWork<S, true>& w,
                                           float scale_log2, int n_before) {
  attend_tiles<true>(s, m, a, w, scale_log2);
  wait_for_values(m);
  release_tile(s, w.base() + w.n_tiles() - 1);
  if (w.n_used_parts() == kMaxParts) return merge_with_other_part(s, m, a, w, n_before);
  TotalAhead total;
  read_ahead<S>(total, nullptr, true);
  write_row(s, total, m, nullptr, a, w, n_before);
}

template <bool kParts, class S>
__device__ __forceinline__ void head_role(S& s, const SparseMla& a, float scale_log2) {
  HeadsWork<S, kParts> w(a, kMaxParts);
  int n_attended = 0;  // rows with tiles
  do {
    HeadState m;
    load_queries<LatentRows::kFp8, 128>(s.query[S::group()], m.rope, a, w, read_thread_index() % 128,
                                        kHeadBarrier + S::group(), head_swap(w));
    if (w.n_row_tiles() == 0 && w.part() == 0) write_zeros(a, w);
    if (w.n_tiles() > 0) attend_row(s, m, a, w, scale_log2, n_attended++);
  } while (w.advance());
  cluster_sync();  // nobody leaves while others may read or signal here
}

template <bool kTables, bool kParts, class S>
__device__ __forceinline__ void load_role(S& s, const SparseMla& a) {
  using Loader = Fp8Loader<kTables, S, HeadsWork<S, kParts>>;
  const auto ask = [&](const HeadsWork<S, kParts>& w) { Loader::ask_first(s, a, w); };
  HeadsWork<S, kParts> w(a, kMaxParts, ask);
  RingPosition<kStages> at;
  do {
    Loader(s, a, w, at).run();
  } while (w.advance(ask));
  __syncwarp();
  cluster_sync();
}

template <class S>
__device__ __forceinline__ void init_barriers(S& s) {
  s.key_ring.init(kLoadThreads, S::kHeadThreads / 32 * kWarpArrivals);
  for (int g = 0; g < S::kGroups; ++g) {
    for (Mbarrier* full : {&s.score_full[g], &s.weight_full[g], &s.sum_full[g]}) full->init(1);  // and bytes
  }
  fence_barrier_init();
}

template <int kGroups, bool kParts, bool kTables>
__global__ void __launch_bounds__(HalfDepth<kGroups>::kThreads, 1)
    half_depth_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& s = *reinterpret_cast<HalfDepth<kGroups>*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  launch_dependents();
  grid_dependency_wait();
  cluster_sync();
  if (warp_index() < s.kHeadThreads / 32) {
    if constexpr (kGroups == 2) setmaxnreg_inc<kHeadRegs>();
    head_role<kParts>(s, a, scale_log2);
  } else {
    if constexpr (kGroups == 2) setmaxnreg_dec<kLoadRegs>();
    load_role<kTables, kParts>(s, a);
  }
}

template <int kGroups, bool kParts, bool kTables>
void launch_as(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_items = a.n_rows * (kGroups == 1 ? mla_head_groups(a.n_heads) : 1) * (kParts ? kMaxParts : 1);
  const Launch l{.grid = {static_cast<unsigned>(2 * std::min(n_items, most_mla_pairs()))},
                 .block = {HalfDepth<kGroups>::kThreads},
                 .shared_bytes = sizeof(HalfDepth<kGroups>),
                 .cluster = 2,
                 .pdl = true,
                 .stream = stream};
  if constexpr (kParts)
    launch_together(half_depth_kernel<kGroups, kParts, kTables>, l, a, a.scale * kLog2E);
  else
    launch_kernel(half_depth_kernel<kGroups, kParts, kTables>, l, a, a.scale * kLog2E);
}

template <int kGroups, bool kParts>
void launch(const SparseMla& a, StreamHandle stream) {
  if (a.tables.data != nullptr)
    launch_as<kGroups, kParts, true>(a, stream);
  else
    launch_as<kGroups, kParts, false>(a, stream);
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_sparse_mla_half_depth(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  if (sharing == MlaSharing::kPairs) return mla::launch<1, true>(a, stream);
  if (sharing == MlaSharing::kAllHeadsParts) return mla::launch<2, true>(a, stream);
  mla::launch<2, false>(a, stream);
}

}  // namespace levin::cuda
