// Attention of each query token to chosen cache rows, which are keys and values at once.
//
//   a[t,h,s]   = scale * (q_latent[t,h,:] . c[s,:] + q_rope[t,h,:] . k_rope[s,:])        for the candidates s of row t
//   out[t,h,:] = sum_s p[s] v[s,:],    p[s] = exp(a[t,h,s]) / (sum_s exp(a[t,h,s]) + exp(sink[h]))
//
// v is the latent part, or the whole row where the format says so; without sinks their term is omitted. Multi-head latent
// attention in absorbed form attends to `rows` alone; DeepSeek-V4 attends to the rows of its window, then to entries of
// another cache (`more`). All heads have the same candidates. The output of a row without candidates is zero.
//
// Order     The candidates of a row are those of `rows` in ascending slot, then those of `more`. Tile i is its own
//           candidates 64i .. 64i+63, whichever cache they come from. In the log2 domain,
//           u = dot * (scale * log2 e rounded to f32), dot over the concatenated row (latent, then rope) in blocks of
//           128 of that length as in ops/index_topk.h. Per tile:
//             m' = max(m, max_j ceil(u_j)), an integer; m = -infinity before the first tile
//             p_j = 2^(u_j - ceil(u_j)) * 2^(ceil(u_j) - m'), zero below 2^-126; the first by a polynomial
//             out and sum are multiplied by the exact power 2^(m - m'), zero below 2^-126
//             sum += sum of p over the tile: 16 partial sums (j mod 16, ascending), folded 8, 4, 2, 1
//             out[v] = fma(p_j, c[j,v], out[v]), j ascending
//           The sink comes last, as a tile of its own with u = sink * (log2 e rounded to f32), which adds only to the
//           sum. At the end out[v] = out[v] / sum. Nothing depends on other rows, heads or threads.
// Numerics  Queries and cached values are read as f32, exactly; everything else is f32 with fused multiply-adds. So all
//           kernel sets give the same bits, except over bf16 rows (Rk even, values without the rotated part): there the
//           sets that multiply bf16 round the latent part of q and the p_j to bf16, sum the rounded p_j, and have orders
//           of their own:
//             avx512-bf16  pairs of latent columns and pairs of candidates by the bf16 dot instruction, ascending. Dots go
//                          over blocks of 128 latent columns, then over the rotated part
//             amx-bf16     steps of 32 columns or candidates by TDPBF16PS, ascending: sum += even + odd, the sums of the
//                          step's even and of its odd elements, each ascending from zero (kernels/cpu/tiles_amx.h).
//                          A rotated value is split in two: high, itself rounded to bf16, and low, the remainder
//                          rounded to bf16. A dot sums, from zero: latent, then (query x row) high x high, high x low,
//                          low x high. Each part begins a step, and zeros fill its last one. The omitted low x low and
//                          the remainder after two bf16 are below 3 2^-18 of a product. A tile of candidates begins a
//                          step. Values below 2^-126 count as zero, and a sum of -0 as 0
//           The chain of tiles is never cut on the CPU, where one thread has all tiles of a row.
// CUDA      The tuned kernel takes fp8 rows of latent 512 and rope 64, 1 to 128 heads, and indices in multiples of 64 up to
//           2048, without `more` and sinks. Queries in f32 are rounded to bf16 first; bf16 queries have dense heads, and
//           rows a multiple of 8 elements apart. Its order is that of kernels/cuda/sparse_mla/sparse_mla.h, which begins new sums at
//           index 1024. The p_j are rounded to bf16 as above: the error is at most 2^-8 of the sum of |p v|
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
  View seq;       // [T] i32, row of the caches' tables; -1: padding, which has no candidates
  float scale = 0;
  LatentFormat format;  // of all rows
  AttentionRows rows;
  AttentionRows more;  // may be empty
  View sink;           // [H] f32, logits; empty: none
  View out;  // [T, H, format.d_value()] f32, overwritten; bf16 too where a tuned kernel of CUDA runs it, dense there
};
void sparse_attention(OpContext& ctx, const SparseAttention& a);

}  // namespace levin::ops
