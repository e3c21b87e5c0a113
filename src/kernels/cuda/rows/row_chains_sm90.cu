// Chains of row work; contracts in row_chains.h.
//
//   norm_rows         a block a row, 8 columns a thread and turn, for most widths one turn; the row waits in shared memory for its
//                     norm
//   write_latent      a block a token, a warp for each scale; the rotated part by the first warp
//   index rows        a warp a row of 128, 4 columns a lane: (token, head) of queries, token of keys
//   rotate_queries    a warp a (token, head), a pair a lane
//   cost              a few kilobytes a token: latency. The longest chain of a sum of squares is D / 128 multiply-adds
//                     and seven additions, because the tree of ops/norm.h is.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/rows/row_chains_launch.h"
#include "kernels/cuda/tiles/quantize_row.cuh"

namespace levin::cuda {
namespace {

constexpr int kNormThreads = 256;  // at least, and of blocks that share out several chains
constexpr int kMostNormThreads = 1024;
constexpr int kLatentThreads = 128;
constexpr int kRowWarps = 4;  // rows of a block where a warp has one
constexpr int kPairs = kRopeWidth / 2;
constexpr int kCodeBytes = kIndexPageTokens * kIndexWidth;  // of an index page, before its scales

// --- pieces

__device__ __forceinline__ void load_4(float (&v)[4], const InputRows& x, int64_t at) {
  if (x.is_f32) {
    const float4 raw = *reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + at);
    v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w;
  } else {
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(x.data) + at);
    v[0] = __uint_as_float(raw.x << 16), v[1] = __uint_as_float(raw.x & 0xFFFF0000u);
    v[2] = __uint_as_float(raw.y << 16), v[3] = __uint_as_float(raw.y & 0xFFFF0000u);
  }
}

__device__ __forceinline__ float load_1(const InputRows& x, int64_t at) {
  return x.is_f32 ? static_cast<const float*>(x.data)[at]
                  : __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[at]);
}

__device__ __forceinline__ uint2 pack_4(const float (&v)[4]) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]), high = __floats2bfloat162_rn(v[2], v[3]);
  return {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
}

// Rows that warps have one each, in blocks of kRowWarps.
__device__ __forceinline__ int64_t row_of_warp(int64_t block) { return block * kRowWarps + threadIdx.x / 32; }

constexpr int kPartials = 128;  // of a row's sum, ops/norm.h

// The partial sums of a row to their total in all lanes of a warp, folded 64, 32, ..., 1. Lane l is given sums l, l + 32,
// l + 64, l + 96.
__device__ __forceinline__ float reduce_partials(float sum_0, float sum_32, float sum_64, float sum_96) {
  float sum = __fadd_rn(__fadd_rn(sum_0, sum_64), __fadd_rn(sum_32, sum_96));
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xffffffff, sum, half));
  return __shfl_sync(0xffffffff, sum, 0);
}

// Sum of squares of a row in shared memory, in all threads of a block, which call together. Thread i < kPartials forms
// partial[i], in shared memory too.
__device__ __forceinline__ float sum_squares(const float* row, int d, float* partial) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (thread < kPartials) {
    float sum = 0;
#pragma unroll 8
    for (int i = thread; i < d; i += kPartials) sum = __fmaf_rn(row[i], row[i], sum);
    partial[thread] = sum;
  }
  __syncthreads();
  return reduce_partials(partial[lane], partial[lane + 32], partial[lane + 64], partial[lane + 96]);
}

// 1 / sqrt(mean + eps)
__device__ __forceinline__ float inverse_root(float sum, int d, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(d)), eps)));
}

__device__ __forceinline__ float2 rotate_pair(float a, float b, const Rotation& r, int64_t pair) {
  const float cos = r.cos[pair], sin = r.sin[pair];
  return {__fmaf_rn(a, cos, -__fmul_rn(b, sin)), __fmaf_rn(b, cos, __fmul_rn(a, sin))};
}

