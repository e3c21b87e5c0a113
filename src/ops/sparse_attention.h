// Multi-head latent attention in absorbed form over the picked cache rows of each query token.
//
//   a[t,h,s]   = scale * (q_latent[t,h,:] . c[s,:] + q_rope[t,h,:] . k_rope[s,:])        for s in picks[t,:]
//   out[t,h,:] = sum_s softmax_s(a[t,h,:]) c[s,:]
//
// One set of picks serves all heads. A row without picks gives zeros.
//
// Tree      A row's tile i is its own picks 64i .. 64i+63 in ascending position. In the log2 domain,
//           u = dot * (scale * log2 e rounded to f32), dot over the concatenated row (latent, then rope) in blocks of
//           128 of that length as in ops/index_topk.h. Per tile:
//             m' = max(m, max_j ceil(u_j)), an integer; m = -infinity before the first tile
//             p_j = 2^(u_j - ceil(u_j)) * 2^(ceil(u_j) - m'), zero below 2^-126; the first by a polynomial
//             out and sum are multiplied by the exact power 2^(m - m'), zero below 2^-126
//             sum += sum of p over the tile: 16 partial sums (j mod 16, ascending), folded 8, 4, 2, 1
//             out[v] = fma(p_j, c[j,v], out[v]), j ascending
//           At the end out[v] = out[v] / sum. Nothing depends on other rows, heads or threads.
// Numerics  queries and cached values as f32, exactly, whatever their type; all else in f32 by fused multiply-adds. So
//           results are the same bits on every kernel set. The bf16 dot instruction is not used (ops/index_topk.h).
// Source    model-spec 4.3
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

struct SparseAttention {
  View q_latent;  // [T, H, Rk] f32, or bf16 over bf16 and fp8 rows; key up-projection absorbed
  View q_rope;    // [T, H, Dr] same dtype, rotated
  View picks;     // [T, K] i32, ascending, -1 after the last
  View seq;       // [T] i32, row of cache.tables
  float scale = 0;
  LatentFormat format;
  PagedRows cache;
  View out;  // [T, H, Rk] f32, overwritten
};
void sparse_attention(OpContext& ctx, const SparseAttention& a);

}  // namespace levin::ops
