// Tensor maps of an FP8 product's operands, whose boxes are some rows of one block of k, swizzled. l2_bytes as in MatrixMap.
#pragma once

#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/prims/tensor_map.h"

namespace levin::cuda {

inline constexpr int kMapColumns = 128;  // of a box, a byte each

// [T, K]
inline CUtensorMap fp8_rows_map(const GemmFp8& a, int box_rows, int l2_bytes = 128) {
  return make_tensor_map(MatrixMap{.data = a.x,
                                   .n_rows = a.n_tokens,
                                   .n_columns = a.k,
                                   .row_bytes = a.x_row_bytes,
                                   .box_rows = box_rows,
                                   .box_columns = kMapColumns,
                                   .swizzle = Swizzle::k128,
                                   .l2_bytes = l2_bytes});
}

// [groups, N, K]
inline CUtensorMap fp8_weights_map(const GemmFp8& a, int box_rows, int l2_bytes = 128) {
  return make_tensor_map(MatrixStackMap{.matrix = {.data = a.w,
                                                   .n_rows = a.n,
                                                   .n_columns = a.k,
                                                   .row_bytes = a.k,
                                                   .box_rows = box_rows,
                                                   .box_columns = kMapColumns,
                                                   .swizzle = Swizzle::k128,
                                                   .l2_bytes = l2_bytes},
                                        .n_matrices = a.n_groups,
                                        .matrix_bytes = int64_t{a.n} * a.k});
}

}  // namespace levin::cuda
