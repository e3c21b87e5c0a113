// row_chains.h: a block a row; index rows wait in shared memory.
#include <cmath>

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/row_chains.h"
#include "kernels/cuda/plain/row_pieces.cuh"

namespace levin::cuda::plain {
namespace {

__device__ __forceinline__ float value_at(const ChainInput& x, int64_t i) {
  return kernels::query_value(x.x, x.dtype, i);
}

__global__ void norm_rows_kernel(NormRows a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  float* residual = a.residual == nullptr ? nullptr : a.residual + t * a.residual_ld;
  if (residual != nullptr) {
    for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) residual[i] += value_at(a.x, t * a.x.ld + i);
    __syncthreads();
  }
  const auto x = [&](int64_t i) { return residual != nullptr ? residual[i] : value_at(a.x, t * a.x.ld + i); };
  const float inverse = rms_inverse(a.d, a.eps, x);
  const auto normed = [&](int64_t i) { return a.weight[i] * (x(i) * inverse); };
  if (a.normed != nullptr) store_row(false, a.d, normed, reinterpret_cast<std::byte*>(a.normed + t * a.d));
  if (a.codes != nullptr) {
    const int64_t n_scales = (a.d + kQuantBlock - 1) / kQuantBlock;
    quantize_row(a.d, kQuantBlock, normed, a.codes + t * a.d, a.scale + t * n_scales);
  }
}

__global__ void rotate_queries_kernel(RotateQueries a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x; i < a.n_heads * a.d; i += blockDim.x) {
    const int64_t head = t * a.x.ld + i / a.d * a.head_ld;
    const auto x = [&](int64_t j) { return value_at(a.x, head + j); };
    a.out[t * a.n_heads * a.d + i] = f32_to_bf16(rotated(a.rotation, t, a.d, i % a.d, x));
  }
}

__global__ void write_latent_kernel(WriteLatent a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, first = t * a.x.ld;
  std::byte* page = a.to.page(t);
  if (page == nullptr) return;
  const auto latent = [&](int64_t i) { return value_at(a.x, first + i); };
  const auto rope = [&](int64_t i) { return value_at(a.x, first + a.format.d_latent + i); };
  const float inverse = rms_inverse(a.format.d_latent, a.eps, latent);
  store_latent(
      a.format, [&](int64_t i) { return a.weight[i] * (latent(i) * inverse); },
      [&](int64_t i) { return rotated(a.rotation, t, a.format.d_rope, i, rope); },
      page + a.to.row(t) * a.format.row_bytes);
}

__global__ void index_queries_kernel(IndexQueries a, float hadamard_factor) {
  follow_earlier_kernels();
  __shared__ float row[kQuantBlock];
  const int64_t t = blockIdx.x, h = blockIdx.y, out = t * a.n_heads + h;
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) row[i] = value_at(a.x, t * a.x.ld + h * a.d + i);
  rotate_row(a.rotation, t, a.d_rope, row);
  if (a.hadamard) hadamard_row(a.d, hadamard_factor, row);
  if (threadIdx.x >= 32) return;
  const float scale = quantize_block(a.d, [&](int64_t i) { return row[i]; }, a.codes + out * a.d);
  if (threadIdx.x == 0) a.weights[out] = a.w[t * a.w_ld + h] * a.factor * scale;
}

__global__ void write_index_keys_kernel(WriteIndexKeys a, float hadamard_factor) {
  follow_earlier_kernels();
  __shared__ float row[kMaxIndexWidth];
  const int64_t t = blockIdx.x, d = a.format.d_index;
  std::byte* page = a.to.page(t);
  if (page == nullptr) return;
  const auto x = [&](int64_t i) { return value_at(a.x, t * a.x.ld + i); };
  const Centre centre = layer_centre(d, a.eps, x);
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    row[i] = __fmaf_rn(a.weight[i], (x(i) - centre.mean) * centre.inverse, a.bias[i]);
  }
  rotate_row(a.rotation, t, a.d_rope, row);
  if (a.hadamard) hadamard_row(d, hadamard_factor, row);
  store_index_key(a.format, [&](int64_t i) { return row[i]; }, page, a.to.row(t));
}

float hadamard_factor(int64_t d) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))); }

}  // namespace

void norm_rows(const NormRows& a, StreamHandle stream) { start(norm_rows_kernel, {.x = a.n_rows}, stream, a); }
void rotate_queries(const RotateQueries& a, StreamHandle stream) {
  start(rotate_queries_kernel, {.x = a.n_rows}, stream, a);
}
void write_latent(const WriteLatent& a, StreamHandle stream) { start(write_latent_kernel, {.x = a.n_rows}, stream, a); }

void index_queries(const IndexQueries& a, StreamHandle stream) {
  start(index_queries_kernel, {.x = a.n_rows, .y = a.n_heads}, stream, a, hadamard_factor(a.d));
}

void write_index_keys(const WriteIndexKeys& a, StreamHandle stream) {
  start(write_index_keys_kernel, {.x = a.n_rows}, stream, a, hadamard_factor(a.format.d_index));
}

}  // namespace levin::cuda::plain
