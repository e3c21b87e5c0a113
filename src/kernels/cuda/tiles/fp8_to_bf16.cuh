// e4m3 codes to bf16, exactly, with integer operations and a multiplication.
//
// The seven bits under an e4m3 sign, moved into a bf16's lowest exponent bits and highest mantissa bits, read as the
// value times 2^-120 (subnormals too: both formats keep their leading bit implicit in the same way). Multiplying by
// 2^120 and by a power-of-two scale rounds nothing.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace levin::cuda {

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// `codes` holds two e4m3 codes in the high bytes of its halves; `factor` is 2^120 times their scale, twice.
__device__ __forceinline__ uint32_t e4m3_pair_to_bf16(uint32_t codes, uint32_t factor) {
  return multiply_bf16x2((codes & 0x80008000u) | ((codes >> 4) & 0x07F007F0u), factor);
}

// Four codes, lowest byte first, to four bf16 in the order 1, 3, 0, 2: odd bytes are where they should be, and even ones
// a shift away, so that no byte is permuted.
__device__ __forceinline__ uint2 e4m3x4_to_bf16_1302(uint32_t codes, uint32_t factor) {
  const uint32_t even = (codes << 8 & 0x80008000u) | (codes << 4 & 0x07F007F0u);
  return {e4m3_pair_to_bf16(codes, factor), multiply_bf16x2(even, factor)};
}

// Four bf16 in two words, in that order.
__device__ __forceinline__ uint32_t odd_of(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}
__device__ __forceinline__ uint32_t even_of(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}

// A power of two as a pair of bf16.
__device__ __forceinline__ uint32_t power_pair(float power) {
  const uint32_t high = __float_as_uint(power) >> 16;
  return high | high << 16;
}

// 2^120 * scale fits bf16 up to this scale; larger ones need a second multiplication.
constexpr float kMaxFactorScale = 128.0f;
__device__ __forceinline__ uint32_t code_factor(float scale) {
  return power_pair(fminf(scale, kMaxFactorScale) * 0x1p120f);
}

}  // namespace levin::cuda