// The page of a token's slot, or null where nothing is to be written; `row` is its row there.
__device__ __forceinline__ std::byte* find_page(const CacheSlots& to, int64_t t, int& row) {
  const int slot = to.slot[t];
  if (slot < 0) return nullptr;
  row = slot % kIndexPageTokens;
  const int64_t page = to.tables.data == nullptr
                           ? slot / kIndexPageTokens
                           : to.tables.data[to.table_row[t] * to.tables.stride + slot / kIndexPageTokens];
  return to.pages + page * to.page_bytes;
}

// --- norm_rows

// This thread's 8 columns of the input, added to the residual stream where there is one.
__device__ __forceinline__ void load_and_add(float (&v)[kLaneColumns], const NormRows& a, int64_t t, int column) {
  if (a.x.is_f32)
    load_8(v, static_cast<const float*>(a.x.data) + t * a.x.ld + column);
  else
    load_8(v, static_cast<const __nv_bfloat16*>(a.x.data) + t * a.x.ld + column);
  if (a.residual == nullptr) return;
  float before[kLaneColumns];
  float* residual = a.residual + t * a.d + column;
  load_8(before, residual);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) v[i] = __fadd_rn(before[i], v[i]);
  *reinterpret_cast<float4*>(residual) = {v[0], v[1], v[2], v[3]};
  *reinterpret_cast<float4*>(residual + 4) = {v[4], v[5], v[6], v[7]};
}

// This thread's first weights. No kernel writes them, so that they are loaded while the one before may still run.
struct EarlyWeights {
  float first[kLaneColumns] = {};

  __device__ __forceinline__ explicit EarlyWeights(const NormRows& a) {
    const int column = static_cast<int>(threadIdx.x) * kLaneColumns;
    if (column < a.d) load_8(first, a.weight + column);
  }
};

// Of a block of any number of threads: `row` has a.d values, then the partial sums.
__device__ __forceinline__ void norm_row(const NormRows& a, const EarlyWeights& early, int t, float* row) {
  const int first = static_cast<int>(threadIdx.x) * kLaneColumns, turn = static_cast<int>(blockDim.x) * kLaneColumns;
  for (int column = first; column < a.d; column += turn) {
    float v[kLaneColumns];
    load_and_add(v, a, t, column);
    *reinterpret_cast<float4*>(row + column) = {v[0], v[1], v[2], v[3]};
    *reinterpret_cast<float4*>(row + column + 4) = {v[4], v[5], v[6], v[7]};
  }
  __syncthreads();
  const float inverse = inverse_root(sum_squares(row, a.d, row + a.d), a.d, a.eps);
  for (int base = 0; base < a.d; base += turn) {  // all lanes: blocks of a scale share a warp
    const int column = base + first;
    float v[kLaneColumns] = {}, weight[kLaneColumns];
    if (column < a.d) {
      load_8(v, row + column);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) weight[i] = early.first[i];
      if (base > 0) load_8(weight, a.weight + column);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) v[i] = __fmul_rn(weight[i], __fmul_rn(v[i], inverse));
      if (a.normed != nullptr) {
        const uint2 low = pack_4({v[0], v[1], v[2], v[3]}), high = pack_4({v[4], v[5], v[6], v[7]});
        *reinterpret_cast<uint4*>(a.normed + int64_t{t} * a.d + column) = {low.x, low.y, high.x, high.y};
      }
      if (a.normed_f32 != nullptr) {
        auto* to = reinterpret_cast<float4*>(a.normed_f32 + int64_t{t} * a.d + column);
        to[0] = {v[0], v[1], v[2], v[3]};
        to[1] = {v[4], v[5], v[6], v[7]};
      }
    }
    if (a.rounded.codes != nullptr || a.rounded.values != nullptr) round_8(v, a.rounded, t, column, a.d);
  }
}

__global__ void __launch_bounds__(kMostNormThreads) norm_rows_kernel(const __grid_constant__ NormRows a) {
  extern __shared__ __align__(16) float row[];
  const EarlyWeights weights(a);
  launch_dependents();
  grid_dependency_wait();
  norm_row(a, weights, static_cast<int>(blockIdx.x), row);
}

// --- write_latent

