// Words of packed MXFP4 weights (gemm_mxfp4_layout.h) to bf16 operand registers, exactly.
//
// The three bits of a code's magnitude, moved into a bf16's lowest two exponent bits and highest mantissa bit, read as
// its value times 2^-126 (0.5, too: both formats keep their leading bit implicit in the same way). Multiplying by
// 2^126 and the power-of-two scale rounds nothing. That factor fits bf16 up to scale 2; larger ones, which no sane
// weight has, are multiplied in twice.
#pragma once

#include <cstdint>

#include "kernels/cuda/tiles/fp8_to_bf16.cuh"

namespace levin::cuda {

// 2^126 times the scale of group kGroup, of e8m0 codes below 129, as a pair of bf16: the exponent field is code - 127 +
// 126 + 127. One byte permutation and one multiply-add; bit operations are what these kernels have least of.
template <int kGroup>
__device__ __forceinline__ uint32_t mx_factor(uint32_t codes) {
  return __byte_perm(codes, 0, 0x4440 + kGroup) * 0x00800080u + 126 * 0x00800080u;
}

// Scales from 2 on: what mx_factor() takes of them, and what is left of group i, 1 for smaller scales.
__device__ __forceinline__ uint32_t mx_narrowed(uint32_t codes) { return __vminu4(codes, 0x80808080u); }
__device__ __forceinline__ uint32_t mx_rest(uint32_t codes, int i) {
  return (max(codes >> 8 * i & 0xFF, 128u) - 128 + 127) * 0x00800080u;
}

// The operand's registers; even ones are of the first row, odd ones of the second.
__device__ __forceinline__ void mx_word_to_bf16(uint32_t (&a)[4], uint32_t word, uint32_t first, uint32_t second) {
  constexpr uint32_t kMask = 0x81C081C0u;  // sign, two exponent bits, one mantissa bit
  a[0] = multiply_bf16x2(word & kMask, first);
  a[1] = multiply_bf16x2(word << 3 & kMask, second);
  a[2] = multiply_bf16x2(word << 6 & kMask, first);
  const uint32_t last = (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00C000C0u);
  a[3] = multiply_bf16x2(last, second);
}

}  // namespace levin::cuda
