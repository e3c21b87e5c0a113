#include "kernels/cpu/rows_simd.h"

namespace levin::kernels {

RowKernels row_kernels_avx512() { return Rows<Avx512>::table(); }

}  // namespace levin::kernels
