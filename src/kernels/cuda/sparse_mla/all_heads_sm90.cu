// sparse_mla over FP8 rows for 65 to 128 heads, sm_90a. A pair of blocks attends with all heads of one query row, to all its top-k
// indices or, in parts, to 1024 of them.
//
//   in, out, order, parts, edge  as in sparse_mla_sm90.cuh, and the same bits
//   grid  two blocks for every two SMs, which go from row to row; in parts rows x 2 parts x 2, on the device at the same time
//   cluster  a pair      block  2 head + 1 load warpgroup
//   smem  struct AllHeads below: kStages half key tiles of 64 indices, the block's half of the queries of all heads, what the
//         other block sends, cache rows on their way
//   flow  Block h of a pair holds half the depth, which is also its half of the value columns. Load warpgroup: indices ->
//         rows -> bf16 tiles, which both head warpgroups multiply. Head warpgroup g has heads 64g .. 64g+63, alone: scores
//         over its half of the depth; the halves are exchanged and added, in both blocks alike; weights, which stay in
//         registers; its 256 value columns. Scores of tile i+1 are computed before the values of tile i, and their halves
//         travel meanwhile, where a row's first part ends too: its sums go to scratch memory, and are read from there while
//         the row's last values are added. In parts the pairs of a row send each other half of their columns by way of scratch
//         memory, and merge the others.
//   cost  a tile and block: 36 wgmma m64n64k16 + 8 m64n256k16 = 2176 tensor cycles; 32 KB sent to the other block; 64 x
//         288 values converted at 9 instructions for four
//   why   the block of sparse_mla_sm90.cuh converts a tile for 64 heads, and its load warpgroup is busy four fifths of the
//         time; here the same work serves 128. The two head warpgroups wait for the other block and for rows only, so
//         that one multiplies while the other weighs.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch_together.h"
#include "kernels/cuda/prims/shared_words.cuh"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kHeadThreads = 256;
constexpr int kAllHeadsThreads = kHeadThreads + kLoadThreads;
constexpr int kHeadRegs = 216, kLoadRegs = 72, kStartRegs = 168;
static_assert(2 * kHeadRegs + kLoadRegs == 3 * kStartRegs);
constexpr int kFours = kHalfLatent / 8;  // groups of four sums of a thread: two neighbouring columns of two heads
constexpr int kHeadBarrier = 1;          // of head warpgroup 0; 2 of the other
static_assert(kMaxParts == 2);

struct AllHeads {
  static constexpr int kRawStages = 2;
  static constexpr int kFirstLoadThread = kHeadThreads;

  KeyTile key[kStages];
  alignas(1024) uint8_t query[2][kChunks][kChunkBytes];  // of each group of heads
  alignas(16) float4 exchange[2][8][128];                // the other block's half of its scores, one slot per thread
  RawKeys raw[kRawStages];
  int32_t pick[kPickStages][kTileKeys / 2];
  int32_t entry[kEntryStages][kTileKeys / 2];
  float bias[kStages][kTileKeys];
  RingBarriers<kStages> key_ring;
  Mbarrier exchange_full[2];
  Mbarrier exchange_empty[2];
};
static_assert(sizeof(AllHeads) <= kMaxSharedBytes, "too much shared memory");

template <bool kParts>
using HeadsWork = Work<kParts ? MlaSharing::kPairs : MlaSharing::kWholeRows, true>;

// A head warpgroup's thread has heads row and row + 8 of its group (own_row()), index h below, and in `acc` columns
// 8j + 2 * (lane % 4) and the next of them in acc[4j + 2h] and the next.
struct HeadState {
  uint32_t rope[2][4];  // the queries' rope half as wgmma A operands
  float acc[4 * kFours];
  int32_t maximum[2];          // running maximum of the part, which acc is relative to
  int32_t earlier_maximum[2];  // the same before its last tile
  float sum[2][2];  // in this lane's columns, of the weights of every other tile: of those up to the last but
                    // one, relative to earlier_maximum, and of those up to the last, relative to maximum
};

// The sums of the parts of a row that have been merged, over the row's four lanes, relative to 2^maximum.
struct RowTotal {
  float sum[2][2] = {{0, 0}, {0, 0}};  // of the even and the odd tiles
  int32_t maximum[2] = {kNoCeiling, kNoCeiling};
};

__device__ __forceinline__ void start_part(HeadState& m) {
#pragma unroll
  for (int i = 0; i < 4 * kFours; ++i) m.acc[i] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    m.maximum[h] = m.earlier_maximum[h] = kNoCeiling;
    m.sum[0][h] = m.sum[1][h] = 0;
  }
}

