// select_topk, sm_90a. A cluster of blocks finds the K-th best score of one row digit by digit, then writes the picks
// in order.
//
//   in    score [rows, S] f32, lengths, first digits counted or not      out  picks [rows, K] i32
//   grid  rows x n_split, a cluster per row     block  32 warps, each with one contiguous run of the row
//   smem  struct Shared below: a histogram of 128 bins per digit, what the cluster counted, counts of the warps
//   flow  for each digit of 7 bits (the top one has 4): count it among the keys that share the digits found so far, add
//   the cluster's
//         histograms, find the bin that holds the K-th. Where the scores came with counted first digits, begin behind
//         those. Stop early when a bin is taken whole. Then count what each warp will write, and write it.
//   edge  at most K candidates: all of them, unread. Ties at the threshold go to the lowest positions: warps, blocks
//   and lanes stand in
//         row order, and ranks are prefix sums; nothing depends on the order of atomics.
//   cost  a run of up to 512 keys a warp is read once and kept in registers; longer rows are read once per pass (at
//   most 7) why   small digits: what blocks must exchange per digit is one load a thread. Plateaus of equal scores are
//   common (every head
//         negative gives exactly 0); adding 1 to a bin for many lanes of a warp is one operation of shared memory here.
#include <cstdint>

#include "kernels/cuda/index_plan.cuh"
#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/tiles/score_key.cuh"
#include "kernels/cuda/topk_launch.h"

namespace levin::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kPerLane = 16;
constexpr int kChunk = 32 * kPerLane;  // keys a warp holds at once
constexpr uint32_t kAllLanes = 0xffffffff;

struct Counts {
  uint32_t above;
  uint32_t ties;
};

constexpr int kDigitBits = 7;
constexpr int kDigitBins = 1 << kDigitBits;
constexpr int kDigits = 5;  // of 4, 7, 7, 7, 7 bits; the first two are the first digit of tiles/score_key.cuh
constexpr int kMaxSplit = 8;

struct Shared {
  uint32_t digit[kDigits][kDigitBins];
  alignas(16) uint32_t cluster_digit[kMaxSplit][kDigitBins];
  uint32_t warp_sum[kWarps];
  Counts warp_counts[kWarps];
  Counts block_counts;
  uint32_t first_value;  // of the counted first digits: the one that holds the K-th, the picks left inside, its keys
  uint32_t first_left;
  uint32_t first_count;
};

struct Row {
  const float* score;
  const int32_t* table;  // null: logical
  int32_t* picks;
  int first;  // candidates first <= s < end
  int end;
};

__device__ Row row_of(const SelectTopk& a, int64_t r) {
  const int request = static_cast<int>(r / a.n_tokens), token = static_cast<int>(r % a.n_tokens);
  Row row;
  row.score = a.score + r * a.score_stride;
  row.picks = a.picks + r * a.n_picks;
  row.first = max(a.begin ? a.begin[r] : a.first, 0);
  row.end = max(row_length(a.lengths, a.max_length, request, token), row.first);
  row.table = nullptr;
  if (a.tables.data != nullptr) {
    const int table_row = a.tables.row_of_request ? a.tables.row_of_request[request] : request;
    row.table = a.tables.data + table_row * a.tables.stride;
  }
  return row;
}

__device__ __forceinline__ int32_t place(const Row& row, int s) {
  if (row.table == nullptr) return s;
  return row.table[s / kIndexPageTokens] * kIndexPageTokens + s % kIndexPageTokens;
}

// A warp's run of the row, held in registers where it fits.
struct WarpKeys {
  uint32_t key[kPerLane];
  int first;
  int end;

  __device__ __forceinline__ bool held() const { return end - first <= kChunk; }

  __device__ __forceinline__ void load(const float* score, int base, uint32_t* fault) {
    const int lane = threadIdx.x % 32;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int s = base + 32 * i + lane;
      const float value = s < end ? score[s] : 0.0f;
      bad |= isnan(value);
      key[i] = score_key(value);
    }
    if (bad) atomicOr(fault, 1u);
  }

  // f(key, s, inside) for every key of the run; all lanes call together, s ascending over i and lane.
  template <class F>
  __device__ __forceinline__ void for_each(const float* score, uint32_t* fault, F f) {
    const int lane = threadIdx.x % 32;
    for (int base = first; base < end; base += kChunk) {
      if (!held()) load(score, base, fault);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int s = base + 32 * i + lane;
        if (base + 32 * i < end) f(key[i], s, s < end);
      }
    }
  }
};

// Shared memory written so far by the blocks of the cluster may be read by the others.
__device__ void exchange_sync(int n_split) {
  __syncthreads();
  if (n_split > 1) cluster_sync_shared();
}

