// Promoting one 128-deep block of FP8 sums into the f32 total, as the reduction tree has it: total = fma(block, sx * sw,
// total).
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/wgmma.cuh"

namespace levin::cuda {

// sx * sw for one thread's part of a [64, N] accumulator and one block of k: rows r and r + 8, with the tile's first
// and second row of weight scales. The second is used only by tiles that straddle two blocks of weight rows.
struct PromoteScales {
  float low[2];
  float high[2];
};

__device__ __forceinline__ PromoteScales promote_scales(float sx_low, float sx_high, float sw_first, float sw_second) {
  return {{sx_low * sw_first, sx_low * sw_second}, {sx_high * sw_first, sx_high * sw_second}};
}

// kCrosses: columns from first_block_columns (a multiple of 8) on use the second scale.
template <int N, bool kCrosses>
__device__ __forceinline__ void promote_block(float (&total)[N / 2], const float (&block)[N / 2],
                                              const PromoteScales& s, int first_block_columns) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    const bool first = !kCrosses || 8 * j < first_block_columns;
    const float low = first ? s.low[0] : s.low[1], high = first ? s.high[0] : s.high[1];
    total[4 * j] = __fmaf_rn(block[4 * j], low, total[4 * j]);
    total[4 * j + 1] = __fmaf_rn(block[4 * j + 1], low, total[4 * j + 1]);
    total[4 * j + 2] = __fmaf_rn(block[4 * j + 2], high, total[4 * j + 2]);
    total[4 * j + 3] = __fmaf_rn(block[4 * j + 3], high, total[4 * j + 3]);
  }
}

// d = the four steps of 32 k of a pair of 128-byte-swizzled tiles, given by the low words of their descriptors. The
// caller fences before and commits after.
template <int N>
__device__ __forceinline__ void multiply_block(float (&d)[N / 2], uint32_t a, uint32_t b) {
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step)
    Wgmma<N>::e4m3(d, join_descriptor(a + 2 * step, descriptor_high()),
                   join_descriptor(b + 2 * step, descriptor_high()), step != 0);
}

// blocks[b] = the four steps of 32 k of the b-th pair of 128-byte-swizzled tiles. Steps of different blocks alternate:
// each adds to the one before, and a lone chain of small products would wait for itself. The caller fences before and
// commits after.
struct TilePair {
  uint32_t a, b;            // low words of the first block's descriptors
  uint32_t a_step, b_step;  // bytes from block to block
};
template <int N, int kBlocks>
__device__ __forceinline__ void multiply_blocks(float (&blocks)[kBlocks][N / 2], const TilePair& t) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Wgmma<N>::e4m3(blocks[b], join_descriptor(t.a + (b * t.a_step + step * 32) / 16, descriptor_high()),
                     join_descriptor(t.b + (b * t.b_step + step * 32) / 16, descriptor_high()), step != 0);
    }
  }
}

}  // namespace levin::cuda
