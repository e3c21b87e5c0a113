// select_topk, sm_90a. A cluster of blocks finds the K-th best score of one row, then writes the top-k indices in order.
//
//   in    score [rows, S] f32, lengths, counted in bins or not      out  topk [rows, K] i32
//   grid  rows x n_split, a cluster per row     block  8 warps, each with one contiguous run of the row; two blocks
//         share a SM. Blocks that the row is too short for leave at once
//   smem  struct Shared below: counts per digit, scores listed here, keys listed in the whole cluster
//   flow  Count the scores in bins (tiles/score_key.cuh) over the cluster, or take the counts that came with them, and
//         find the bin that holds the K-th. Each block lists its scores in that bin; every block reads all lists and
//         finds the K-th among them by itself, by digits of 11 bits, so that one exchange is enough. A bin with more
//         keys than lists have room for is first divided by further digits, each counted over the cluster. Then each
//         warp counts what it will write, and writes it.
//   edge  at most K candidates: all of them, unread. Ties at the threshold go to the lowest positions: blocks, warps
//         and lanes stand in row order, and ranks are prefix sums; nothing depends on the order of atomics or of lists.
//   cost  runs of up to 2048 scores a warp are read once and kept in registers; longer ones are read once per pass (at
//         most 6). A pass is two differences and two funnel shifts a score: comparisons with the bin's bounds, their
//         signs gathered in one mask for 32 scores of a lane
//   why   what takes time is a chain of short steps, not bytes: few exchanges, few warps for the steps that each has to
//         take, no branches for single scores. Two small blocks to a SM, because fewer than 32 clusters of
//         four find room where each block has one to itself.
#include <cstdint>

#include "kernels/cuda/index/index_plan.cuh"
#include "kernels/cuda/index/topk_launch.h"
#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/tiles/score_key.cuh"

namespace levin::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPerLane = 32;
constexpr int kChunk = 32 * kPerLane;
constexpr int kChunks = 2;  // that a warp holds at once
constexpr int kGroup = 8;   // of a lane's scores: a group after the run's end is skipped
constexpr int kMaxSplit = kSelectMaxSplit;
constexpr int kMaxListed = 8192;
constexpr int kDigitBits = 11;
constexpr int kDigits = 4;  // the bin, then at most 11, 11 and 2 bits
constexpr uint32_t kAllLanes = 0xffffffff;
static_assert(kMaxSplit <= 32, "a lane for every block's counts");
static_assert(kSelectHeldKeys == kWarps * kChunks * kChunk, "what a block holds in registers");

struct Counts {
  uint32_t above;
  uint32_t ties;
};

// Keys with key >> shift > value are taken, of those with key >> shift == value the first `left`; there are `count`.
struct Threshold {
  int shift;
  uint32_t value;
  uint32_t left;
  uint32_t count;
  int n_digits;  // found so far, the bin included

  __device__ __forceinline__ bool is_final() const { return left == count || shift == 0; }
  __device__ __forceinline__ int next_shift() const { return max(shift - kDigitBits, 0); }
  __device__ __forceinline__ uint32_t next_digit(uint32_t key) const {
    return key >> next_shift() & ((1u << (shift - next_shift())) - 1);
  }
  __device__ __forceinline__ Counts count_key(uint32_t key) const {
    return {key >> shift > value, key >> shift == value};
  }
};

// The same for scores: ties are from `ties` up to `above`; NaN where there are none.
struct Bounds {
  float ties;
  float above;

  __device__ __forceinline__ explicit Bounds(const Threshold& t) : ties(lowest_score(t.value << t.shift)) {
    const uint32_t next = (t.value + 1) << t.shift;
    above = next == 0 ? __uint_as_float(~0u) : lowest_score(next);  // after the last bin is nothing
  }
};

// What find_digit() found: a bin of the digit, and as in Threshold.
struct FoundDigit {
  uint32_t bin;
  uint32_t left;
  uint32_t count;
};

