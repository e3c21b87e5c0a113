#include "kernels/cpu/index_simd.h"

namespace levin::kernels {
namespace {

using Exact = IndexScores<FmaDot<Avx512>>;  // f32 keys and queries
using Paired = IndexScores<PairDot>;        // all others

int64_t scratch_bytes(int64_t n_heads, int64_t d_index) { return Exact::scratch_bytes(n_heads, d_index); }

void score(const IndexScoreJob& a) {
  if (a.format.dtype == CacheDType::kF32) return Exact::score(a);
  Paired::score(a);
}

}  // namespace

IndexKernels index_kernels_avx512_bf16() {
  return {.score_scratch_bytes = scratch_bytes, .score = score, .select = Select<Avx512>::select};
}

}  // namespace levin::kernels
