// Shared memory to register fragments of the matrix unit.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"

namespace levin::cuda {

// Four 8 x 16-byte matrices: lane l gives the address of row l % 8 of matrix l / 8, and gets in word m bytes 4 * (l %
// 4) ..
// + 3 of row l / 4 of matrix m. All lanes call together.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace levin::cuda
