// Folding one 128-deep block of FP8 sums into the f32 total, as the reduction tree has it: total = fma(block, sx * sw,
// total).
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/wgmma.cuh"

namespace levin::cuda {

// The scales of one block of k for one thread's part of a [64, N] accumulator: two rows, and one or two blocks of 128
// weight rows.
struct FoldScales {
  float row[2];             // sx of the thread's rows r and r + 8
  float weights[2];         // sw of the tile's first and second weight block; the second only where the tile crosses
  int first_block_columns;  // columns that use weights[0]; a multiple of 8
};

// kCrosses: the tile may straddle two weight blocks. kUpperRows: rows r + 8 are wanted too.
template <int N, bool kCrosses, bool kUpperRows>
__device__ __forceinline__ void fold_block(float (&total)[N / 2], const float (&block)[N / 2], const FoldScales& s) {
  const float low0 = s.row[0] * s.weights[0], high0 = s.row[1] * s.weights[0];
  const float low1 = s.row[0] * s.weights[1], high1 = s.row[1] * s.weights[1];
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const bool first = !kCrosses || 8 * j < s.first_block_columns;
    const float low = first ? low0 : low1;
    total[4 * j] = __fmaf_rn(block[4 * j], low, total[4 * j]);
    total[4 * j + 1] = __fmaf_rn(block[4 * j + 1], low, total[4 * j + 1]);
    if constexpr (kUpperRows) {
      const float high = first ? high0 : high1;
      total[4 * j + 2] = __fmaf_rn(block[4 * j + 2], high, total[4 * j + 2]);
      total[4 * j + 3] = __fmaf_rn(block[4 * j + 3], high, total[4 * j + 3]);
    }
  }
}

// block = the four steps of 32 k of one 128-byte-swizzled pair of tiles. The caller fences before and commits after.
template <int N>
__device__ __forceinline__ void multiply_block(float (&block)[N / 2], uint64_t x, uint64_t w) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    Wgmma<N>::e4m3(block, x + step * descriptor_step(32), w + step * descriptor_step(32), step != 0);
}

}  // namespace levin::cuda