// Sum over the threads before this one. Called by the whole block.
__device__ uint32_t exclusive_sum(Shared& s, uint32_t own) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t inclusive = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) s.warp_sum[warp] = inclusive;
  __syncthreads();
  uint32_t before = lane < warp ? s.warp_sum[lane] : 0;
  before = __reduce_add_sync(kAllLanes, before);
  return before + inclusive - own;
}

// Keys with key >> shift > value are taken, of those with key >> shift == value the first `left`; there are `count`.
struct Threshold {
  int shift;
  uint32_t value;
  uint32_t left;
  uint32_t count;
};

// This thread's two bins of the counted first digits of a row, the highest bins with the first thread.
struct FirstCounts {
  uint32_t high = 0;
  uint32_t low = 0;
};

__device__ __forceinline__ uint32_t own_top_bin() { return kScoreBins - 1 - 2 * threadIdx.x; }

__device__ __forceinline__ FirstCounts load_first_counts(const uint32_t* counts) {
  const uint32_t top = own_top_bin();
  return {counts[top], counts[top - 1]};
}

__device__ Threshold first_threshold(Shared& s, const FirstCounts& counts, uint32_t n_picks) {
  const uint32_t top = own_top_bin(), high = counts.high, low = counts.low;
  const uint32_t before = exclusive_sum(s, low + high);
  if (before < n_picks && n_picks <= before + high + low) {
    const bool in_high = n_picks <= before + high;
    s.first_value = in_high ? top : top - 1;
    s.first_left = n_picks - before - (in_high ? 0 : high);
    s.first_count = in_high ? high : low;
  }
  __syncthreads();
  return {kFirstShift, s.first_value, s.first_left, s.first_count};
}

// The bin of 128 in which the `left`-th key lies, counted from the highest, given this lane's bins 127 - 4 * lane and
// the three below.
__device__ Threshold find_in_digit(const uint32_t (&count)[4], const Threshold& t, int bits) {
  const int lane = threadIdx.x % 32;
  const uint32_t own = count[0] + count[1] + count[2] + count[3];
  uint32_t inclusive = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  uint32_t before = inclusive - own;
  const uint32_t holders = __ballot_sync(kAllLanes, inclusive >= t.left);
  const int holder = __ffs(static_cast<int>(holders)) - 1;  // there is one: the bin above held `left` keys or more
  int i = 0;
  while (i < 3 && before + count[i] < t.left) before += count[i++];
  const uint32_t bin = kDigitBins - 1 - 4 * lane - i, left = t.left - before;
  const uint32_t in_bin = i == 0 ? count[0] : i == 1 ? count[1] : i == 2 ? count[2] : count[3];
  return {t.shift - bits, t.value << bits | __shfl_sync(kAllLanes, bin, holder), __shfl_sync(kAllLanes, left, holder),
          __shfl_sync(kAllLanes, in_bin, holder)};
}

// Refines t by its next digit over all blocks of the cluster; every warp finds the same.
__device__ Threshold refine(Shared& s, const SelectTopk& a, const Row& row, int n_split, WarpKeys& keys,
                            const Threshold& t, int digit) {
  const int bits = digit == 0 ? 32 - (kDigits - 1) * kDigitBits : kDigitBits;
  const int shift = t.shift - bits;
  keys.for_each(row.score, a.fault, [&](uint32_t key, int, bool inside) {
    const bool shares = digit == 0 || key >> t.shift == t.value;
    if (inside && shares) atomicAdd(&s.digit[digit][key >> shift & (kDigitBins - 1)], 1u);
  });
  exchange_sync(n_split);
  if (threadIdx.x < n_split * kDigitBins) {
    const uint32_t rank = threadIdx.x / kDigitBins, bin = threadIdx.x % kDigitBins;
    s.cluster_digit[rank][bin] = cluster_load_u32(&s.digit[digit][bin], rank);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  uint32_t count[4] = {0, 0, 0, 0};
  for (int rank = 0; rank < n_split; ++rank) {
    const uint4 four = *reinterpret_cast<const uint4*>(&s.cluster_digit[rank][kDigitBins - 4 - 4 * lane]);
    count[0] += four.w;
    count[1] += four.z;
    count[2] += four.y;
    count[3] += four.x;
  }
  __syncthreads();  // the next digit overwrites cluster_digit
  return find_in_digit(count, t, bits);
}

__device__ Threshold find_threshold(Shared& s, const SelectTopk& a, const Row& row, const FirstCounts& first,
                                    int n_split, WarpKeys& keys) {
  const uint32_t n_picks = static_cast<uint32_t>(a.n_picks);
  Threshold t{32, 0, n_picks, 0};
  int digit = 0;
  if (a.histogram != nullptr) {
    t = first_threshold(s, first, n_picks);
    digit = 2;
  }
  for (; digit < kDigits && t.left != t.count; ++digit) t = refine(s, a, row, n_split, keys, t, digit);
  return t;
}

// What lies before this warp's run: counts of the lower blocks of the cluster and of the lower warps of this one.
__device__ Counts counts_before(Shared& s, Counts own, int n_split) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) s.warp_counts[warp] = own;
  __syncthreads();
  const Counts other = s.warp_counts[lane];
  Counts before{__reduce_add_sync(kAllLanes, lane < warp ? other.above : 0),
                __reduce_add_sync(kAllLanes, lane < warp ? other.ties : 0)};
  if (threadIdx.x < 32) {
    const Counts total{__reduce_add_sync(kAllLanes, other.above), __reduce_add_sync(kAllLanes, other.ties)};
    if (lane == 0) s.block_counts = total;
  }
  exchange_sync(n_split);
  const uint32_t rank = cluster_rank();
  Counts lower{0, 0};
  if (lane < static_cast<int>(rank)) {
    lower = {cluster_load_u32(&s.block_counts.above, lane), cluster_load_u32(&s.block_counts.ties, lane)};
  }
  return {before.above + __reduce_add_sync(kAllLanes, lower.above),
          before.ties + __reduce_add_sync(kAllLanes, lower.ties)};
}

