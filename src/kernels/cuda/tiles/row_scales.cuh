// The activations' scales of some rows and blocks of 128 k, brought in by the copy engine.
//
// Scales lie [ceil(K / 128), ld] with ld a multiple of 4. The copy engine wants boxes that begin on 16 bytes, a tile
// may begin at any row: so a box starts at the multiple of 4 below, is 4 values wider, and the reader skips
// skew(first_row) values.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"

namespace levin::cuda {

// kRows up to 252.
template <int kRows, int kBlocks>
struct alignas(128) RowScales {
  static constexpr int kBytes = kBlocks * (kRows + 4) * 4;

  float of[kBlocks][kRows + 4];

  __device__ __forceinline__ static int skew(int first_row) { return first_row & 3; }

  // With the map from map(). Rows beyond T and blocks beyond K read as zero.
  __device__ __forceinline__ void load(const CUtensorMap& map, int first_row, int first_block, Mbarrier& full) {
    tma_load_2d(of, map, full, first_row & ~3, first_block, kEvictLast);
  }

  static CUtensorMap map(const float* scales, int64_t ld, int n_rows, int n_blocks) {
    MatrixMap m;
    m.data = scales;
    m.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    m.n_rows = n_blocks;
    m.n_columns = n_rows;
    m.row_bytes = ld * 4;
    m.box_rows = kBlocks;
    m.box_columns = kRows + 4;
    return make_tensor_map(m);
  }
};

}  // namespace levin::cuda