struct Shared {
  alignas(16) uint32_t bins[kDigits][kScoreBins];
  FoundDigit found[kDigits];
  Counts block;        // of this block, against the threshold that the cluster found together
  uint32_t n_listed;   // scores in `list`
  Counts lower;        // of the blocks before this one
  int32_t n_gathered;  // keys in `gathered`, padding included
  int32_t list_begin[kMaxSplit];
  int32_t list_size[kMaxSplit];
  uint32_t warp_sum[kWarps];
  Counts warp_counts[kWarps];
  alignas(16) float list[kMaxListed];                         // this block's scores in the threshold's bin
  alignas(16) uint32_t gathered[kMaxListed + 4 * kMaxSplit];  // keys of all blocks' lists, each padded with 0 to fours
};

struct Row {
  const float* score;
  const int32_t* table;  // null: logical
  int first;             // candidates first <= s < end
  int end;
};

__device__ __forceinline__ int row_index() { return static_cast<int>(cluster_index()); }

__device__ __forceinline__ int32_t* topk_of(const SelectTopk& a) { return a.topk + int64_t{row_index()} * a.n_topk; }

__device__ Row row_of(const SelectTopk& a) {
  const int r = row_index(), request = r / a.n_tokens;
  Row row;
  row.score = a.score + r * a.score_stride;
  row.first = max(a.begin ? a.begin[r] : a.first, 0);
  row.end = max(row_length(a.lengths, a.max_length, r, a.n_tokens), row.first);
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

// The lowest n bits of a word, all of them or none where n is out of range.
__device__ __forceinline__ uint32_t bits_below(int n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

// Moves all bits up by one and puts x < y below them, the sign of the difference, by a funnel shift. One block of
// instructions, because the compiler would make all differences first and run out of registers.
__device__ __forceinline__ void push_less(uint32_t& mask, float x, float y) {
  asm volatile(
      "{\n .reg .f32 difference;\n .reg .b32 bits;\n"
      "sub.rn.f32 difference, %1, %2;\n"
      "mov.b32 bits, difference;\n"
      "shf.l.clamp.b32 %0, bits, %0, 1;\n}\n"
      : "+r"(mask)
      : "f"(x), "f"(y));
}

// Adds one to a bin of shared memory if `counts` is not 0. The bin is known before that is asked, so that the next ones
// are being found meanwhile; the compiler alone would find each under a branch of its own.
__device__ __forceinline__ void add_one_if(uint32_t counts, uint32_t* bin) {
  asm volatile(
      "{\n .reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p red.shared.add.u32 [%0], 1;\n}\n" ::"r"(shared_address(bin)),
      "r"(counts)
      : "memory");
}

// Scores of a warp: score i of a lane is that of position 32 * i + lane of the chunk. Bit i of a mask belongs to it.
struct Chunk {
  float score[kPerLane];  // 0 where there is no candidate
  int n;                  // positions of the chunk up to the run's end
  uint32_t candidates;
  uint32_t above;  // as compared last
  uint32_t ties;
  int32_t slot;  // where position 32 * lane of the chunk goes, and the 31 after it

  __device__ __forceinline__ void load(const Row& row, int base, int end) {
    const int lane = threadIdx.x % 32;
    n = end - base;
    candidates = bits_below((n - lane + 31) / 32) & ~bits_below((row.first - base - lane + 31) / 32);
    const float* from = row.score + base + lane;
#pragma unroll
    for (int i = 0; i < kPerLane; i += kGroup) {
      if (32 * i >= n) break;
#pragma unroll
      for (int j = i; j < i + kGroup; ++j) score[j] = candidates >> j & 1 ? from[32 * j] : 0.0f;
    }
    if (32 * lane < n) slot = place(row, base + 32 * lane);
  }

  __device__ __forceinline__ void compare(const Bounds& bounds) {
    uint32_t below = 0, not_above = 0;
#pragma unroll
    for (int i = kPerLane - kGroup; i >= 0; i -= kGroup) {
      if (32 * i >= n) continue;
#pragma unroll
      for (int j = i + kGroup - 1; j >= i; --j) {
        push_less(below, score[j], bounds.ties);
        push_less(not_above, score[j], bounds.above);
      }
    }
    above = isnan(bounds.above) ? 0 : ~not_above & candidates;
    ties = isnan(bounds.ties) ? 0 : ~(below | above) & candidates;
  }

  // f(score, bit) for each of this lane's scores, the bit of `mask` not 0 where it is set.
  template <class F>
  __device__ __forceinline__ void for_each(uint32_t mask, F f) const {
#pragma unroll
    for (int i = 0; i < kPerLane; i += kGroup) {
      if (32 * i >= n) break;
#pragma unroll
      for (int j = i; j < i + kGroup; ++j) f(score[j], mask & 1u << j);
    }
  }
};

// A warp's run of the row: held in registers, or as long as it is and read window by window.
template <bool kHeld>
struct WarpScores {
  int first;  // of the run; a page begins there
  int end;
  Chunk chunk[kChunks];

  __device__ __forceinline__ void load(const Row& row, int base) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunk[i].load(row, base + i * kChunk, end);
  }

  // f() for every window of the run, with its chunks here; all lanes call together.
  template <class F>
  __device__ __forceinline__ void for_each_window(const Row& row, F f) {
    if constexpr (kHeld) {
      f();
    } else {
      for (int base = first; base < end; base += kChunks * kChunk) {
        load(row, base);
        f();
      }
    }
  }

  __device__ __forceinline__ Counts compare(const Bounds& bounds) {
    Counts own{0, 0};
#pragma unroll
    for (Chunk& c : chunk) {
      c.compare(bounds);
      own = {own.above + __popc(c.above), own.ties + __popc(c.ties)};
    }
    return own;
  }
};

// Shared memory written so far by the blocks of the cluster may be read by the others. Each thread has to release its
// own: after a block barrier alone, additions to bins may still be under way when another block reads them.
__device__ void exchange_sync(int n_blocks) {
  if (n_blocks > 1)
    cluster_sync();
  else
    __syncthreads();
}

__device__ __forceinline__ uint32_t warp_inclusive_sum(uint32_t own) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, own, step);
    if (lane >= step) own += other;
  }
  return own;
}