// A latent of 512 columns to e4m3: a warp a block of 128 columns, 4 columns a lane.
__device__ __forceinline__ void store_latent_fp8(std::byte* row, const float (&v)[4]) {
  const int block = static_cast<int>(threadIdx.x) / 32;
  const uint32_t exponent = scale_exponent(largest_of_lanes<32>(v));
  reinterpret_cast<uint32_t*>(row)[threadIdx.x] = e4m3_codes(v[0], v[1], v[2], v[3], inverse_power(exponent));
  if (threadIdx.x % 32 == 0) reinterpret_cast<float*>(row + kLatentWidth)[block] = power_of_exponent(exponent);
}

// Of a block of kLatentThreads, or more that only wait: `latent` has kLatentWidth values, then the partial sums.
__device__ __forceinline__ void write_latent_row(const WriteLatent& a, int64_t t, float* latent) {
  const int column = static_cast<int>(threadIdx.x) * 4;
  const bool works = threadIdx.x < kLatentThreads;
  int in_page = 0;
  std::byte* page = find_page(a.to, t, in_page);
  if (page == nullptr) return;
  const bool fp8 = a.format == LatentRows::kFp8;
  std::byte* row = page + in_page * (fp8 ? 656 : 1152);
  float v[4] = {};
  if (works) {
    load_4(v, a.x, t * a.x.ld + column);
    *reinterpret_cast<float4*>(latent + column) = {v[0], v[1], v[2], v[3]};
  }
  if (threadIdx.x < kPairs) {
    const int pair = static_cast<int>(threadIdx.x);
    const int left = a.rotation.half_split ? pair : 2 * pair, right = left + (a.rotation.half_split ? kPairs : 1);
    const int64_t rope = t * a.x.ld + kLatentWidth;
    const float2 rotated =
        rotate_pair(load_1(a.x, rope + left), load_1(a.x, rope + right), a.rotation, t * kPairs + pair);
    auto* to = reinterpret_cast<__nv_bfloat16*>(row + (fp8 ? kLatentWidth + 16 : kLatentWidth * 2));
    to[left] = __float2bfloat16_rn(rotated.x);
    to[right] = __float2bfloat16_rn(rotated.y);
  }
  __syncthreads();
  const float sum = sum_squares(latent, kLatentWidth, latent + kLatentWidth);
  if (!works) return;
  const float inverse = inverse_root(sum, kLatentWidth, a.eps);
  const float4 weight = *reinterpret_cast<const float4*>(a.weight + column);
  const float factor[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(factor[i], __fmul_rn(v[i], inverse));
  if (fp8)
    store_latent_fp8(row, v);
  else
    reinterpret_cast<uint2*>(row)[threadIdx.x] = pack_4(v);
}

__global__ void __launch_bounds__(kLatentThreads) write_latent_kernel(const __grid_constant__ WriteLatent a) {
  __shared__ __align__(16) float latent[kLatentWidth + kPartials];
  launch_dependents();
  grid_dependency_wait();
  write_latent_row(a, blockIdx.x, latent);
}

// --- index rows: 128 columns in a warp, columns 4 * lane .. 4 * lane + 3 in each lane

__device__ __forceinline__ void rotate_row(float (&v)[4], const Rotation& r, int64_t t) {
  constexpr int kHalfLanes =
      kPairs / 4;  // lanes that hold the left halves of the pairs, if these are half a width apart
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float other[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) other[i] = __shfl_xor_sync(0xffffffff, v[i], kHalfLanes);
  if (lane >= 2 * kHalfLanes) return;  // columns that are not rotated
  if (r.half_split) {
    const bool left = lane < kHalfLanes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t pair = t * kPairs + lane % kHalfLanes * 4 + i;
      const float2 p = left ? rotate_pair(v[i], other[i], r, pair) : rotate_pair(other[i], v[i], r, pair);
      v[i] = left ? p.x : p.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 p = rotate_pair(v[i], v[i + 1], r, t * kPairs + 2 * lane + i / 2);
      v[i] = p.x;
      v[i + 1] = p.y;
    }
  }
}

