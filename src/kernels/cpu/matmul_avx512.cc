#include "kernels/cpu/f32_set_simd.h"

namespace levin::kernels {

void product_f32_avx512(const ProductJob& job) { product_f32<Avx512>(job); }

MatmulKernels matmul_kernels_avx512() { return f32_kernels<Avx512>(); }

}  // namespace levin::kernels
