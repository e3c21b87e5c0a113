#include "kernels/cpu/attention_simd.h"

namespace levin::kernels {
namespace {

using Exact = Attention<FmaDot<Avx512>>;  // f32 queries
using Paired = Attention<PairDot>;        // bf16 queries

int64_t scratch_bytes(const LatentFormat& format, int64_t n_heads) { return Exact::scratch_bytes(format, n_heads); }

void attend(const AttentionJob& a) {
  if (a.q_dtype == DType::kF32) return Exact::attend(a);
  Paired::attend(a);
}

}  // namespace

AttentionKernels attention_kernels_avx512_bf16() { return {.scratch_bytes = scratch_bytes, .attend = attend}; }

}  // namespace levin::kernels