// Merges the sums of a finished part, whose last tile is an even or an odd one; returns the factors for its values.
__device__ __forceinline__ void merge_part_sums(RowTotal& total, const HeadState& m, bool last_is_even,
                                                MergeFactors (&f)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    f[h] = merge_factors(total.maximum[h], m.maximum[h]);
    float part_sum[2] = {m.sum[0][h] * power_of_two(m.earlier_maximum[h] - m.maximum[h]), m.sum[1][h]};
#pragma unroll
    for (float& sum : part_sum) {
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
    }
    total.sum[0][h] = fmaf(last_is_even ? part_sum[1] : part_sum[0], f[h].part, total.sum[0][h] * f[h].total);
    total.sum[1][h] = fmaf(last_is_even ? part_sum[0] : part_sum[1], f[h].part, total.sum[1][h] * f[h].total);
  }
}

// The first part of a whole row in scratch memory: kTotalFours float4 of each head thread of a block, 256 threads apart, the
// values and then the RowTotal. Of a block: see scratch_slot().
constexpr int kTotalFours = kFours + 2;
static_assert(kTotalFours * kHeadThreads * sizeof(float4) <= kMlaTotalBytes);
__device__ __forceinline__ float4* total_slot(const SparseMla& a) {
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes) +
         int64_t{read_block_index()} * kTotalFours * kHeadThreads + read_thread_index();
}

// What of it is read while the last values of a row are added: its registers are then free.
constexpr int kFoursAhead = 8, kFoursAtOnce = 12;
static_assert((kFours - kFoursAhead) % kFoursAtOnce == 0);
struct TotalAhead {
  float4 four[kFoursAhead];
  RowTotal sums;
};
__device__ __forceinline__ void read_ahead(TotalAhead& total, const float4* slot, bool first_part) {
  total.sums = {};
  read_total<kHeadThreads>(total.four, slot, 0, first_part);
  if (first_part) return;
  const float4 sum = __ldcg(slot + kFours * kHeadThreads), maximum = __ldcg(slot + (kFours + 1) * kHeadThreads);
  total.sums.sum[0][0] = sum.x, total.sums.sum[0][1] = sum.y;
  total.sums.sum[1][0] = sum.z, total.sums.sum[1][1] = sum.w;
  total.sums.maximum[0] = __float_as_int(maximum.x), total.sums.maximum[1] = __float_as_int(maximum.y);
}
__device__ __forceinline__ void write_row_total(float4* slot, const RowTotal& total) {
  slot[kFours * kHeadThreads] = {total.sum[0][0], total.sum[0][1], total.sum[1][0], total.sum[1][1]};
  slot[(kFours + 1) * kHeadThreads] = {__int_as_float(total.maximum[0]), __int_as_float(total.maximum[1]), 0, 0};
}

// Merges kCount times four values, from `first` on.
template <int kCount>
__device__ __forceinline__ void merge_fours(float4 (&total)[kCount], const HeadState& m, int first,
                                            const MergeFactors (&f)[2]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) total[j] = merge_four(m.acc, first + j, f, total[j]);
}

// Leaves the first part of a row, all kPartTiles tiles of it, in scratch memory as the total so far, and starts the other.
__device__ __forceinline__ void store_first_part(HeadState& m, float4* slot) {
  RowTotal total;
  MergeFactors f[2];
  merge_part_sums(total, m, false, f);
  write_row_total(slot, total);
#pragma unroll
  for (int j = 0; j < kFours; ++j) slot[j * kHeadThreads] = merge_four(m.acc, j, f, {0, 0, 0, 0});
  start_part(m);
}

// A tile's scores turned into weights, as a wgmma A operand; acc is brought to the new maximum.
__device__ __forceinline__ void weigh_tile(HeadState& m, uint32_t (&weight)[16], float (&score)[32], const float* bias,
                                           float scale_log2) {
  int32_t ceiling[2];
  float factor[2];
  find_ceilings(score, ceiling, bias, scale_log2);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t before = m.maximum[h];
    m.maximum[h] = max(before, ceiling[h]);
    factor[h] = power_of_two(before - m.maximum[h]);
    ceiling[h] = before;
  }
  weigh(m.sum[0], m.earlier_maximum, score, m.maximum, scale_log2);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = m.sum[0][h];
    m.sum[0][h] = m.sum[1][h];
    m.sum[1][h] = sum;
    m.earlier_maximum[h] = ceiling[h];
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(score[2 * i], score[2 * i + 1]);
    weight[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (int i = 0; i < 4 * kFours; ++i) m.acc[i] *= factor[i / 2 % 2];
  }
}

