#include "kernels/cuda/prims/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace levin::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's encoder, through the runtime, so that nothing links against the driver.
EncodeTiled encoder() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    LEVIN_CHECK(code == cudaSuccess && status == cudaDriverEntryPointSuccess,
                "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

CUtensorMapSwizzle swizzle_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

CUtensorMap encode(const MatrixStackMap& stack, int rank) {
  const MatrixMap& m = stack.matrix;
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(m.n_columns), static_cast<cuuint64_t>(m.n_rows),
                                 static_cast<cuuint64_t>(stack.n_matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.row_bytes), static_cast<cuuint64_t>(stack.matrix_bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(m.box_columns), static_cast<cuuint32_t>(m.box_rows),
                             static_cast<cuuint32_t>(stack.box_matrices)};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  LEVIN_CHECK(m.l2_bytes == 128 || m.l2_bytes == 256, "tensor map: a miss brings 128 or 256 bytes to L2, not {}",
              m.l2_bytes);
  const auto promotion = m.l2_bytes == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  CUtensorMap map;
  const CUresult code = encoder()(&map, m.type, static_cast<cuuint32_t>(rank), const_cast<void*>(m.data), extents,
                                  strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(m.swizzle),
                                  promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  LEVIN_CHECK(code == CUDA_SUCCESS, "tensor map of [{}, {}, {}], {} bytes a row, box [{}, {}] at {}: driver error {}",
              stack.n_matrices, m.n_rows, m.n_columns, m.row_bytes, m.box_rows, m.box_columns, m.data,
              static_cast<int>(code));
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const MatrixMap& m) { return encode({m, 1, 0}, 2); }

CUtensorMap make_tensor_map(const MatrixStackMap& m) { return encode(m, 3); }

}  // namespace levin::cuda
