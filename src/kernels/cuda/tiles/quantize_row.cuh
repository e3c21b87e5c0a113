// A block of a row to e4m3 with a power-of-two scale, by lanes of one warp; bit for bit base/numbers.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/rows/quantize_fp8.h"

namespace levin::cuda {

constexpr int kLaneColumns = 8;
constexpr int kBlockLanes = 16;  // lanes that share a scale

__device__ __forceinline__ void load_8(float (&v)[kLaneColumns], const float* x) {
  const float4 low = *reinterpret_cast<const float4*>(x), high = *reinterpret_cast<const float4*>(x + 4);
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void load_8(float (&v)[kLaneColumns], const __nv_bfloat16* x) {
  const uint4 raw = *reinterpret_cast<const uint4*>(x);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// e4m3_pow2_scale: the exponent of the rounded quotient, plus one if any mantissa bit is set.
__device__ __forceinline__ uint32_t scale_exponent(float amax) {
  const uint32_t bits = __float_as_uint(__fmul_rn(amax > 1e-4f ? amax : 1e-4f, 1.0f / 448.0f));
  return (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

__device__ __forceinline__ float power_of_exponent(uint32_t exponent) { return __uint_as_float(exponent << 23); }
__device__ __forceinline__ float inverse_power(uint32_t exponent) {  // exact: both are powers of two
  return __uint_as_float((254 - exponent) << 23);
}

// The largest absolute value over kLanes neighbouring lanes, in all of them.
template <int kLanes, int kValues>
__device__ __forceinline__ float largest_of_lanes(const float (&v)[kValues]) {
  float amax = 0;
#pragma unroll
  for (const float value : v) amax = fmaxf(amax, fabsf(value));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, step));
  return amax;
}

__device__ __forceinline__ uint32_t e4m3_codes(float a, float b, float c, float d, float inverse) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({a * inverse, b * inverse}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({c * inverse, d * inverse}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// What the pair of codes in `codes` stands for, times `scale`, as two bf16: exact.
__device__ __forceinline__ uint32_t bf16_of_codes(uint16_t codes, float scale) {
  const __half2_raw half = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
  const float2 wide = __half22float2(__half2(half));
  const __nv_bfloat162 pair = __floats2bfloat162_rn(wide.x * scale, wide.y * scale);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Rounds this lane's 8 columns from `column` of row t with its block's scale. Lanes beyond K hold zeros, or what
// is in their block anyway, and write nothing.
__device__ __forceinline__ void round_8(const float (&v)[kLaneColumns], const QuantizedRows& out, int t, int column,
                                        int k) {
  const uint32_t exponent = scale_exponent(largest_of_lanes<kBlockLanes>(v));
  if (column >= k) return;
  const float inverse = inverse_power(exponent), scale = power_of_exponent(exponent);
  const uint32_t low = e4m3_codes(v[0], v[1], v[2], v[3], inverse), high = e4m3_codes(v[4], v[5], v[6], v[7], inverse);
  if (out.values != nullptr) {
    *reinterpret_cast<uint4*>(out.values + t * out.values_ld + column) = {
        bf16_of_codes(static_cast<uint16_t>(low), scale), bf16_of_codes(static_cast<uint16_t>(low >> 16), scale),
        bf16_of_codes(static_cast<uint16_t>(high), scale), bf16_of_codes(static_cast<uint16_t>(high >> 16), scale)};
    return;
  }
  *reinterpret_cast<uint2*>(out.codes + t * out.code_row_bytes + column) = {low, high};
  if (column % 128 == 0) out.scale[column / 128 * out.scale_ld + t * out.scale_row_stride] = scale;
}

}  // namespace levin::cuda