__device__ __forceinline__ Counts warp_sum(const Counts& own) {
  return {__reduce_add_sync(kAllLanes, own.above), __reduce_add_sync(kAllLanes, own.ties)};
}

// Sum over the threads before this one. Called by the whole block.
__device__ uint32_t exclusive_sum(Shared& s, uint32_t own) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t inclusive = warp_inclusive_sum(own);
  if (lane == 31) s.warp_sum[warp] = inclusive;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, lane < warp ? s.warp_sum[lane] : 0) + inclusive - own;
}

// A thread's bins of a digit, and the first of them: the highest bins are the first thread's.
constexpr int kOwnBins = kScoreBins / kThreads;
struct alignas(16) BinCounts {
  uint32_t count[kOwnBins];
};
__device__ __forceinline__ uint32_t own_bins() { return kScoreBins - kOwnBins - kOwnBins * threadIdx.x; }

// Where this thread's bins of the row's counted scores stand.
__device__ __forceinline__ BinCounts* own_counts(const SelectTopk& a) {
  return reinterpret_cast<BinCounts*>(a.histogram + int64_t{row_index()} * kScoreBins + own_bins());
}

// Refines t by a digit, given this thread's bins of its counts. Called by the whole block.
__device__ Threshold find_digit(Shared& s, const BinCounts& own, const Threshold& t) {
  uint32_t sum = 0;
#pragma unroll
  for (const uint32_t count : own.count) sum += count;
  uint32_t before = exclusive_sum(s, sum);
  if (before < t.left && t.left <= before + sum) {
    FoundDigit found{};
#pragma unroll
    for (int i = kOwnBins - 1; i >= 0; --i) {
      if (before < t.left) found = {own_bins() + i, t.left - before, own.count[i]};
      before += own.count[i];
    }
    s.found[t.n_digits] = found;
  }
  __syncthreads();
  const FoundDigit found = s.found[t.n_digits];
  const BinKeys keys = t.n_digits == 0 ? keys_of_bin(found.bin)
                                       : BinKeys{t.next_shift(), t.value << (t.shift - t.next_shift()) | found.bin};
  return {keys.shift, keys.value, found.left, found.count, t.n_digits + 1};
}

