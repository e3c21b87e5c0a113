// index.h
//
//   index_scores  a block has 32 slots of a row. 32 heads at a time: a lane is a slot, a warp has 8 of the heads, columns
//                 pass through shared memory 128 at a time; then the first warp adds the heads up in order
//   select_topk   a block a row. The K-th best key by its bytes, highest first, counting keys; then the indices in order
//   expand_topk   a block a row, a thread a token
#include "kernels/cpu/cache_values.h"
#include "kernels/cuda/plain/block_pieces.cuh"
#include "kernels/cuda/plain/index.h"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/stage.cuh"

namespace levin::cuda::plain {
namespace {

constexpr int kSlots = 32;
static_assert(kPageTokens % kSlots == 0, "the slots of a block lie in one page");
constexpr int kHeads = 32;  // at a time
constexpr int kColumns = 128;
constexpr int kHeadsOfWarp = kHeads / (kThreads / 32);
constexpr int kSelectThreads = 1024;

struct ScoreTiles {
  float key[kColumns][kSlots + 1];
  float q[kHeads][kColumns];
  float dot[kHeads][kSlots];
};

__device__ DType key_type(CacheDType dtype) {
  return dtype == CacheDType::kF32 ? DType::kF32 : dtype == CacheDType::kBF16 ? DType::kBF16 : DType::kF8E4M3;
}

// Dots of heads head .. head + 31 with the block's slots, into tiles.dot.
__device__ void dot_heads(const IndexQuery& a, int64_t head, const std::byte* page, int64_t first_row,
                          ScoreTiles& tiles) {
  const int64_t t = blockIdx.y, d = a.format.d_index;
  const int column = static_cast<int>(threadIdx.x), lane = column % 32, warp = column / 32;
  float total[kHeadsOfWarp] = {};
  for (int64_t begin = 0; begin < d; begin += kColumns) {
    const int n = static_cast<int>(d - begin < kColumns ? d - begin : kColumns);
    __syncthreads();
    if (column < n) {
      const int64_t element = begin + column, n_heads = a.n_heads - head < kHeads ? a.n_heads - head : kHeads;
      read_many<kSlots>(
          page, key_type(a.format.dtype), kSlots, [&](int i) { return (first_row + i) * d + element; },
          [&](int i, float v) { tiles.key[column][i] = v; });
      read_many<kHeads>(
          a.q, a.q_dtype, static_cast<int>(n_heads),
          [&](int h) { return t * a.q_ld + (head + h) * a.q_head_ld + element; },
          [&](int h, float v) { tiles.q[h][column] = v; });
    }
    __syncthreads();
    float block[kHeadsOfWarp] = {};
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int h = 0; h < kHeadsOfWarp; ++h) {
        block[h] = __fmaf_rn(tiles.q[warp * kHeadsOfWarp + h][i], tiles.key[i][lane], block[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadsOfWarp; ++h) total[h] += block[h];
  }
#pragma unroll
  for (int h = 0; h < kHeadsOfWarp; ++h) tiles.dot[warp * kHeadsOfWarp + h][lane] = total[h];
  __syncthreads();
}
static_assert(kThreads == kColumns, "a thread stages a column");

__global__ void __launch_bounds__(kThreads) score_kernel(IndexScores a) {
  follow_earlier_kernels();
  __shared__ ScoreTiles tiles;
  const IndexQuery& query = a.query;
  const int64_t t = blockIdx.y, first_slot = int64_t{blockIdx.x} * kSlots, visible = query.visible[t];
  const int64_t end = visible < a.n_slots ? visible : a.n_slots;
  if (first_slot >= end || first_slot + kSlots <= query.first || visible - query.first <= a.n_unscored) return;
  const std::byte* page = query.cache.page(query.seq[t], first_slot);
  const int64_t slot = first_slot + threadIdx.x % 32;
  float total = 0;
  for (int64_t head = 0; head < query.n_heads; head += kHeads) {
    dot_heads(query, head, page, first_slot % kPageTokens, tiles);
    for (int h = 0; threadIdx.x < 32 && h < kHeads && head + h < query.n_heads; ++h) {
      const float dot = tiles.dot[h][threadIdx.x];
      total = __fmaf_rn(query.w[t * query.w_ld + head + h], 0.0f > dot ? 0.0f : dot, total);  // NaN stays
    }
  }
  if (threadIdx.x >= 32 || slot < query.first || slot >= end) return;
  a.score[t * a.score_ld + slot] = total * kernels::index_key_scale(query.format, page, slot % kPageTokens);
}

// Unsigned integers in the order of scores; -0 and +0 have the same.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ void take(int32_t* topk, int64_t n_topk, int64_t begin, int64_t end) {
  for (int64_t i = threadIdx.x; i < n_topk; i += blockDim.x) {
    topk[i] = begin + i < end ? static_cast<int32_t>(begin + i) : -1;
  }
}

// The K-th largest key, and how many equal to it are among the K.
struct Threshold {
  uint32_t key = 0;
  int64_t n_equal = 0;
};
__device__ Threshold find_threshold(const float* score, int64_t begin, int64_t end, int64_t k) {
  __shared__ int count[256];
  __shared__ int byte, n_above;
  Threshold found{0, k};
  uint32_t known = 0;  // bits of the key
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) count[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t s = begin + threadIdx.x; s < end; s += blockDim.x) {
      const uint32_t key = key_of(score[s]);
      if ((key & known) == found.key) atomicAdd(&count[key >> shift & 0xFF], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int above = 0, b = 255;
      while (above + count[b] < found.n_equal) above += count[b--];
      byte = b, n_above = above;
    }
    __syncthreads();
    found.key |= static_cast<uint32_t>(byte) << shift;
    found.n_equal -= n_above;
    known |= 0xFFu << shift;
  }
  return found;
}

__global__ void __launch_bounds__(kSelectThreads) select_kernel(SelectTopk a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, begin = a.begin != nullptr ? a.begin[t] : a.first, end = a.end[t];
  const float* score = a.score + t * a.score_ld;
  int32_t* topk = a.topk + t * a.n_topk;
  const bool takes_all = end - begin <= a.n_topk;
  bool nan = false;
  if (!takes_all || a.short_rows_have_scores) {
    for (int64_t s = begin + threadIdx.x; s < end; s += blockDim.x) nan = nan || score[s] != score[s];
  }
  nan = __syncthreads_or(nan) != 0;
  if (nan && threadIdx.x == 0 && a.fault != nullptr) atomicOr(a.fault + t, kNanIndexScore);
  if (nan || takes_all) return take(topk, a.n_topk, begin, end);

  const Threshold threshold = find_threshold(score, begin, end, a.n_topk);
  int64_t n = 0, n_equal = 0;
  for (int64_t first = begin; first < end && n < a.n_topk; first += blockDim.x) {
    const int64_t s = first + threadIdx.x;
    const uint32_t key = s < end ? key_of(score[s]) : 0;
    const Rank equal = rank_of_flag(s < end && key == threshold.key);
    const bool taken =
        s < end && (key > threshold.key || (key == threshold.key && n_equal + equal.before < threshold.n_equal));
    const Rank rank = rank_of_flag(taken);
    if (taken) topk[n + rank.before] = static_cast<int32_t>(s);
    n += rank.all, n_equal += equal.all;
  }
}

__global__ void take_all_kernel(TakeAll a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  take(a.topk + t * a.n_topk, a.n_topk, a.first, a.visible[t]);
}

__global__ void take_most_recent_kernel(TakeAll a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, end = a.visible[t], last = end - a.n_topk;
  take(a.topk + t * a.n_topk, a.n_topk, last > a.first ? last : a.first, end);
}

// How many of a row's entries there are; the unused ones are the last. All threads of the block call it.
__device__ int64_t count_entries(const int32_t* entries, int64_t n) {
  int64_t n_used = 0;
  for (int64_t begin = 0; begin < n; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    n_used += __syncthreads_count(i < n && entries[i] >= 0);
  }
  return n_used;
}

__global__ void __launch_bounds__(kThreads) expand_kernel(ExpandTopk a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, width = a.n_entries * a.ratio + a.ratio - 1;
  const int32_t* entries = a.entries + t * a.n_entries;
  const int64_t n_of_entries = count_entries(entries, a.n_entries) * a.ratio, visible = a.visible[t];
  const int64_t tail = a.first_token + a.end[t] * a.ratio - n_of_entries;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const int64_t token = i < n_of_entries ? a.first_token + entries[i / a.ratio] * a.ratio + i % a.ratio : tail + i;
    a.topk[t * width + i] = i < n_of_entries || token < visible ? static_cast<int32_t>(token) : -1;
  }
}

}  // namespace

