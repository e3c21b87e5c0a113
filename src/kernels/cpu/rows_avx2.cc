#include "kernels/cpu/rows_simd.h"

namespace levin::kernels {

RowKernels row_kernels_avx2() { return Rows<Avx2>::table(); }

}  // namespace levin::kernels
