// attention.h: a block has four heads of a row. Tile by tile of 64 candidates: their columns pass through shared memory 64
// at a time, first for the scores (a thread is a candidate of a head), then for the values (a thread is a column of a head).
// The output so far waits in shared memory.
#include <cmath>

#include "kernels/cpu/cache_values.h"
#include "kernels/cuda/plain/attention.h"
#include "kernels/cuda/plain/f32_formulas.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/stage.cuh"

namespace levin::cuda::plain {
namespace {

constexpr int kTile = 64;      // candidates whose softmax is one step of the tree
constexpr int kFold = 128;     // columns of a block of a dot
constexpr int kColumns = 64;   // staged at a time
constexpr int kHeads = 4;      // of a block
constexpr int kPartials = 16;  // of the sum of a tile's weights
constexpr int kBlock = kHeads * kTile;
constexpr double kLog2OfE = 1.4426950408889634;
static_assert(kFold % kColumns == 0 && kColumns == kTile, "a thread has a candidate, then a column");

struct Softmax {
  float m, sum;  // m an integer
};

struct Tiles {
  float value[kTile][kColumns + 1];
  float p[kHeads][kTile];
  float factor[kHeads];
  Softmax softmax[kHeads];
  const std::byte* row[kTile];
};

// The candidates of a row from one cache.
struct Candidates {
  const int32_t* topk = nullptr;
  int64_t first = 0;
  int64_t n = 0;
};

__device__ Candidates candidates_of(const AttentionRows& rows, int64_t t) {
  if (rows.topk == nullptr) {
    if (rows.end == nullptr) return {};
    const int64_t first = rows.begin == nullptr ? 0 : rows.begin[t], n = rows.end[t] - first;
    return {nullptr, first, n > 0 ? n : 0};
  }
  const int32_t* topk = rows.topk + t * rows.n_topk;
  int64_t n = 0;
  for (int64_t i = 0; i < rows.n_topk; i += kBlock) {
    const int64_t at = i + threadIdx.x;
    const int found = __syncthreads_count(at < rows.n_topk && topk[at] >= 0);
    n += found;
    if (found < kBlock) break;
  }
  return {topk, 0, n};
}

__device__ const std::byte* row_of(const AttentionRows& rows, const Candidates& c, const LatentFormat& f, int64_t seq,
                                   int64_t i) {
  const int64_t slot = c.topk != nullptr ? c.topk[i] : c.first + i;
  return rows.cache.page(seq, slot) + slot % kPageTokens * f.row_bytes;
}

// This thread's column of the tile's n rows, `offset` bytes into each, the thread's rows kBlock / kColumns apart.
template <class T>
__device__ void stage_column(int64_t offset, int64_t scale_offset, int n, Tiles& tiles) {
  constexpr int kStep = kBlock / kColumns, kRows = kTile / kStep;
  const int column = static_cast<int>(threadIdx.x) % kColumns, first = static_cast<int>(threadIdx.x) / kColumns;
  T raw[kRows];
  float scale[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::byte* row = tiles.row[first + i * kStep < n ? first + i * kStep : 0];
    raw[i] = *reinterpret_cast<const T*>(row + offset);
    scale[i] = sizeof(T) == 1 ? *reinterpret_cast<const float*>(row + scale_offset) : 1.0f;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float value = sizeof(T) == 1 ? to_f32(raw[i]) * scale[i] : to_f32(raw[i]);
    if (first + i * kStep < n) tiles.value[first + i * kStep][column] = value;
  }
}

// The same of column i of a row, whatever its type.
__device__ void stage_column(const LatentFormat& f, int64_t i, int n, Tiles& tiles) {
  const int64_t rope = i - f.d_latent;
  if (f.dtype == CacheDType::kF32 || (rope >= 0 && f.rope_is_f32())) {
    return stage_column<float>(rope < 0 ? 4 * i : f.rope_offset + 4 * rope, 0, n, tiles);
  }
  if (f.dtype == CacheDType::kBF16 || rope >= 0) {
    return stage_column<uint16_t>(rope < 0 ? 2 * i : f.rope_offset + 2 * rope, 0, n, tiles);
  }
  stage_column<uint8_t>(i, f.scale_offset + 4 * (i / f.scale_columns), n, tiles);
}

// Columns begin .. begin + 63 of the tile's rows.
__device__ void stage(const LatentFormat& f, int64_t begin, int64_t n_columns, int n, Tiles& tiles) {
  const int64_t i = begin + threadIdx.x % kColumns;
  __syncthreads();
  if (i < n_columns) stage_column(f, i, n, tiles);
  __syncthreads();
}

// The dot of candidate j with the query q[0 .. d-1].
__device__ float dot(const LatentFormat& f, const float* q, int j, int n, Tiles& tiles) {
  const int64_t d = f.d_latent + f.d_rope;
  float total = 0, block = 0;
  for (int64_t begin = 0; begin < d; begin += kColumns) {
    stage(f, begin, d, n, tiles);
    const int n_columns = static_cast<int>(d - begin < kColumns ? d - begin : kColumns);
#pragma unroll 8
    for (int i = 0; i < n_columns; ++i) block = __fmaf_rn(q[begin + i], tiles.value[j][i], block);
    if ((begin + kColumns) % kFold != 0 && begin + kColumns < d) continue;
    total += block;
    block = 0;
  }
  return total;
}

// Turns the head's scores tiles.p[0 .. n-1] into weights; what was summed before is to be multiplied by tiles.factor. All
// threads of the block call it, thread j of a head for candidate j.
__device__ void softmax_step(int head, int j, int n, Tiles& tiles) {
  __syncthreads();
  float* p = tiles.p[head];
  const Softmax before = tiles.softmax[head];
  float largest = before.m;
  for (int i = 0; i < n; ++i) {
    const float whole = ceilf(p[i]);
    largest = largest < whole ? whole : largest;
  }
  float weight = 0;
  if (j < n) {
    const float whole = ceilf(p[j]);
    weight = exp2_fraction(p[j] - whole) * exp2_or_zero(whole - largest);
    weight = weight < 0x1p-126f ? 0.0f : weight;
  }
  const float factor = exp2_or_zero(before.m - largest);
  __syncthreads();
  if (j < n) p[j] = weight;
  __syncthreads();
  if (j != 0) return;
  float partial[kPartials] = {};
  for (int i = 0; i < n; ++i) partial[i % kPartials] += p[i];
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  tiles.softmax[head] = {largest, before.sum * factor + partial[0]};
  tiles.factor[head] = factor;
}

// out[v] of the thread's head, v = lane, lane + 64, ...
__device__ void add_values(const LatentFormat& f, int head, int lane, int n, float* out, Tiles& tiles) {
  const int64_t d = f.d_value();
  for (int64_t begin = 0; begin < d; begin += kColumns) {
    stage(f, begin, d, n, tiles);
    if (begin + lane >= d) continue;
    float sum = out[begin + lane] * tiles.factor[head];
#pragma unroll 8
    for (int j = 0; j < n; ++j) sum = __fmaf_rn(tiles.p[head][j], tiles.value[j][lane], sum);
    out[begin + lane] = sum;
  }
}

__device__ void load_queries(const SparseAttention& a, int64_t t, int64_t first_head, float* q) {
  const int64_t d_latent = a.format.d_latent, d = d_latent + a.format.d_rope;
  for (int64_t i = threadIdx.x; i < kHeads * d; i += kBlock) {
    const int64_t head = first_head + i / d, column = i % d;
    if (head >= a.n_heads) break;
    q[i] =
        column < d_latent
            ? kernels::query_value(a.q_latent, a.q_dtype, t * a.q_latent_ld + head * a.q_latent_head_ld + column)
            : kernels::query_value(a.q_rope, a.q_dtype, t * a.q_rope_ld + head * a.q_rope_head_ld + column - d_latent);
  }
}

__global__ void __launch_bounds__(kBlock) attention_kernel(SparseAttention a, float scale_log2) {
  follow_earlier_kernels();
  __shared__ Tiles tiles;
  extern __shared__ float dynamic[];
  const int64_t t = blockIdx.x, first_head = int64_t{blockIdx.y} * kHeads, seq = a.seq[t];
  const int64_t d = a.format.d_latent + a.format.d_rope, d_value = a.format.d_value();
  const int head = static_cast<int>(threadIdx.x) / kTile, j = static_cast<int>(threadIdx.x) % kTile;
  const bool inside = first_head + head < a.n_heads;
  const float* q = dynamic + head * d;                    // [kHeads, d]
  float* so_far = dynamic + kHeads * d + head * d_value;  // [kHeads, d_value]
  load_queries(a, t, first_head, dynamic);
  for (int64_t v = j; v < d_value; v += kTile) so_far[v] = 0;
  if (j == 0) tiles.softmax[head] = {-INFINITY, 0.0f};

  Candidates rows, more;
  if (seq >= 0) rows = candidates_of(a.rows, t), more = candidates_of(a.more, t);  // padding has none
  const int64_t n_seen = rows.n + more.n;
  for (int64_t begin = 0; begin < n_seen; begin += kTile) {
    const int n = static_cast<int>(n_seen - begin < kTile ? n_seen - begin : kTile);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kBlock) {
      tiles.row[i] = begin + i < rows.n ? row_of(a.rows, rows, a.format, seq, begin + i)
                                        : row_of(a.more, more, a.format, seq, begin + i - rows.n);
    }
    const float score = dot(a.format, q, j, n, tiles) * scale_log2;
    if (j < n) tiles.p[head][j] = score;
    softmax_step(head, j, n, tiles);
    add_values(a.format, head, j, n, so_far, tiles);
  }

