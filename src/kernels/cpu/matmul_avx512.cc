#include "kernels/cpu/matmul_simd.h"
#include "kernels/cpu/round_simd.h"

namespace levin::kernels {
namespace {

DType operand_f32(DType, DType) { return DType::kF32; }

}  // namespace

MatmulKernels matmul_kernels_avx512() {
  MatmulKernels kernels = round_kernels<Avx512>();
  kernels.operand_dtype = operand_f32;
  kernels.prepare = prepare_f32<Avx512>;
  kernels.product = product_f32<Avx512>;
  return kernels;
}

}  // namespace levin::kernels