__device__ void write_picks(Shared& s, const SelectTopk& a, const Row& row, const Threshold& t, int n_split,
                            WarpKeys& keys) {
  Counts own{0, 0};
  keys.for_each(row.score, a.fault, [&](uint32_t key, int, bool inside) {
    own.above += inside && key >> t.shift > t.value;
    own.ties += inside && key >> t.shift == t.value;
  });
  own = {__reduce_add_sync(kAllLanes, own.above), __reduce_add_sync(kAllLanes, own.ties)};
  Counts before = counts_before(s, own, n_split);
  const uint32_t lower_lanes = (1u << (threadIdx.x % 32)) - 1;
  keys.for_each(row.score, a.fault, [&](uint32_t key, int position, bool inside) {
    const bool is_above = inside && key >> t.shift > t.value;
    const bool is_tie = inside && key >> t.shift == t.value;
    const uint32_t above_lanes = __ballot_sync(kAllLanes, is_above), tie_lanes = __ballot_sync(kAllLanes, is_tie);
    if ((above_lanes | tie_lanes) == 0) return;
    const uint32_t above = before.above + __popc(above_lanes & lower_lanes);
    const uint32_t ties = before.ties + __popc(tie_lanes & lower_lanes);
    if (is_above || (is_tie && ties < t.left)) row.picks[above + min(ties, t.left)] = place(row, position);
    before.above += __popc(above_lanes);
    before.ties += __popc(tie_lanes);
  });
}

__global__ void __launch_bounds__(kThreads, 1) select_topk_kernel(const SelectTopk a, int n_split) {
  __shared__ Shared s;
  const int rank = n_split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int64_t r = blockIdx.x / n_split;
  if (threadIdx.x < kDigits * kDigitBins) (&s.digit[0][0])[threadIdx.x] = 0;
  wait_for_previous();
  const Row row = row_of(a, r);
  const int n = row.end - row.first;
  if (n <= a.n_picks) {
    for (int i = rank * kThreads + threadIdx.x; i < a.n_picks; i += n_split * kThreads)
      row.picks[i] = i < n ? place(row, row.first + i) : -1;
    return;
  }
  __syncthreads();

  const int n_warps = n_split * kWarps;
  const int span = ((n + n_warps - 1) / n_warps + 31) / 32 * 32;
  FirstCounts first;  // both reads at once
  if (a.histogram != nullptr) first = load_first_counts(a.histogram + r * kScoreBins);
  WarpKeys keys;
  keys.first = row.first + min(n, (rank * kWarps + static_cast<int>(threadIdx.x) / 32) * span);
  keys.end = min(row.end, keys.first + span);
  if (keys.held()) keys.load(row.score, keys.first, a.fault);
  const Threshold t = find_threshold(s, a, row, first, n_split, keys);
  write_picks(s, a, row, t, n_split, keys);
  exchange_sync(n_split);  // nobody leaves while its counts may be read
  if (a.histogram != nullptr) {
    for (int i = rank * kThreads + threadIdx.x; i < kScoreBins; i += n_split * kThreads)
      a.histogram[r * kScoreBins + i] = 0;
  }
}

}  // namespace

void launch_select_topk(const SelectTopk& a, int n_split, StreamHandle stream) {
  launch_kernel(select_topk_kernel,
                {.grid = {static_cast<unsigned>(a.n_rows * n_split)},
                 .block = {kThreads},
                 .cluster = n_split,
                 .follows_closely = true,
                 .stream = stream},
                a, n_split);
}

}  // namespace levin::cuda
