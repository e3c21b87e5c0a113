#include "kernels/cpu/attention_simd.h"

namespace levin::kernels {

AttentionKernels attention_kernels_avx2() {
  using Fast = Attention<Avx2>;
  return {.scratch_bytes = Fast::scratch_bytes, .attend = Fast::attend};
}

}  // namespace levin::kernels
