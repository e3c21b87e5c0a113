// Scores as unsigned integers whose order is the order of selection: larger key = higher score, -0 and +0 the same.
//
// The score kernel counts scores in bins while it has them in registers, and the selection begins with the bin that
// holds the K-th. A bin is what shares the top bits of a key: sign, exponent and five bits of mantissa from 2^-27 up to
// 2^29, where the K-th of a long row is to be expected, and sign and exponent but for its last bit elsewhere.
#pragma once

#include <cstdint>

namespace levin::cuda {

constexpr int kScoreBins = 2048;
constexpr int kFineShift = 18;
constexpr int kCoarseShift = 24;
constexpr int kFinePerCoarse = 1 << (kCoarseShift - kFineShift);
constexpr int kFirstFine = 178;  // the coarse bin of 2^-27
constexpr int kFineCoarse = 28;  // so many coarse bins are divided
static_assert(256 + kFineCoarse * kFinePerCoarse == kScoreBins, "bins for all keys");

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes +0
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// Rises by one with each coarse and with each fine step, so that the bin before a coarse step is empty.
__device__ __forceinline__ uint32_t score_bin(uint32_t key) {
  // min(key >> kFineShift less what lies below the fine bins, all of them), at least 0, in one instruction
  const int fine = __viaddmin_s32_relu(static_cast<int>(key >> kFineShift), -kFirstFine * kFinePerCoarse,
                                       kFineCoarse * kFinePerCoarse);
  return (key >> kCoarseShift) + fine;
}

// The keys of a bin: key >> shift == value.
struct BinKeys {
  int shift;
  uint32_t value;
};
__device__ __forceinline__ BinKeys keys_of_bin(uint32_t bin) {
  const uint32_t coarse = (bin - kFirstFine) / (kFinePerCoarse + 1), fine = (bin - kFirstFine) % (kFinePerCoarse + 1);
  if (bin < kFirstFine) return {kCoarseShift, bin};
  if (coarse >= kFineCoarse) return {kCoarseShift, bin - kFineCoarse * kFinePerCoarse};
  return {kFineShift, (kFirstFine + coarse) * kFinePerCoarse + fine};
}

// The lowest score whose key is at least `key`, so -0 for zero. NaN, which no score reaches, where there is none.
__device__ __forceinline__ float lowest_score(uint32_t key) {
  constexpr uint32_t kZero = 0x80000000, kMinusInfinity = 0x007fffff;
  const uint32_t positive = key ^ kZero, other = ~min(max(key, kMinusInfinity), kZero - 1);
  return __uint_as_float(key > kZero ? positive : other);
}
#endif

}  // namespace levin::cuda