// A value that all lanes have, as one that the compiler knows to be such: descriptors are then stepped once for the warp.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Starts this block's half of a tile's scores. The fence: see start_scores().
__device__ __forceinline__ void multiply_tile(AllHeads& s, float (&score)[32], const HeadState& m, int number) {
  s.key_ring.full[number % kStages].wait(number / kStages & 1);
  fence_async_shared();
  multiply_scores(score, s.query[uniform(head_group())], m.rope, s.key[uniform(number % kStages)]);
}

// Starts acc += weights x values of one tile.
__device__ __forceinline__ void multiply_values(AllHeads& s, HeadState& m, const uint32_t (&weight)[16], int number) {
  const uint64_t value = wgmma_descriptor_mn_major(s.key[uniform(number % kStages)].latent[0], kChunkBytes);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {weight[4 * k], weight[4 * k + 1], weight[4 * k + 2], weight[4 * k + 3]};
    Wgmma<256>::bf16<1>(m.acc, operand, value + descriptor_step(2048 * k), true);
  }
  wgmma_commit();
}

// A tile whose scores were not computed ahead: this block's half of them, sent to the other block.
__device__ __forceinline__ void start_tile(AllHeads& s, float (&score)[32], const HeadState& m, int number) {
  multiply_tile(s, score, m, number);
  wgmma_wait<0>();
  wgmma_touch(score);
  send_scores(s, score, head_group(), number, cluster_rank() ^ 1);
}

// Adds the other block's half to the scores of a tile that start_tile() or the tile before has begun, and weighs them.
__device__ __forceinline__ void receive_tile(AllHeads& s, HeadState& m, uint32_t (&weight)[16], float (&score)[32],
                                             int number, bool some_invalid, float scale_log2) {
  add_received(s, score, head_group(), number, cluster_rank() ^ 1);
  weigh_tile(m, weight, score, some_invalid ? s.bias[number % kStages] : nullptr, scale_log2);
}

__device__ __forceinline__ void release_tile(AllHeads& s, HeadState& m, int number) {
  wgmma_wait<0>();
  wgmma_touch(m.acc);
  s.key_ring.empty[number % kStages].arrive_as_warp();
  __syncwarp();
}

// Fours j .. j + 3 of this block's half, which are 32 columns.
template <class W>
__device__ __forceinline__ void store_fours(const SparseMla& a, const W& w, int j, const float4* value,
                                            const float (&inverse)[2]) {
  if (!a.out_f32) return store_32_columns(a, w, w.half() * kHalfLatent + 8 * j, value, inverse);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_output<LatentRows::kFp8, true>(a, w, w.half() * kHalfLatent, j + i, value[i], inverse);
}

