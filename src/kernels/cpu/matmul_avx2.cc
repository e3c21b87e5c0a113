#include "kernels/cpu/matmul_simd.h"
#include "kernels/cpu/round_simd.h"

namespace levin::kernels {
namespace {

DType operand_f32(DType, DType) { return DType::kF32; }

}  // namespace

MatmulKernels matmul_kernels_avx2() {
  MatmulKernels kernels = round_kernels<Avx2>();
  kernels.operand_dtype = operand_f32;
  kernels.prepare = prepare_f32<Avx2>;
  kernels.product = product_f32<Avx2>;
  return kernels;
}

}  // namespace levin::kernels