void index_scores(const IndexScores& a, StreamHandle stream) {
  start(score_kernel, {.x = div_up(a.n_slots, kSlots), .y = a.query.n_rows}, stream, a);
}

void select_topk(const SelectTopk& a, StreamHandle stream) {
  start(select_kernel, {.x = a.n_rows, .threads = kSelectThreads}, stream, a);
}

void index_topk(const IndexTopk& a, StreamHandle stream) {
  index_scores(
      {.query = a.query, .score = a.score, .score_ld = a.n_slots, .n_slots = a.n_slots, .n_unscored = a.n_topk},
      stream);
  select_topk({.score = a.score,
               .score_ld = a.n_slots,
               .first = a.query.first,
               .end = a.query.visible,
               .short_rows_have_scores = false,
               .topk = a.topk,
               .n_topk = a.n_topk,
               .n_rows = a.query.n_rows,
               .fault = a.fault},
              stream);
}

void expand_topk(const ExpandTopk& a, StreamHandle stream) { start(expand_kernel, {.x = a.n_rows}, stream, a); }

void take_all(const TakeAll& a, StreamHandle stream) { start(take_all_kernel, {.x = a.n_rows}, stream, a); }
void take_most_recent(const TakeAll& a, StreamHandle stream) {
  start(take_most_recent_kernel, {.x = a.n_rows}, stream, a);
}

}  // namespace levin::cuda::plain
