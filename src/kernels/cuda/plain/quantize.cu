// quantize.h: a block a row; in it a warp a block of columns.
#include <cmath>

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/quantize.h"
#include "kernels/cuda/plain/row_pieces.cuh"

namespace levin::cuda::plain {
namespace {

constexpr int64_t kFp4Block = 32;

__global__ void round_to_bf16_kernel(RoundToBf16 a) {
  follow_earlier_kernels();
  for (int64_t i = threadIdx.x; i < a.k; i += blockDim.x) {
    a.out[blockIdx.x * a.out_ld + i] = f32_to_bf16(a.x[blockIdx.x * a.x_ld + i]);
  }
}

__global__ void quantize_kernel(QuantizeFp8 a) {
  follow_earlier_kernels();
  const float* x = a.x + blockIdx.x * a.x_ld;
  quantize_row(
      a.k, kQuantBlock, [&](int64_t i) { return x[i]; }, a.codes + blockIdx.x * a.out_ld,
      a.scale + blockIdx.x * a.scale_ld);
}

__global__ void quantize_to_bf16_kernel(QuantizeFp8 a) {
  follow_earlier_kernels();
  const float* x = a.x + blockIdx.x * a.x_ld;
  uint16_t* out = a.values + blockIdx.x * a.out_ld;
  for (int64_t begin = threadIdx.x / 32 * kQuantBlock; begin < a.k; begin += blockDim.x / 32 * kQuantBlock) {
    const int64_t n = a.k - begin < kQuantBlock ? a.k - begin : kQuantBlock;
    const float scale = e4m3_pow2_scale(warp_amax(n, [&](int64_t i) { return x[begin + i]; }));
    for (int64_t i = begin + threadIdx.x % 32; i < begin + n; i += 32) {
      out[i] = f32_to_bf16(e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale);
    }
  }
}

__global__ void round_to_fp4_kernel(RoundToFp4 a) {
  follow_earlier_kernels();
  float* x = a.x + blockIdx.x * a.x_ld;
  for (int64_t begin = threadIdx.x / 32 * kFp4Block; begin < a.k; begin += blockDim.x / 32 * kFp4Block) {
    const int64_t n = a.k - begin < kFp4Block ? a.k - begin : kFp4Block, i = begin + threadIdx.x % 32;
    const float scale = e2m1_pow2_scale(warp_amax(n, [&](int64_t j) { return x[begin + j]; }));
    if (i < a.k) x[i] = e2m1_to_f32(f32_to_e2m1(x[i] / scale)) * scale;
  }
}

__global__ void hadamard_kernel(Hadamard a, float factor) {
  follow_earlier_kernels();
  hadamard_row(a.d, factor, a.x + blockIdx.x * a.x_ld + blockIdx.y * a.head_ld);
}

}  // namespace

void round_to_bf16(const RoundToBf16& a, StreamHandle stream) {
  start(round_to_bf16_kernel, {.x = a.n_rows}, stream, a);
}

void quantize_fp8(const QuantizeFp8& a, StreamHandle stream) {
  start(a.codes != nullptr ? quantize_kernel : quantize_to_bf16_kernel, {.x = a.n_rows}, stream, a);
}

void round_to_fp4(const RoundToFp4& a, StreamHandle stream) { start(round_to_fp4_kernel, {.x = a.n_rows}, stream, a); }

void hadamard(const Hadamard& a, StreamHandle stream) {
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.d)));
  start(hadamard_kernel, {.x = a.n_rows, .y = a.n_heads}, stream, a, factor);
}

}  // namespace levin::cuda::plain
