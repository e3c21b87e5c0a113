#include "kernels/cpu/f32_set_simd.h"

namespace levin::kernels {

MatmulKernels matmul_kernels_avx512_vbmi() { return f32_kernels<Avx512Vbmi>(); }

}  // namespace levin::kernels
