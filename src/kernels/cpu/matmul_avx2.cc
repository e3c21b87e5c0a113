#include "kernels/cpu/f32_set_simd.h"

namespace levin::kernels {

MatmulKernels matmul_kernels_avx2() { return f32_kernels<Avx2>(); }

}  // namespace levin::kernels
