// Tensor maps: what the copy engine must know about a matrix in device memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace levin::cuda {

enum class Swizzle { kNone, k32, k64, k128 };

// A row-major matrix, and the box of it that one copy moves. The leading dimension is given, never deduced from a
// stride.
struct MatrixMap {
  const void* data = nullptr;  // 16-byte aligned
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  int64_t row_bytes = 0;  // distance of rows, a multiple of 16
  int box_rows = 0;       // up to 256
  int box_columns = 0;    // their bytes must not exceed the swizzle's width
  Swizzle swizzle = Swizzle::kNone;
  // Bytes that a miss brings to L2: 128 or 256. Memory that is read once comes a tenth faster by 128; 256 suit what many blocks
  // read.
  int l2_bytes = 128;
};

CUtensorMap make_tensor_map(const MatrixMap& m);

// The same for a stack of matrices: the map's third coordinate is the matrix.
struct MatrixStackMap {
  MatrixMap matrix;
  int64_t n_matrices = 0;
  int64_t matrix_bytes = 0;  // distance of matrices, a multiple of 16
  int box_matrices = 1;      // up to 256
};

CUtensorMap make_tensor_map(const MatrixStackMap& m);

}  // namespace levin::cuda
