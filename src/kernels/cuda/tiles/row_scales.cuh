// The activations' scales of a tile's rows, one run of bytes for each block of 128 k.
//
// Scales lie [ceil(K / 128), ld] with ld a multiple of 4, so that every block of k begins on 16 bytes, as bulk copies
// need it. A tile may begin at any row: the copy starts at the multiple of 4 below and the reader skips skew(first_row)
// values.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/tma.cuh"

namespace levin::cuda {

template <int kRows>
struct alignas(16) RowScales {
  float of[kRows + 4];
};

// What to copy for one block of k.
struct RowScaleSpan {
  int begin = 0;  // multiple of 4
  uint32_t n_bytes = 0;
};

struct RowScaleSource {
  const float* scales;
  int64_t ld;

  __device__ __forceinline__ static int skew(int first_row) { return first_row & 3; }

  template <int kRows>
  __device__ __forceinline__ RowScaleSpan span(int first_row) const {
    const int begin = first_row & ~3;
    const int left = static_cast<int>(ld) - begin;
    return {begin, 4u * static_cast<uint32_t>(left < kRows + 4 ? left : kRows + 4)};
  }

  template <int kRows>
  __device__ __forceinline__ void load(RowScales<kRows>& to, const RowScaleSpan& span, int block,
                                       Mbarrier& full) const {
    bulk_load(to.of, scales + block * ld + span.begin, span.n_bytes, full);
  }
};

}  // namespace levin::cuda
