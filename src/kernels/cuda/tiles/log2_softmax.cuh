// Pieces of a softmax in the log2 domain whose running maximum is an integer, so that rescaling is exact.
//
// A ceiling is kept as the bits of ceil(u) + 1.5 * 2^23, an integer that grows by one per unit: differences of ceilings
// are differences of these bits. Valid for |u| < 2^22; u = -inf has the lowest ceiling of all.
#pragma once

#include <cstdint>

namespace levin::cuda {

constexpr float kCeilingMagic = 12582912.0f;
constexpr int32_t kNoCeiling = 0x4B000000;  // below every ceiling of a valid u; above that of -inf
constexpr int32_t kLowestPower = -125;      // smaller powers are zero

__device__ __forceinline__ int32_t ceiling_bits(float u) { return __float_as_int(__fadd_ru(u, kCeilingMagic)); }
__device__ __forceinline__ float ceiling_value(int32_t bits) { return __int_as_float(bits) - kCeilingMagic; }

// 2^(difference) for difference <= 0.
__device__ __forceinline__ float power_of_two(int32_t difference) {
  return difference < kLowestPower ? 0.0f : __int_as_float((127 + difference) << 23);
}

// 2^x, zero below 2^-126.
__device__ __forceinline__ float exp2_flushed(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace levin::cuda