  float factor = 1;
  if (a.sink != nullptr && n_seen > 0) {
    __syncthreads();
    if (j == 0) tiles.p[head][0] = inside ? a.sink[first_head + head] * kLog2E : 0.0f;
    softmax_step(head, j, 1, tiles);
    __syncthreads();
    factor = tiles.factor[head];
  }
  __syncthreads();
  if (!inside) return;
  float* out = a.out + t * a.out_ld + (first_head + head) * a.out_head_ld;
  for (int64_t v = j; v < d_value; v += kTile) {
    out[v] = n_seen == 0 ? 0.0f : so_far[v] * factor / tiles.softmax[head].sum;
  }
}

}  // namespace

void sparse_attention(const SparseAttention& a, StreamHandle stream) {
  const int64_t d = a.format.d_latent + a.format.d_rope;
  const auto shared_bytes = kHeads * (d + a.format.d_value()) * static_cast<int64_t>(sizeof(float));
  const float scale_log2 = static_cast<float>(static_cast<double>(a.scale) * kLog2OfE);
  start(attention_kernel,
        {.x = a.n_rows, .y = div_up(a.n_heads, kHeads), .threads = kBlock, .shared_bytes = shared_bytes}, stream, a,
        scale_log2);
}

}  // namespace levin::cuda::plain
