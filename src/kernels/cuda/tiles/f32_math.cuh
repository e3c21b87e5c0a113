// exp, sigmoid and silu in f32, the formulas of kernels/cpu/simd_math.h operation by operation, so that both devices
// give the same bits.
#pragma once

#include <cstdint>

namespace levin::cuda {

// Error below 1 unit in the last place; 0 below -104, infinity above 88.8; NaN stays NaN.
__device__ __forceinline__ float exp_f32(float x) {
  constexpr float kC[7] = {1.0f, 1.0f, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558acp-5f, 0x1.12397cp-7f, 0x1.6a5198p-10f};
  constexpr float kShifter = 0x1.8p23f;
  const float capped = 89.0f < x ? 89.0f : x;
  const float y = -104.0f > capped ? -104.0f : capped;
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(y, 0x1.715476p+0f), kShifter), kShifter);
  const float r = __fmaf_rn(n, -0x1.7f7d1cp-20f, __fmaf_rn(n, -0x1.62e4p-1f, y));
  float sum = kC[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) sum = __fmaf_rn(sum, r, kC[i]);
  const int whole = static_cast<int>(n), half = whole >> 1;
  const float first = __int_as_float((half + 127) << 23), second = __int_as_float((whole - half + 127) << 23);
  return __fmul_rn(__fmul_rn(sum, first), second);
}

__device__ __forceinline__ float one_plus_exp_of_minus(float x) { return __fadd_rn(1.0f, exp_f32(__fsub_rn(0.0f, x))); }
__device__ __forceinline__ float sigmoid_f32(float x) { return __fdiv_rn(1.0f, one_plus_exp_of_minus(x)); }
__device__ __forceinline__ float silu_f32(float x) { return __fdiv_rn(x, one_plus_exp_of_minus(x)); }

// silu(min(gate, limit)) * min(max(up, -limit), limit); NaN stays NaN.
__device__ __forceinline__ float limited_silu_mul_f32(float gate, float up, float limit) {
  const float raised = -limit > up ? -limit : up;
  return __fmul_rn(silu_f32(limit < gate ? limit : gate), limit < raised ? limit : raised);
}

}  // namespace levin::cuda