// Merges the last part of a whole row and writes the row.
template <class W>
__device__ __forceinline__ void write_row(TotalAhead& total, const HeadState& m, const float4* slot, const SparseMla& a,
                                          const W& w) {
  const bool first_part = w.n_tiles() <= kPartTiles;
  MergeFactors f[2];
  merge_part_sums(total.sums, m, w.n_tiles() % 2 != 0, f);
  const float inverse[2] = {invert_sum(total.sums.sum[0][0], total.sums.sum[1][0]),
                            invert_sum(total.sums.sum[0][1], total.sums.sum[1][1])};
  merge_fours(total.four, m, 0, f);
#pragma unroll
  for (int j = 0; j < kFoursAhead; j += 4) store_fours(a, w, j, total.four + j, inverse);
#pragma unroll
  for (int first = kFoursAhead; first < kFours; first += kFoursAtOnce) {
    float4 four[kFoursAtOnce];
    read_total<kHeadThreads>(four, slot, first, first_part);
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

// Half the columns of a part, for the block that merges them: kHalfFours float4 of each head thread, 256 threads apart, the sums
// of the weights and what both are relative to. A word for each warpgroup says that they are there.
constexpr int kHalfFours = kFours / kMaxParts, kShareFours = kHalfFours + 2;
static_assert(kShareFours * kHeadThreads * sizeof(float4) <= kMlaTotalBytes);
template <class W>
__device__ __forceinline__ int share_index(const W& w, int part) {
  return (static_cast<int>(w.row()) * kMaxParts + part) * 2 + w.half();
}
__device__ __forceinline__ float4* share_slot(const SparseMla& a, int index) {
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes) + int64_t{index} * kShareFours * kHeadThreads +
         read_thread_index();
}
__device__ __forceinline__ uint32_t* share_word(const SparseMla& a, int index) {
  return reinterpret_cast<uint32_t*>(a.scratch) + index * 2 + head_group();
}

// Says that this warpgroup's share has been written; waits for the other part's, and leaves its word as it was.
__device__ __forceinline__ void exchange_shares(const SparseMla& a, int own, int other) {
  __threadfence();
  named_barrier(kHeadBarrier + head_group(), 128);
  if (read_thread_index() % 128 == 0) {
    store_relaxed(share_word(a, other), 1);
    poll_until([&] { return load_acquire(share_word(a, own)) != 0; });
    store_relaxed(share_word(a, own), 0);
  }
  named_barrier(kHeadBarrier + head_group(), 128);
}

// Merges this block's columns of both parts of a row, the earlier first, and writes them.
template <class W>
__device__ __forceinline__ void merge_with_other_part(const HeadState& m, const SparseMla& a, const W& w) {
  RowTotal part;
  MergeFactors unused[2];
  merge_part_sums(part, m, w.n_tiles() % 2 != 0, unused);
  const bool later = w.part() == 1;
  const auto four = [&](int half, int j) {  // of the first or the second half of the columns
    const float* v = m.acc + 4 * (half * kHalfFours + j);
    return float4{v[0], v[1], v[2], v[3]};
  };
  const auto choose = [](bool second, const float4& x, const float4& y) {
    return float4{second ? y.x : x.x, second ? y.y : x.y, second ? y.z : x.z, second ? y.w : x.w};
  };
  const int other = share_index(w, w.part() ^ 1), own = share_index(w, w.part());
  float4* to = share_slot(a, other);
#pragma unroll
  for (int j = 0; j < kHalfFours; ++j) __stcg(to + j * kHeadThreads, choose(!later, four(0, j), four(1, j)));
  __stcg(to + kHalfFours * kHeadThreads, float4{part.sum[0][0], part.sum[0][1], part.sum[1][0], part.sum[1][1]});
  __stcg(to + (kHalfFours + 1) * kHeadThreads,
         float4{__int_as_float(part.maximum[0]), __int_as_float(part.maximum[1]), 0, 0});
  exchange_shares(a, own, other);
  const float4* from = share_slot(a, own);
  const float4 sum = __ldcg(from + kHalfFours * kHeadThreads), maximum = __ldcg(from + (kHalfFours + 1) * kHeadThreads);
  const float other_sum[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
  const int32_t other_max[2] = {__float_as_int(maximum.x), __float_as_int(maximum.y)};
  RowTotal total;
  MergeFactors f[kMaxParts][2];
#pragma unroll
  for (int p = 0; p < kMaxParts; ++p) {
    const bool is_own = p == w.part();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      f[p][h] = merge_factors(total.maximum[h], is_own ? part.maximum[h] : other_max[h]);
#pragma unroll
      for (int parity = 0; parity < 2; ++parity)
        total.sum[parity][h] = fmaf(is_own ? part.sum[parity][h] : other_sum[parity][h], f[p][h].part,
                                    total.sum[parity][h] * f[p][h].total);
    }
  }
  const float inverse[2] = {invert_sum(total.sum[0][0], total.sum[1][0]), invert_sum(total.sum[0][1], total.sum[1][1])};
#pragma unroll
  for (int first = 0; first < kHalfFours; first += 4) {
    float4 value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = __ldcg(from + (first + j) * kHeadThreads);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 mine = choose(later, four(0, first + j), four(1, first + j)), theirs = value[j];
      value[j] = {0, 0, 0, 0};
#pragma unroll
      for (int p = 0; p < kMaxParts; ++p) {
        const float4 v = p == w.part() ? mine : theirs;
        const float of_part[4] = {v.x, v.y, v.z, v.w};
        value[j] = merge_four(of_part, 0, f[p], value[j]);
      }
    }
    store_fours(a, w, w.part() * kHalfFours + first, value, inverse);
  }
}

// All tiles of this block's row or part, up to the values of the last, which are still being added. The scores of a tile are
// computed before the values of the tile before, over the end of a row's first part too.
template <bool kParts>
__device__ __forceinline__ void attend_tiles(AllHeads& s, HeadState& m, const SparseMla& a, const HeadsWork<kParts>& w,
                                             float scale_log2) {
  float score[32];
  uint32_t weight[16];
  start_part(m);
  start_tile(s, score, m, w.base());
  const int last = w.n_tiles() - 1;
  for (int tile = 0; tile < last; ++tile) {
    const int number = w.base() + tile;
    receive_tile(s, m, weight, score, number, false, scale_log2);  // only a row's last tile can have invalid indices
    multiply_tile(s, score, m, number + 1);
    multiply_values(s, m, weight, number);
    wgmma_wait<1>();
    wgmma_touch(score);
    send_scores(s, score, head_group(), number + 1, cluster_rank() ^ 1);
    release_tile(s, m, number);
    if (!kParts && tile + 1 == kPartTiles) store_first_part(m, total_slot(a));
  }
  receive_tile(s, m, weight, score, w.base() + last, true, scale_log2);
  multiply_values(s, m, weight, w.base() + last);
}

