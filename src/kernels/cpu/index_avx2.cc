#include "kernels/cpu/index_simd.h"

namespace levin::kernels {

IndexKernels index_kernels_avx2() {
  using Scores = IndexScores<Avx2>;
  return {.score_scratch_bytes = Scores::scratch_bytes, .score = Scores::score, .select = Select<Avx2>::select};
}

}  // namespace levin::kernels