// Butterflies over strides 1, 2, 4, ..., 64, then one multiplication.
__device__ __forceinline__ void hadamard_row(float (&v)[4]) {
  constexpr float kFactor = 0.08838834764831845f;  // 1 / sqrt(128)
#pragma unroll
  for (int stride = 1; stride < 4; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i], b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const bool upper = (threadIdx.x & lanes) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(0xffffffff, v[i], lanes);
      v[i] = upper ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
    }
  }
#pragma unroll
  for (float& value : v) value = __fmul_rn(value, kFactor);
}

// The sum in ops/norm.h's order of one value of each column, given by 4 in each lane, in all lanes: a row is as wide as it
// has partial sums. `row` is 128 floats of the warp. A partial sum begins at 0, so that -0 counts as 0.
__device__ __forceinline__ float sum_row(const float (&v)[4], float* row) {
  static_assert(kIndexWidth == kPartials);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  *reinterpret_cast<float4*>(row + 4 * lane) = {v[0], v[1], v[2], v[3]};
  __syncwarp();
  const float sum = reduce_partials(__fadd_rn(0, row[lane]), __fadd_rn(0, row[lane + 32]), __fadd_rn(0, row[lane + 64]),
                                    __fadd_rn(0, row[lane + 96]));
  __syncwarp();
  return sum;
}

__device__ __forceinline__ void layer_norm_row(float (&v)[4], const WriteIndexKeys& a, float* row) {
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
  const float sum = sum_row(v, row);
  const float mean = __fdiv_rn(sum, static_cast<float>(kIndexWidth));
#pragma unroll
  for (float& value : v) value = __fsub_rn(value, mean);
  const float square[4] = {__fmul_rn(v[0], v[0]), __fmul_rn(v[1], v[1]), __fmul_rn(v[2], v[2]), __fmul_rn(v[3], v[3])};
  const float squares = sum_row(square, row);
  const float inverse = inverse_root(squares, kIndexWidth, a.eps);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(a.weight[column + i], __fmul_rn(v[i], inverse), a.bias[column + i]);
}

// Of a warp: row is of (token, head).
__device__ __forceinline__ void write_index_query(const IndexQueries& a, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= int64_t{a.n_tokens} * a.n_heads) return;
  const int64_t t = row / a.n_heads, head = row % a.n_heads;
  float v[4];
  load_4(v, a.x, t * a.x.ld + head * kIndexWidth + 4 * lane);
  rotate_row(v, a.rotation, t);
  if (a.hadamard) hadamard_row(v);
  const uint32_t exponent = scale_exponent(largest_of_lanes<32>(v));
  reinterpret_cast<uint32_t*>(a.codes + row * kIndexWidth)[lane] =
      e4m3_codes(v[0], v[1], v[2], v[3], inverse_power(exponent));
  if (lane == 0) a.weights[row] = __fmul_rn(__fmul_rn(a.w[t * a.w_ld + head], a.factor), power_of_exponent(exponent));
}

__global__ void __launch_bounds__(kRowWarps * 32) index_queries_kernel(const __grid_constant__ IndexQueries a) {
  launch_dependents();
  grid_dependency_wait();
  write_index_query(a, row_of_warp(blockIdx.x));
}

// Of a warp: `row` has kIndexWidth values.
__device__ __forceinline__ void write_index_key(const WriteIndexKeys& a, int64_t t, float* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (t >= a.n_tokens) return;
  int in_page = 0;
  std::byte* page = find_page(a.to, t, in_page);
  if (page == nullptr) return;
  float v[4];
  load_4(v, a.x, t * a.x.ld + 4 * lane);
  layer_norm_row(v, a, row);
  rotate_row(v, a.rotation, t);
  if (a.hadamard) hadamard_row(v);
  const uint32_t exponent = scale_exponent(largest_of_lanes<32>(v));
  reinterpret_cast<uint32_t*>(page + in_page * kIndexWidth)[lane] =
      e4m3_codes(v[0], v[1], v[2], v[3], inverse_power(exponent));
  if (lane == 0) reinterpret_cast<float*>(page + kCodeBytes)[in_page] = power_of_exponent(exponent);
}

