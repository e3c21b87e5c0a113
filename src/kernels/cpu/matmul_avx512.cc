#include "kernels/cpu/f32_set_simd.h"

namespace levin::kernels {

MatmulKernels matmul_kernels_avx512() { return f32_kernels<Avx512>(); }

}  // namespace levin::kernels