// This thread's bins of the next digit, counted over all blocks of the cluster among the ties.
template <bool kHeld>
__device__ BinCounts count_digit(Shared& s, const SelectTopk& a, const Row& row, int n_blocks,
                                 WarpScores<kHeld>& scores, const Threshold& t) {
  const Bounds bounds(t);
  bool bad = false;
  scores.for_each_window(row, [&] {
    if (t.n_digits > 0) scores.compare(bounds);
#pragma unroll
    for (const Chunk& c : scores.chunk) {
      c.for_each(t.n_digits > 0 ? c.ties : c.candidates, [&](float score, uint32_t counts) {
        const uint32_t key = score_key(score);
        bad |= isnan(score);
        add_one_if(counts, &s.bins[t.n_digits][t.n_digits > 0 ? t.next_digit(key) : score_bin(key)]);
      });
    }
  });
  if (bad) atomicOr(a.fault, 1u);
  exchange_sync(n_blocks);
  BinCounts sum{};
  for (int rank = 0; rank < n_blocks; ++rank) {
#pragma unroll
    for (int i = 0; i < kOwnBins; i += 4) {
      const uint4 other = cluster_load_uint4(&s.bins[t.n_digits][own_bins() + i], rank);
      sum.count[i] += other.x;
      sum.count[i + 1] += other.y;
      sum.count[i + 2] += other.z;
      sum.count[i + 3] += other.w;
    }
  }
  return sum;
}

// The threshold by as many digits as it takes until the lists have room for its bin.
template <bool kHeld>
__device__ Threshold find_listable(Shared& s, const SelectTopk& a, const Row& row, const BinCounts& counted,
                                   int n_blocks, WarpScores<kHeld>& scores) {
  Threshold t{32, 0, static_cast<uint32_t>(a.n_topk), static_cast<uint32_t>(row.end - row.first), 0};
  if (a.histogram != nullptr) t = find_digit(s, counted, t);
#pragma unroll 1
  while (t.n_digits == 0 || (t.count > kMaxListed && !t.is_final()))
    t = find_digit(s, count_digit(s, a, row, n_blocks, scores, t), t);
  return t;
}

// Appends this window's ties to the block's list, in any order.
template <bool kHeld>
__device__ __forceinline__ void list_ties(Shared& s, const WarpScores<kHeld>& scores, uint32_t n_ties) {
  const uint32_t inclusive = warp_inclusive_sum(n_ties);
  uint32_t begin = 0;
  if (threadIdx.x % 32 == 31) begin = atomicAdd(&s.n_listed, inclusive);
  float* to = s.list + __shfl_sync(kAllLanes, begin, 31) + inclusive - n_ties;
#pragma unroll
  for (const Chunk& c : scores.chunk) {
    c.for_each(c.ties, [&](float score, uint32_t is_tie) {
      if (is_tie != 0) *to++ = score;
    });
  }
}

// Compares a warp's scores with t, and lists the ties if `lists`.
template <bool kHeld>
__device__ __forceinline__ void count_run(Shared& s, const Row& row, WarpScores<kHeld>& scores, const Threshold& t,
                                          bool lists) {
  const Bounds bounds(t);
  Counts own{0, 0};
  scores.for_each_window(row, [&] {
    const Counts window = scores.compare(bounds);
    own = {own.above + window.above, own.ties + window.ties};
    if (lists) list_ties(s, scores, window.ties);
  });
  own = warp_sum(own);
  if (threadIdx.x % 32 == 0) s.warp_counts[threadIdx.x / 32] = own;
}

