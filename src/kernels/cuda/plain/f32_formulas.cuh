// The rest of kernels/cpu/simd_math.h's formulas, operation by operation (tiles/f32_math.cuh has exp, sigmoid and silu).
#pragma once

#include "kernels/cuda/tiles/f32_math.cuh"

namespace levin::cuda::plain {

constexpr float kLog2E = 0x1.715476p+0f;

// 2^f for f in [-1, 0].
__device__ __forceinline__ float exp2_fraction(float f) {
  constexpr float kC[7] = {1.0f,          0x1.62e42cp-1f,  0x1.ebfacp-3f,  0x1.c69486p-5f,
                           0x1.39e3ep-7f, 0x1.4e2a94p-10f, 0x1.c94658p-14f};
  float sum = kC[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) sum = __fmaf_rn(sum, f, kC[i]);
  return sum;
}

// 2^e for an integer e <= 0 held in a float; 0 below 2^-126, and for NaN.
__device__ __forceinline__ float exp2_or_zero(float e) {
  return __int_as_float((static_cast<int>(e > -127.0f ? e : -127.0f) + 127) << 23);
}

// sqrt(log(1 + exp(x)))
__device__ __forceinline__ float sqrt_softplus(float x) {
  constexpr float kArtanh[7] = {1.0f, 1.0f / 3.0f, 1.0f / 5.0f, 1.0f / 7.0f, 1.0f / 9.0f, 1.0f / 11.0f, 1.0f / 13.0f};
  const float e = exp_f32(0.0f - fabsf(x)), s = e / (2.0f + e), square = s * s;
  float sum = kArtanh[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) sum = __fmaf_rn(sum, square, kArtanh[i]);
  return sqrtf((0.0f > x ? 0.0f : x) + (s + s) * sum);
}

}  // namespace levin::cuda::plain
