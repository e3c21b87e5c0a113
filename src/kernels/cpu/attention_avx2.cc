#include "kernels/cpu/attention_simd.h"

namespace levin::kernels {

AttentionKernels attention_kernels_avx2() {
  using Fma = Attention<FmaDot<Avx2>>;
  return {.scratch_bytes = Fma::scratch_bytes, .attend = Fma::attend};
}

}  // namespace levin::kernels
