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

constexpr uint32_t kMxWidestByte = 128;  // the e8m0 code of 2

// 2^126 times the scale of e8m0 code `code`, cut at 2^127, as a pair of bf16: exponent field code - 127 + 126 + 127.
__device__ __forceinline__ uint32_t mx_factor(uint32_t code) { return (min(code, kMxWidestByte) + 126) * 0x00800080u; }
// What is left of it: 2^(code - 128) above the cut, else 1.
__device__ __forceinline__ uint32_t mx_rest(uint32_t code) {
  return (max(code, kMxWidestByte) - kMxWidestByte + 127) * 0x00800080u;
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
