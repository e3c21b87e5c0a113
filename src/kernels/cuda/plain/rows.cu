// rows.h: norms by a block a row, everything else by a thread a value.
#include "base/math_formulas.h"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/row_pieces.cuh"
#include "kernels/cuda/plain/rows.h"

namespace levin::cuda::plain {
namespace {

// A block has kColumns of a row, so that no thread waits for memory more than once.
constexpr int kColumns = 4 * kThreads;

__global__ void embed_kernel(Embed a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, id = a.ids[t], first = int64_t{blockIdx.y} * kColumns + threadIdx.x;
#pragma unroll
  for (int64_t i = first; i < first + kColumns; i += kThreads) {
    if (i < a.d) a.out[t * a.out_ld + i] = id < 0 ? 0.0f : kernels::query_value(a.table, a.table_dtype, id * a.d + i);
  }
}

__global__ void rms_norm_kernel(Norm a) {
  follow_earlier_kernels();
  const float* x = a.x + blockIdx.x * a.x_ld;
  float* out = a.out + blockIdx.x * a.out_ld;
  const float inverse = rms_inverse(a.d, a.eps, [&](int64_t i) { return x[i]; });
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    const float normed = x[i] * inverse;
    out[i] = a.weight != nullptr ? a.weight[i] * normed : normed;
  }
}

__global__ void layer_norm_kernel(Norm a) {
  follow_earlier_kernels();
  const float* x = a.x + blockIdx.x * a.x_ld;
  float* out = a.out + blockIdx.x * a.out_ld;
  const Centre centre = layer_centre(a.d, a.eps, [&](int64_t i) { return x[i]; });
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    out[i] = __fmaf_rn(a.weight[i], (x[i] - centre.mean) * centre.inverse, a.bias[i]);
  }
}

__global__ void add_kernel(AddInto a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, first = int64_t{blockIdx.y} * kColumns + threadIdx.x;
#pragma unroll
  for (int64_t i = first; i < first + kColumns; i += kThreads) {
    if (i < a.d) a.x[t * a.x_ld + i] += a.y[t * a.y_ld + i];
  }
}

__global__ void mark_unusable_kernel(MarkUnusable a) {
  follow_earlier_kernels();
  bool unusable = false;
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) unusable |= !isfinite(a.x[blockIdx.x * a.x_ld + i]);
  if (__syncthreads_or(unusable) && threadIdx.x == 0) a.fault[blockIdx.x] |= kNotFinite;
}

__global__ void rope_kernel(Rope a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, half = a.d / 2;
  for (int64_t i = threadIdx.x; i < a.n_heads * half; i += blockDim.x) {
    float* x = a.x + t * a.x_ld + i / half * a.head_ld;
    const int64_t j = i % half;
    float& left = x[a.rotation.half_split ? j : 2 * j];
    float& right = x[a.rotation.half_split ? j + half : 2 * j + 1];
    const float cos = a.rotation.cos[t * a.rotation.ld + j], sin = a.rotation.sin[t * a.rotation.ld + j];
    const float u = left, v = right;
    left = __fmaf_rn(u, cos, -(v * sin));
    right = __fmaf_rn(v, cos, u * sin);
  }
}

__global__ void rope_table_kernel(RopeTable a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t j = threadIdx.x; j < a.n_pairs; j += blockDim.x) {
    const float angle = static_cast<float>(a.positions[t]) * a.frequencies[j];
    const SinCos exact = sin_cos_of(angle);
    a.cos[t * a.ld + j] = static_cast<float>(exact.cos);
    a.sin[t * a.ld + j] = static_cast<float>(exact.sin);
  }
}

}  // namespace

void embed(const Embed& a, StreamHandle stream) {
  start(embed_kernel, {.x = a.n_rows, .y = div_up(a.d, kColumns)}, stream, a);
}
void rms_norm(const Norm& a, StreamHandle stream) { start(rms_norm_kernel, {.x = a.n_rows}, stream, a); }
void layer_norm(const Norm& a, StreamHandle stream) { start(layer_norm_kernel, {.x = a.n_rows}, stream, a); }
void add_into(const AddInto& a, StreamHandle stream) {
  start(add_kernel, {.x = a.n_rows, .y = div_up(a.d, kColumns)}, stream, a);
}
void mark_unusable(const MarkUnusable& a, StreamHandle stream) {
  start(mark_unusable_kernel, {.x = a.n_rows, .threads = 512}, stream, a);
}
void rope(const Rope& a, StreamHandle stream) { start(rope_kernel, {.x = a.n_rows}, stream, a); }
void rope_table(const RopeTable& a, StreamHandle stream) { start(rope_table_kernel, {.x = a.n_rows}, stream, a); }

}  // namespace levin::cuda::plain