__global__ void __launch_bounds__(kRowWarps * 32) write_index_keys_kernel(const __grid_constant__ WriteIndexKeys a) {
  __shared__ __align__(16) float rows[kRowWarps][kIndexWidth];
  launch_dependents();
  grid_dependency_wait();
  write_index_key(a, row_of_warp(blockIdx.x), rows[threadIdx.x / 32]);
}

// Of a warp: row is of (token, head).
__device__ __forceinline__ void rotate_query(const RotateQueries& a, int64_t row) {
  const int pair = static_cast<int>(threadIdx.x) % 32;
  if (row >= int64_t{a.n_tokens} * a.n_heads) return;
  const int64_t t = row / a.n_heads, from = t * a.x.ld + row % a.n_heads * a.head_stride;
  const int left = a.rotation.half_split ? pair : 2 * pair, right = left + (a.rotation.half_split ? kPairs : 1);
  const float2 rotated =
      rotate_pair(load_1(a.x, from + left), load_1(a.x, from + right), a.rotation, t * kPairs + pair);
  auto* out = reinterpret_cast<__nv_bfloat16*>(a.out) + row * kRopeWidth;
  out[left] = __float2bfloat16_rn(rotated.x);
  out[right] = __float2bfloat16_rn(rotated.y);
}

__global__ void __launch_bounds__(kRowWarps * 32) rotate_queries_kernel(const __grid_constant__ RotateQueries a) {
  launch_dependents();
  grid_dependency_wait();
  rotate_query(a, row_of_warp(blockIdx.x));
}

// --- a product with few outputs: a block has one or two outputs of up to four rows, a thread a block of 128 k of a row. The weights are in
// shared memory by the time that the kernel before ends, and rows come there by coalesced copies: what a thread reads itself
// would be a sector of a line each time, and each time the latency of memory

constexpr int kBlockK = 128;
constexpr int kGroupThreads = kMaxFewOutputsK / kBlockK;  // that share a row
constexpr int kRowsAtOnce = kNormThreads / kGroupThreads;
constexpr int kStagedBlockK = kBlockK + 4;  // in shared memory, so that 16-byte reads of eight lanes meet no bank twice
constexpr int kSharedSums = kRowsAtOnce * kGroupThreads;  // of an output

__host__ __device__ constexpr int staged_values(int k) { return k / kBlockK * kStagedBlockK; }
__device__ __forceinline__ int staged_at(int k) { return k / kBlockK * kStagedBlockK + k % kBlockK; }

// Outputs of a block: one if there is a single group of rows, so that it waits for fewer weights; otherwise two, so that rows are
// read half as often.
__host__ __device__ constexpr int outputs_at_once(const FewOutputs& a) { return a.n_tokens > kRowsAtOnce ? 2 : 1; }
__host__ __device__ constexpr int output_groups(const FewOutputs& a) {
  return (a.n + outputs_at_once(a) - 1) / outputs_at_once(a);
}
__host__ __device__ constexpr int product_blocks(const FewOutputs& a) {
  return output_groups(a) * ((a.n_tokens + kRowsAtOnce - 1) / kRowsAtOnce);
}

__host__ __device__ int shared_values_of(const FewOutputs& a) {
  return outputs_at_once(a) * kSharedSums + (outputs_at_once(a) + min(a.n_tokens, kRowsAtOnce)) * staged_values(a.k);
}

static_assert(4 * (2 * kSharedSums + (2 + kRowsAtOnce) * staged_values(kMaxFewOutputsK)) <= kMaxSharedBytes);

// Of one output. No kernel writes weights, so this need not wait for the one before.
__device__ __forceinline__ void stage_weights(const FewOutputs& a, int n, float* staged) {
#pragma unroll 4
  for (int k = static_cast<int>(threadIdx.x) * kLaneColumns; k < a.k; k += kNormThreads * kLaneColumns) {
    const int64_t at = int64_t{n} * a.k + k;
    float w[kLaneColumns];
    if (a.w_is_f32)
      load_8(w, static_cast<const float*>(a.w) + at);
    else
      load_8(w, static_cast<const __nv_bfloat16*>(a.w) + at);
    auto* to = reinterpret_cast<float4*>(staged + staged_at(k));
    to[0] = {w[0], w[1], w[2], w[3]};
    to[1] = {w[4], w[5], w[6], w[7]};
  }
}

