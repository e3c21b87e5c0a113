// Attention to chosen cache rows, which are keys and values at once. Contract and tree: ops/sparse_attention.h; queries and
// cached values as f32 whatever their type.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

// Some rows of one cache for each query: selected slots, or a run of slots. A default one has none.
struct AttentionRows {
  PagedCache cache;
  const int32_t* topk = nullptr;   // [T, K] ascending, -1 after the last, dense; null: the run
  int64_t n_topk = 0;              // K
  const int32_t* begin = nullptr;  // [T]: slots begin[t] <= s < end[t]; null: from 0
  const int32_t* end = nullptr;    // [T]
};

struct SparseAttention {
  const void* q_latent = nullptr;  // [T, H, Rk] f32 or bf16
  const void* q_rope = nullptr;    // [T, H, Dr] same dtype
  DType q_dtype = DType::kF32;
  int64_t q_latent_ld = 0, q_latent_head_ld = 0;
  int64_t q_rope_ld = 0, q_rope_head_ld = 0;
  const int32_t* seq = nullptr;  // [T], row of the caches' tables; below 0: padding, which has no candidates
  float scale = 0;
  LatentFormat format;  // of all rows
  AttentionRows rows;
  AttentionRows more;
  const float* sink = nullptr;  // [H], may be null
  float* out = nullptr;         // [T, H, format.d_value()], zeros without candidates
  int64_t out_ld = 0, out_head_ld = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
};
void sparse_attention(const SparseAttention& a, StreamHandle stream);

}  // namespace levin::cuda::plain
