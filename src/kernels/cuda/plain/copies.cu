// copies.h: a block a row.
#include "kernels/cuda/plain/copies.h"
#include "kernels/cuda/plain/launch.cuh"

namespace levin::cuda::plain {
namespace {

// A block has kColumns of a row, whose loads are under way together.
constexpr int kColumnsOfThread = 4, kColumns = kColumnsOfThread * kThreads;

__global__ void copy_rows_kernel(CopyRows a) {
  follow_earlier_kernels();
  const int64_t i = blockIdx.x, row = a.rows != nullptr ? a.rows[i] : i / a.repeat;
  if (row < 0) return;
  const int64_t first = int64_t{blockIdx.y} * kColumns + threadIdx.x;
  float v[kColumnsOfThread];
#pragma unroll
  for (int n = 0; n < kColumnsOfThread; ++n)
    if (first + n * kThreads < a.d) v[n] = a.x[row * a.x_ld + first + n * kThreads];
#pragma unroll
  for (int n = 0; n < kColumnsOfThread; ++n)
    if (first + n * kThreads < a.d) a.out[i * a.out_ld + first + n * kThreads] = v[n];
}

__global__ void copy_words_kernel(CopyWords a) {
  follow_earlier_kernels();
  const int64_t n = a.n_bytes / 4, first = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  uint32_t v[kColumnsOfThread];
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i)
    if (first + i * kThreads < n) v[i] = reinterpret_cast<const uint32_t*>(a.from)[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i)
    if (first + i * kThreads < n) reinterpret_cast<uint32_t*>(a.to)[first + i * kThreads] = v[i];
}

__global__ void scale_kernel(ScaleRows a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    const float scaled = a.x[t * a.x_ld + i] * a.factor;
    a.out[t * a.out_ld + i] = a.scale != nullptr ? scaled * a.scale[t * a.d + i] : scaled;
  }
}

constexpr int kReadThreads = 512, kReadsAtOnce = 8;

__global__ void __launch_bounds__(kReadThreads) read_bytes_kernel(ReadBytes a) {
  follow_earlier_kernels();
  constexpr int64_t kBlockReads = kReadThreads * kReadsAtOnce;
  const int64_t n = a.n_bytes / static_cast<int64_t>(sizeof(uint4)), first = blockIdx.x * kBlockReads + threadIdx.x;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const int64_t at = first + i * kReadThreads;
    if (at >= n) break;
    const uint4 v = reinterpret_cast<const uint4*>(a.from)[at];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9E3779B9u) *a.unused = 1;
}

}  // namespace

void copy_rows(const CopyRows& a, StreamHandle stream) {
  start(copy_rows_kernel, {.x = a.n_rows, .y = div_up(a.d, kColumns)}, stream, a);
}
void copy_words(const CopyWords& a, StreamHandle stream) {
  start(copy_words_kernel, {.x = div_up(a.n_bytes / 4, kColumns)}, stream, a);
}
void read_bytes(const ReadBytes& a, StreamHandle stream) {
  start(read_bytes_kernel, {.x = div_up(a.n_bytes, 16 * kReadThreads * kReadsAtOnce), .threads = kReadThreads}, stream,
        a);
}
void scale_rows(const ScaleRows& a, StreamHandle stream) { start(scale_kernel, {.x = a.n_rows}, stream, a); }

}  // namespace levin::cuda::plain