__device__ __forceinline__ void stage_rows(const FewOutputs& a, int first_row, float* staged) {
  const int n_rows = min(a.n_tokens - first_row, kRowsAtOnce);
  for (int r = 0; r < n_rows; ++r) {
    const float* from = a.x + (first_row + r) * a.x_ld;
    float* to = staged + r * staged_values(a.k);
    for (int k = static_cast<int>(threadIdx.x) * 4; k < a.k; k += kNormThreads * 4)
      async_copy_16(to + staged_at(k), from + k, true);
  }
  async_copy_commit();
  async_copy_wait<0>();
  __syncthreads();
}

// w: of the outputs, staged_values(k) apart.
template <int kOutputs>
__device__ __forceinline__ void multiply_block(float (&sums)[kOutputs], const float* x, const float* w, int w_ld) {
#pragma unroll 8
  for (int k = 0; k < kBlockK; k += 4) {
    const float4 xs = *reinterpret_cast<const float4*>(x + k);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float4 ws = *reinterpret_cast<const float4*>(w + o * w_ld + k);
      sums[o] = __fmaf_rn(xs.x, ws.x, sums[o]);
      sums[o] = __fmaf_rn(xs.y, ws.y, sums[o]);
      sums[o] = __fmaf_rn(xs.z, ws.z, sums[o]);
      sums[o] = __fmaf_rn(xs.w, ws.w, sums[o]);
    }
  }
}

// What a block of the product has: outputs from first_output on of rows from first_row on.
struct FewOutputsPart {
  int first_output, first_row;

  __device__ __forceinline__ FewOutputsPart(const FewOutputs& a, int block)
      : first_output(block % output_groups(a) * outputs_at_once(a)),
        first_row(block / output_groups(a) * kRowsAtOnce) {}
};

// `shared` has sums, weights and rows.
template <int kOutputs>
__device__ __forceinline__ void multiply_outputs(const FewOutputs& a, int part_block, float* shared) {
  const FewOutputsPart part(a, part_block);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads,
            block = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int n_blocks = a.k / kBlockK, row = part.first_row + group, row_values = staged_values(a.k);
  float *own = shared + group * kGroupThreads, *w = shared + kOutputs * kSharedSums, *rows = w + kOutputs * row_values;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o)
    if (part.first_output + o < a.n) stage_weights(a, part.first_output + o, w + o * row_values);
  grid_dependency_wait();
  stage_rows(a, part.first_row, rows);
  if (block < n_blocks && row < a.n_tokens) {
    float sums[kOutputs] = {};
    const int at = block * kStagedBlockK;
    multiply_block<kOutputs>(sums, rows + group * row_values + at, w + at, row_values);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) own[o * kSharedSums + block] = sums[o];
  }
  __syncthreads();
  const int output = part.first_output + block;
  if (block >= kOutputs || output >= a.n || row >= a.n_tokens) return;
  float total = 0;
#pragma unroll 8
  for (int b = 0; b < n_blocks; ++b) total = __fmaf_rn(own[block * kSharedSums + b], 1.0f, total);
  a.out[row * a.out_ld + output] = total;
}

// --- several chains by one launch: blocks share them out

// The product's blocks, then a block a row to norm, then a block a latent row, then a block for as many index keys as it has warps.
__global__ void __launch_bounds__(kNormThreads) norm_and_append_kernel(const __grid_constant__ NormAndAppend a) {
  extern __shared__ __align__(16) float row[];
  const EarlyWeights weights(a.norm);
  const int n_tokens = a.norm.n_tokens, n_product_blocks = product_blocks(a.product);
  const int block = static_cast<int>(blockIdx.x) - n_product_blocks, warp = static_cast<int>(threadIdx.x) / 32;
  launch_dependents();
  if (block < 0 && outputs_at_once(a.product) == 1)
    return multiply_outputs<1>(a.product, static_cast<int>(blockIdx.x), row);
  if (block < 0) return multiply_outputs<2>(a.product, static_cast<int>(blockIdx.x), row);
  grid_dependency_wait();
  if (block < n_tokens) return norm_row(a.norm, weights, block, row);
  if (block < 2 * n_tokens) return write_latent_row(a.latent, block - n_tokens, row);
  write_index_key(a.keys, (block - 2 * n_tokens) * (kNormThreads / 32) + warp, row + warp * kIndexWidth);
}

