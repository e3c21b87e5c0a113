#include "kernels/cpu/matmul_simd.h"

namespace levin::kernels {

void product_f32_avx512_vbmi(const ProductJob& job) {
  if (job.w_dtype != DType::kF8E4M3) return product_f32_avx512(job);
  product_rows<Avx512Vbmi, FmaE4m3<Avx512Vbmi>>(job);
}

MatmulKernels matmul_kernels_avx512_vbmi() {
  MatmulKernels kernels = matmul_kernels_avx512();
  kernels.product = product_f32_avx512_vbmi;
  return kernels;
}

}  // namespace levin::kernels
