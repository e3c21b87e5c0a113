// Scores as unsigned integers whose order is the order of selection: larger key = higher score, -0 and +0 the same.
//
// The first digit of a key is its top 11 bits: sign, exponent, two bits of mantissa. The score kernel counts first
// digits while it has the scores in registers; the selection refines one bin at a time.
#pragma once

#include <cstdint>

namespace levin::cuda {

constexpr int kFirstShift = 21;
constexpr int kScoreBins = 2048;

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes +0
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
#endif

}  // namespace levin::cuda
