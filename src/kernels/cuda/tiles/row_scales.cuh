// The activations' scales of some rows and blocks of 128 k, brought in by the copy engine.
//
// Scales lie [ceil(K / 128), ld] with ld a multiple of 4. The copy engine wants boxes that begin on 16 bytes, a tile
// of a group may begin at any row: so a box starts at the multiple of 4 below, is 4 values wider, and the reader skips
// skew(first_row) values. Tiles of a dense product begin on multiples of 4, and their boxes are as wide as they have rows: for
// each value beyond the matrix the copy engine takes about four cycles, which made a product of 16 rows in tiles of 64 half as long
// again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/tensor_map.h"
#include "kernels/cuda/prims/tma.cuh"

namespace levin::cuda {

// kRows up to 252.
template <int kRows, int kBlocks>
struct alignas(128) RowScales {
  static constexpr int kMostColumns = kRows + 4;

  float of[kBlocks * kMostColumns];  // [kBlocks, columns] of a box

  // Columns of a box: of a dense product whose tiles are tile_rows apart, a multiple of 4, or of groups.
  static int columns(bool dense, int tile_rows) { return dense ? std::min(tile_rows, kRows) : kMostColumns; }
  __device__ __forceinline__ static int bytes(int columns) {
    return kBlocks * columns * static_cast<int>(sizeof(float));
  }

  __device__ __forceinline__ static int skew(int first_row) { return first_row & 3; }

  // With the map from map(). Rows beyond ld and blocks beyond K read as zero.
  __device__ __forceinline__ void load(const CUtensorMap& map, int first_row, int first_block, Mbarrier& full) {
    tma_load_2d(of, map, full, first_row & ~3, first_block, kEvictLast);
  }

  static CUtensorMap map(const float* scales, int64_t ld, int n_blocks, int columns) {
    MatrixMap m;
    m.data = scales;
    m.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    m.n_rows = n_blocks;
    m.n_columns = ld;
    m.row_bytes = ld * 4;
    m.box_rows = kBlocks;
    m.box_columns = columns;
    return make_tensor_map(m);
  }
};

}  // namespace levin::cuda