// Blocks of rotated heads, then blocks of index queries.
__global__ void __launch_bounds__(kRowWarps * 32)
    attention_queries_kernel(const __grid_constant__ AttentionQueries a, int n_rotate_blocks) {
  launch_dependents();
  grid_dependency_wait();
  const int block = static_cast<int>(blockIdx.x);
  if (block < n_rotate_blocks) return rotate_query(a.rotate, row_of_warp(block));
  write_index_query(a.index, row_of_warp(block - n_rotate_blocks));
}

Launch launch_of(int64_t n_blocks, int n_threads, bool pdl, StreamHandle stream) {
  Launch l;
  l.grid = dim3(static_cast<unsigned>(n_blocks));
  l.block = dim3(static_cast<unsigned>(n_threads));
  l.pdl = pdl;
  l.stream = stream;
  return l;
}

int64_t blocks_of_warps(int64_t n_rows) { return (n_rows + kRowWarps - 1) / kRowWarps; }

}  // namespace

void launch_norm_rows(const NormRows& a, StreamHandle stream) {
  const int n_threads = std::clamp((a.d / kLaneColumns + 31) / 32 * 32, kNormThreads, kMostNormThreads);
  Launch l = launch_of(a.n_tokens, n_threads, a.pdl, stream);
  l.shared_bytes = (a.d + kPartials) * static_cast<int>(sizeof(float));
  launch_kernel(norm_rows_kernel, l, a);
}

void launch_rotate_queries(const RotateQueries& a, StreamHandle stream) {
  launch_kernel(rotate_queries_kernel,
                launch_of(blocks_of_warps(int64_t{a.n_tokens} * a.n_heads), kRowWarps * 32, a.pdl, stream), a);
}

void launch_write_latent(const WriteLatent& a, StreamHandle stream) {
  launch_kernel(write_latent_kernel, launch_of(a.n_tokens, kLatentThreads, a.pdl, stream), a);
}

void launch_index_queries(const IndexQueries& a, StreamHandle stream) {
  launch_kernel(index_queries_kernel,
                launch_of(blocks_of_warps(int64_t{a.n_tokens} * a.n_heads), kRowWarps * 32, a.pdl, stream), a);
}

void launch_write_index_keys(const WriteIndexKeys& a, StreamHandle stream) {
  launch_kernel(write_index_keys_kernel, launch_of(blocks_of_warps(a.n_tokens), kRowWarps * 32, a.pdl, stream), a);
}

void launch_norm_and_append(const NormAndAppend& a, StreamHandle stream) {
  constexpr int kKeysOfBlock = kNormThreads / 32;
  const int n_key_blocks = (a.keys.n_tokens + kKeysOfBlock - 1) / kKeysOfBlock;
  Launch l =
      launch_of(product_blocks(a.product) + 2 * int64_t{a.norm.n_tokens} + n_key_blocks, kNormThreads, a.pdl, stream);
  const int n_values = std::max({a.norm.d + kPartials, kLatentWidth + kPartials, kKeysOfBlock * kIndexWidth,
                                 a.product.n_tokens > 0 ? shared_values_of(a.product) : 0});
  l.shared_bytes = n_values * static_cast<int>(sizeof(float));
  launch_kernel(norm_and_append_kernel, l, a);
}

void launch_attention_queries(const AttentionQueries& a, StreamHandle stream) {
  const int64_t n_rotate_blocks = blocks_of_warps(int64_t{a.rotate.n_tokens} * a.rotate.n_heads);
  const int64_t n_index_blocks = blocks_of_warps(int64_t{a.index.n_tokens} * a.index.n_heads);
  launch_kernel(attention_queries_kernel, launch_of(n_rotate_blocks + n_index_blocks, kRowWarps * 32, a.pdl, stream), a,
                static_cast<int>(n_rotate_blocks));
}

}  // namespace levin::cuda
