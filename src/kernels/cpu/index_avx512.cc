#include "kernels/cpu/index_simd.h"

namespace levin::kernels {

IndexKernels index_kernels_avx512() {
  using Scores = IndexScores<Avx512>;
  return {.score_scratch_bytes = Scores::scratch_bytes, .score = Scores::score, .select = Select<Avx512>::select};
}

}  // namespace levin::kernels
