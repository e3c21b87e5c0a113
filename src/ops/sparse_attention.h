// Attention of each query token to chosen cache rows, which are keys and values at once.
//
//   a[t,h,s]   = scale * (q_latent[t,h,:] . c[s,:] + q_rope[t,h,:] . k_rope[s,:])        for the candidates s of row t
//   out[t,h,:] = sum_s p[s] v[s,:],    p[s] = exp(a[t,h,s]) / (sum_s exp(a[t,h,s]) + exp(sink[h]))
//
// v is the latent part, or the whole row where the format says so; the sink's term is left out without sinks.
// Multi-head latent attention in absorbed form over selected rows is this with selects alone; DeepSeek-V4 attends to the
// rows of its window, then to entries of another cache. One set of candidates serves all heads. A row without any gives
// zeros.
//
// Tree      The candidates of a row are those of `rows` in ascending slot, then those of `more`. Tile i is its own
//           candidates 64i .. 64i+63, whichever cache they come from. In the log2 domain,
//           u = dot * (scale * log2 e rounded to f32), dot over the concatenated row (latent, then rope) in blocks of
//           128 of that length as in ops/index_topk.h. Per tile:
//             m' = max(m, max_j ceil(u_j)), an integer; m = -infinity before the first tile
//             p_j = 2^(u_j - ceil(u_j)) * 2^(ceil(u_j) - m'), zero below 2^-126; the first by a polynomial
//             out and sum are multiplied by the exact power 2^(m - m'), zero below 2^-126
//             sum += sum of p over the tile: 16 partial sums (j mod 16, ascending), folded 8, 4, 2, 1
//             out[v] = fma(p_j, c[j,v], out[v]), j ascending
//           The sink comes last, as a tile of its own with u = sink * (log2 e rounded to f32), which adds to the sum
//           alone. At the end out[v] = out[v] / sum. Nothing depends on other rows, heads or threads.
// Numerics  queries and cached values as f32, exactly, whatever their type; all else in f32 by fused multiply-adds. So
//           results are the same bits on every kernel set, with one exception: over bf16 rows (Rk even, values without
//           the rotated part) the sets that multiply bf16 round the latent part of q and the p_j to bf16, the sum being
//           that of the rounded ones, and have trees of their own:
//             avx512-bf16  pairs of latent columns and pairs of candidates by the bf16 dot instruction, ascending: dots
//                          in blocks of 128 latent columns, then of the rotated part
//             amx-bf16     steps of 32 columns or candidates by TDPBF16PS, ascending: sum += even + odd, those of the
//                          step's even and of its odd ones from zero, ascending (kernels/cpu/tiles_amx.h). A rotated
//                          part is high, the value rounded to bf16, and low, what is left rounded. A dot, from zero:
//                          latent, then of query and row high high, high low, low high; each begins a step, zeros fill
//                          its last. low low and what two bf16 leave are below 3 2^-18 of a product. A tile of
//                          candidates begins a step. Values below 2^-126 count as zero, and a sum of -0 as 0
//           This chain of tiles is not cut anywhere: on the CPU a thread has whole rows of heads, and sums that start afresh
//           would only cost a merge.
// CUDA      queries over fp8 rows of latent 512 and rope 64, 1 to 128 heads, indices in multiples of 64 up to 2048; no `more`,
//           no sinks. Queries in f32 are rounded to bf16 first: heads of bf16 ones dense, rows a multiple of 8 elements apart.
//           The tree is that of kernels/cuda/sparse_mla.h, whose sums start afresh at index 1024: weights are rounded to bf16
//           as above, 2^-8 of the sum of |p v| in all
// Source    model_spec.md 4.3, 6.3
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

// Some rows of one cache for each query: selected slots, or a run of slots.
struct AttentionRows {
  PagedRows cache;
  View topk;   // [T, K] i32, ascending, -1 after the last; empty: the run
  View begin;  // [T] i32: slots begin[t] <= s < end[t]; empty: from 0
  View end;    // [T] i32

  bool empty() const { return topk.empty() && end.empty(); }
};

struct SparseAttention {
  View q_latent;  // [T, H, Rk] f32, or bf16 over bf16 and fp8 rows; key up-projection absorbed
  View q_rope;    // [T, H, Dr] same dtype, rotated
  View seq;       // [T] i32, row of the caches' tables
  float scale = 0;
  LatentFormat format;  // of all rows
  AttentionRows rows;
  AttentionRows more;  // may be empty
  View sink;           // [H] f32, logits; empty: none
  View out;  // [T, H, format.d_value()] f32, overwritten; bf16 too where a tuned kernel of CUDA runs it, dense there
};
void sparse_attention(OpContext& ctx, const SparseAttention& a);

}  // namespace levin::ops