// Adds this warp's counts to the block's, for the others to read.
__device__ void publish_counts(Shared& s) {
  if (threadIdx.x % 32 != 0) return;
  const Counts own = s.warp_counts[threadIdx.x / 32];
  atomicAdd(&s.block.above, own.above);
  atomicAdd(&s.block.ties, own.ties);
}

// After an exchange, one warp: what the blocks before this one hold, and where each block's list goes. Ties that are
// listed are counted later.
__device__ void read_counts(Shared& s, int n_blocks, bool lists) {
  const int lane = threadIdx.x, rank = static_cast<int>(cluster_rank());
  Counts other{0, 0};
  if (lane < n_blocks) other = {cluster_load_u32(&s.block.above, lane), cluster_load_u32(&s.block.ties, lane)};
  const int padded = static_cast<int>(other.ties + 3) / 4 * 4, inclusive = static_cast<int>(warp_inclusive_sum(padded));
  if (lane < kMaxSplit) {
    s.list_begin[lane] = inclusive - padded;
    s.list_size[lane] = static_cast<int>(other.ties);
  }
  const Counts lower = warp_sum({lane < rank ? other.above : 0, lane < rank && !lists ? other.ties : 0});
  if (lane == 31) {
    s.n_gathered = inclusive;
    s.lower = lower;
  }
}

// Copies a block's list here as keys, shared out among n_warps of which this is the warp-th; each has four reads under way.
__device__ __forceinline__ void gather_list(Shared& s, int rank, int warp, int n_warps) {
  constexpr int kReads = 4;
  const int lane = threadIdx.x % 32, size = s.list_size[rank], step = 4 * 32 * n_warps;
  uint32_t* to = s.gathered + s.list_begin[rank];
  for (int i = 4 * (32 * warp + lane); i < size; i += kReads * step) {
    float4 four[kReads];
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const float* from = s.list + i + j * step;
      if (i + j * step < size) four[j] = cluster_load_float4(reinterpret_cast<const float4*>(from), rank);
    }
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int left = size - i - j * step;
      if (left <= 0) break;
      *reinterpret_cast<uint4*>(to + i + j * step) = {score_key(four[j].x), left > 1 ? score_key(four[j].y) : 0,
                                                      left > 2 ? score_key(four[j].z) : 0,
                                                      left > 3 ? score_key(four[j].w) : 0};
    }
  }
}

// The lists of all blocks: of fewer than there are warps several warps share each, of more a warp copies several.
__device__ void gather_lists(Shared& s, int n_blocks) {
  const int warp = threadIdx.x / 32, first = warp % n_blocks;
  for (int rank = first; rank < n_blocks; rank += kWarps)
    gather_list(s, rank, warp / n_blocks, (kWarps - 1 - first) / n_blocks + 1);
}

// f(key) for the first n gathered keys, padding included, shared out among the threads.
template <class F>
__device__ __forceinline__ void for_each_gathered(const Shared& s, int n, F f) {
  for (int i = 4 * threadIdx.x; i < n; i += 4 * kThreads) {
    const uint4 four = *reinterpret_cast<const uint4*>(s.gathered + i);
    f(four.x);
    f(four.y);
    f(four.z);
    f(four.w);
  }
}