// A whole row. While the last values are added its first part is read, if there is one.
__device__ __forceinline__ void attend_row(AllHeads& s, HeadState& m, const SparseMla& a, const HeadsWork<false>& w,
                                           float scale_log2) {
  attend_tiles<false>(s, m, a, w, scale_log2);
  TotalAhead total;
  read_ahead(total, total_slot(a), w.n_tiles() <= kPartTiles);
  release_tile(s, m, w.base() + w.n_tiles() - 1);
  write_row(total, m, total_slot(a), a, w);
}

// One part of a row, whose other part another pair has at the same time.
__device__ __forceinline__ void attend_row(AllHeads& s, HeadState& m, const SparseMla& a, const HeadsWork<true>& w,
                                           float scale_log2) {
  attend_tiles<true>(s, m, a, w, scale_log2);
  release_tile(s, m, w.base() + w.n_tiles() - 1);
  if (w.n_used_parts() == kMaxParts) return merge_with_other_part(m, a, w);
  TotalAhead total;
  read_ahead(total, nullptr, true);
  write_row(total, m, nullptr, a, w);
}

template <bool kParts>
__device__ __forceinline__ void head_role(AllHeads& s, const SparseMla& a, float scale_log2) {
  HeadsWork<kParts> w(a, kMaxParts);
  do {
    HeadState m;
    load_queries<LatentRows::kFp8, 128>(s.query[head_group()], m.rope, a, w, read_thread_index() % 128,
                                        kHeadBarrier + head_group());
    if (w.n_row_tiles() == 0 && w.part() == 0) write_zeros(a, w);
    if (w.n_tiles() > 0) attend_row(s, m, a, w, scale_log2);
  } while (w.advance());
  cluster_sync();  // nobody leaves while others may read or signal here
}

template <bool kTables, bool kParts>
__device__ __forceinline__ void load_role(AllHeads& s, const SparseMla& a) {
  HeadsWork<kParts> w(a, kMaxParts);
  RingPosition<kStages> at;
  do {
    Fp8Loader<kTables, AllHeads, HeadsWork<kParts>>(s, a, w, at).run();
  } while (w.advance());
  __syncwarp();
  cluster_sync();
}

__device__ __forceinline__ void init_barriers(AllHeads& s) {
  s.key_ring.init(kLoadThreads, kHeadThreads / 32 * kWarpArrivals);
  for (int g = 0; g < 2; ++g) {
    s.exchange_full[g].init(1);   // and the bytes of the other block
    s.exchange_empty[g].init(4);  // warps of the other block
  }
  fence_barrier_init();
}

template <bool kTables, bool kParts>
__global__ void __launch_bounds__(kAllHeadsThreads, 1)
    all_heads_kernel(const __grid_constant__ SparseMla a, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  AllHeads& s = *reinterpret_cast<AllHeads*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  launch_dependents();
  grid_dependency_wait();
  cluster_sync();
  if (warp_index() < kHeadThreads / 32) {
    setmaxnreg_inc<kHeadRegs>();
    head_role<kParts>(s, a, scale_log2);
  } else {
    setmaxnreg_dec<kLoadRegs>();
    load_role<kTables, kParts>(s, a);
  }
}

template <bool kTables, bool kParts>
void launch_as(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t n_pairs = std::min(kParts ? a.n_rows * kMaxParts : a.n_rows, most_mla_pairs());
  const Launch l{.grid = {static_cast<unsigned>(2 * n_pairs)},
                 .block = {kAllHeadsThreads},
                 .shared_bytes = sizeof(AllHeads),
                 .cluster = 2,
                 .pdl = true,
                 .stream = stream};
  if constexpr (kParts)
    launch_together(all_heads_kernel<kTables, kParts>, l, a, a.scale * kLog2E);
  else
    launch_kernel(all_heads_kernel<kTables, kParts>, l, a, a.scale * kLog2E);
}

template <bool kParts>
void launch(const SparseMla& a, StreamHandle stream) {
  if (a.tables.data != nullptr)
    launch_as<true, kParts>(a, stream);
  else
    launch_as<false, kParts>(a, stream);
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_sparse_mla_all_heads(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  if (sharing == MlaSharing::kAllHeadsParts)
    mla::launch<true>(a, stream);
  else
    mla::launch<false>(a, stream);
}

}  // namespace levin::cuda
