// e4m3 codes to bf16, exactly, with integer operations and two multiplications.
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

// `codes` holds two e4m3 codes in the high bytes of its halves.
__device__ __forceinline__ uint32_t e4m3_pair_to_bf16(uint32_t codes, uint32_t scale_pair) {
  constexpr uint32_t kTwoTo120 = 0x7B807B80;
  const uint32_t shifted = (codes & 0x80008000u) | ((codes & 0x7F007F00u) >> 4);
  return multiply_bf16x2(multiply_bf16x2(shifted, kTwoTo120), scale_pair);
}

// Four codes, lowest byte first, to four bf16.
__device__ __forceinline__ uint2 e4m3x4_to_bf16(uint32_t codes, uint32_t scale_pair) {
  return {e4m3_pair_to_bf16(__byte_perm(codes, 0, 0x1404), scale_pair),
          e4m3_pair_to_bf16(__byte_perm(codes, 0, 0x3424), scale_pair)};
}

// A power of two as a pair of bf16.
__device__ __forceinline__ uint32_t scale_pair(float scale) {
  const uint32_t high = __float_as_uint(scale) >> 16;
  return high | high << 16;
}

}  // namespace levin::cuda