// Refines t to the end among the gathered keys, and counts those of lower blocks that it now takes.
__device__ Threshold find_in_lists(Shared& s, Threshold t) {
#pragma unroll 1
  while (!t.is_final()) {
    for_each_gathered(s, s.n_gathered,
                      [&](uint32_t key) { add_one_if(t.count_key(key).ties, &s.bins[t.n_digits][t.next_digit(key)]); });
    __syncthreads();
    t = find_digit(s, *reinterpret_cast<const BinCounts*>(&s.bins[t.n_digits][own_bins()]), t);
  }
  Counts lower{0, 0};
  for_each_gathered(s, s.list_begin[cluster_rank()], [&](uint32_t key) {
    const Counts counts = t.count_key(key);
    lower = {lower.above + counts.above, lower.ties + counts.ties};
  });
  lower = warp_sum(lower);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&s.lower.above, lower.above);
    atomicAdd(&s.lower.ties, lower.ties);
  }
  return t;
}

// Bit j of lane i becomes bit i of lane j.
__device__ __forceinline__ uint32_t transpose(uint32_t mask) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t low = 0x0000ffff;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, mask, step);
    mask = lane & step ? (mask & ~low) | (other >> step & low) : (mask & low) | (other << step & ~low);
    low ^= low << (step / 2);
  }
  return mask;
}

// The lowest n of the bits that are set.
__device__ __forceinline__ uint32_t lowest_set(uint32_t mask, uint32_t n) {
  if (n == 0) return 0;
  while (__popc(mask) > n) mask &= ~(0x80000000u >> __clz(static_cast<int>(mask)));
  return mask;
}

// What is written before this warp's run.
__device__ Counts counts_before(const Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Counts before = warp_sum(lane < warp ? s.warp_counts[lane] : Counts{0, 0});
  return {s.lower.above + before.above, s.lower.ties + before.ties};
}

// Each lane writes what is taken of 32 positions in a row. `before` moves past the chunk.
__device__ __forceinline__ void write_chunk(const SelectTopk& a, const Chunk& c, uint32_t left, Counts& before) {
  const uint32_t above = transpose(c.above), ties = transpose(c.ties);
  const uint32_t own = __popc(above) | __popc(ties) << 16, inclusive = warp_inclusive_sum(own);
  const uint32_t total = __shfl_sync(kAllLanes, inclusive, 31);
  const uint32_t ties_before = min(before.ties + ((inclusive - own) >> 16), left);
  int32_t* to = topk_of(a) + before.above + ((inclusive - own) & 0xffff) + ties_before;
  for (uint32_t taken = above | lowest_set(ties, left - ties_before); taken != 0; taken &= taken - 1)
    *to++ = c.slot + __ffs(static_cast<int>(taken)) - 1;
  before = {before.above + (total & 0xffff), before.ties + (total >> 16)};
}

template <bool kHeld>
__device__ void write_topk(const Shared& s, const SelectTopk& a, const Row& row, WarpScores<kHeld>& scores,
                           const Threshold& t) {
  Counts before = counts_before(s);
  const Bounds bounds(t);
  scores.for_each_window(row, [&] {
    if constexpr (!kHeld) scores.compare(bounds);
#pragma unroll
    for (const Chunk& c : scores.chunk) write_chunk(a, c, t.left, before);
  });
}

__device__ void take_all(const SelectTopk& a, const Row& row, int n_split) {
  const int n = row.end - row.first;
  for (int i = static_cast<int>(cluster_rank()) * kThreads + threadIdx.x; i < a.n_topk; i += n_split * kThreads)
    topk_of(a)[i] = i < n ? place(row, row.first + i) : -1;
}

// Whether a candidate of the row is NaN. Called by the whole block.
__device__ __forceinline__ bool has_nan(const Row& row) {
  bool nan = false;
  for (int s = row.first + static_cast<int>(threadIdx.x); s < row.end; s += kThreads) nan |= isnan(row.score[s]);
  return __syncthreads_or(nan) != 0;
}

// A row with a NaN: its first K candidates, as if there were no more. Other blocks do not use its counts either.
__device__ void settle_nan_row(const SelectTopk& a, Row row, int n_split) {
  row.end = row.first + a.n_topk;
  take_all(a, row, n_split);
  if (cluster_rank() != 0) return;
  *own_counts(a) = {};
  if (threadIdx.x == 0 && a.row_fault != nullptr) a.row_fault[row_index()] |= a.row_fault_bit;
}

