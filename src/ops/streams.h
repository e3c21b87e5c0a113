// The residual streams of DeepSeek-V4 (manifold-constrained hyper-connections): a token has M rows of width D instead
// of one. A sublayer reads one row x from them, and its result y is written back while the streams are mixed.
//
//   stream_weights  p = projected[t,:], o_i = p_i * scale + base_i:
//                     read_i  = sigmoid(o_i) + eps              i < M, scale[0]
//                     write_i = 2 sigmoid(o_{M+i})              i < M, scale[1]
//                     C[j,k]  = softmax over k of o_{2M+Mj+k}, + eps     scale[2]
//                   then C is balanced: columns divided by their sum + eps, and n_sinkhorn_steps - 1 times rows, then
//                   columns. Without `write`, read weights alone: what the model's head takes.
//   read_streams    x[t,:] = sum_i read[t,i] R[t,i,:]
//   mean_streams    x[t,:] = sum_i 1/M R[t,i,:]
//   write_streams   R[t,k,:] <- write[t,k] y[t,:] + sum_j C[t,j,k] R[t,j,:]      the sum is over the first index of C
//
// `projected` is fn . v with v the M rows as one, normed without a weight (rms_norm, matmul).
//
// Tree      o = fma(p, scale, base). Sums over streams ascending: from zero by fused multiply-adds in read_streams and
//           write_streams, where write * y is added last by one more; by plain additions in the softmax and the sums of
//           rows and columns. exp and sigmoid as in kernels/cpu/simd_math.h
// Numerics  f32 throughout
// Source    model_spec.md 6.2, 10.1
#pragma once

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct StreamWeights {
  View projected;            // [T, 2M + M^2] f32, or [T, M] for read weights alone
  View base;                 // [2M + M^2] f32, or [M]
  View scale;                // [3] f32, or [1]
  int n_sinkhorn_steps = 0;  // of `mix`
  float eps = 0;
  View read;   // [T, M] f32, written
  View write;  // [T, M] f32, written; empty: read weights alone
  View mix;    // [T, M, M] f32, written with `write`
};
void stream_weights(OpContext& ctx, const StreamWeights& a);

struct ReadStreams {
  View streams;  // [T, M, D] f32
  View read;     // [T, M] f32
  View out;      // [T, D] f32, overwritten
};
void read_streams(OpContext& ctx, const ReadStreams& a);

// The unweighted mean, as read_streams with 1/M for every weight.
struct MeanStreams {
  View streams;  // [T, M, D] f32
  View out;      // [T, D] f32, overwritten
};
void mean_streams(OpContext& ctx, const MeanStreams& a);

struct WriteStreams {
  View streams;  // [T, M, D] f32, updated
  View y;        // [T, D] f32
  View write;    // [T, M] f32
  View mix;      // [T, M, M] f32
};
void write_streams(OpContext& ctx, const WriteStreams& a);

}  // namespace levin::ops