__device__ __forceinline__ void clear(Shared& s) {
  for (int i = threadIdx.x; i < kDigits * kScoreBins / 4; i += kThreads)
    reinterpret_cast<uint4*>(s.bins)[i] = {0, 0, 0, 0};
  if (threadIdx.x < kDigits) s.found[threadIdx.x] = {};
  if (threadIdx.x == 0) {
    s.block = {0, 0};
    s.n_listed = 0;
  }
}

template <bool kHeld>
__global__ void __launch_bounds__(kThreads, 2) select_topk_kernel(const SelectTopk a, int n_split) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);
  const int rank = static_cast<int>(cluster_rank());
  clear(s);
  grid_dependency_wait();
  BinCounts counted{};
  if (a.histogram != nullptr) counted = *own_counts(a);
  const bool any_nan = a.settles_nan_rows && *a.fault != 0;  // of any row; read here, together with what row_of reads
  const Row row = row_of(a);
  const int n = row.end - row.first;
  if (n <= a.n_topk) return take_all(a, row, n_split);
  if (any_nan && has_nan(row)) return settle_nan_row(a, row, n_split);
  const int n_blocks = min(n_split, max(1, n / kSelectMinKeys));
  if (rank >= n_blocks) return;
  __syncthreads();

  const int begin = row.first / kIndexPageTokens * kIndexPageTokens, n_warps = n_blocks * kWarps;
  const int n_pages = (row.end - begin - 1) / kIndexPageTokens + 1;
  const int span = (n_pages + n_warps - 1) / n_warps * kIndexPageTokens;
  WarpScores<kHeld> scores;
  scores.first = min(row.end, begin + (rank * kWarps + static_cast<int>(threadIdx.x) / 32) * span);
  scores.end = min(row.end, scores.first + span);
  if constexpr (kHeld) scores.load(row, scores.first);
  Threshold t = find_listable(s, a, row, counted, n_blocks, scores);
  const bool lists = !t.is_final();
  count_run(s, row, scores, t, lists);
  launch_dependents();  // not before: while they start, the scores come 2 us later
  publish_counts(s);
  exchange_sync(n_blocks);
  if (a.histogram != nullptr && rank == 0) *own_counts(a) = {};  // all blocks have read it
  if (threadIdx.x < 32) read_counts(s, n_blocks, lists);
  __syncthreads();
  if (lists) {
    gather_lists(s, n_blocks);
    __syncthreads();
  }
  if (n_blocks > 1) cluster_arrive_shared();
  if (lists) {
    t = find_in_lists(s, t);
    count_run(s, row, scores, t, false);
  }
  __syncthreads();
  write_topk(s, a, row, scores, t);
  if (n_blocks > 1) cluster_wait();  // nobody leaves while its lists may be read
}

Launch launch_of(int64_t n_rows, int n_split, StreamHandle stream) {
  return {.grid = {static_cast<unsigned>(n_rows * n_split)},
          .block = {kThreads},
          .shared_bytes = sizeof(Shared),
          .cluster = n_split,
          .pdl = true,
          .stream = stream};
}

}  // namespace

int select_rows_at_once() {
  static PerDevice counts;
  return counts.get([] {
    return clusters_at_once(reinterpret_cast<const void*>(select_topk_kernel<true>),
                            launch_of(1, kSelectMaxSplit, nullptr));
  });
}

void launch_select_topk(const SelectTopk& a, int n_split, StreamHandle stream) {
  const Launch launch = launch_of(a.n_rows, n_split, stream);
  if (a.max_length <= n_split * kSelectHeldKeys)
    launch_kernel(select_topk_kernel<true>, launch, a, n_split);
  else
    launch_kernel(select_topk_kernel<false>, launch, a, n_split);
}

}  // namespace levin::cuda
