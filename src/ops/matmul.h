// Products of activations with weights.
//
//   matmul           out[t,n]   = sum_k x[t,k] w[n,k]
//   matmul_per_head  out[t,h,n] = sum_k x[t,h,k] w_h[n,k]
//
// x is f32, bf16 or e4m3 with a scale per row and 128 columns (ops/quantize.h); w is f32, bf16, e4m3 with a scale per
// 128 x 128 block, or mxfp4, in the panel layout of tensor/matrix.h; out is f32. matmul_per_head may round what comes out for the
// op that follows: to bf16, or as quantize_fp8() does with rows [T, H * N].
//
// Order     of the sum over k, in blocks of 128. Inside a block: f32, k ascending, from zero. Blocks ascending:
//           total = fma(block, s, total) from zero, s the product of the scales that apply (sx * sw; 1 without scales).
//             f32 x            one fused multiply-add per k
//             bf16 or e4m3 x   on avx512-bf16: VDPBF16PS over pairs of k (2i, 2i+1), odd last k paired with zeros; e4m3
//                              values are exact in bf16. On amx-bf16: TDPBF16PS over 32 k at a time, whose even k and
//                              whose odd k are summed from zero, ascending, and then added to the block: block += even +
//                              odd (kernels/cpu/tiles_amx.h). Elsewhere, and for f32 weights: one fused multiply-add per
//                              k on the values as f32.
//           An mxfp4 value is its code times its group's scale, which is exact in f32 and bf16: it is multiplied as if w
//           had been stored as bf16.
//           The order does not depend on T, N or the threads, so a row's result is the same in any batch.
// CUDA      matmul of e4m3 with e4m3 weights, N a multiple of 8 and K of 16, and of bf16 with mxfp4 ones that upload() packed;
//           out f32 or bf16. The orders are those of kernels/cuda/gemm/gemm_fp8.h and gemm_mxfp4.h: the same blocks, and inside
//           a block the sums of the matrix unit. Both ops with f32 x and f32, bf16 or e4m3 w, whose rows are multiples of
//           16 bytes, in the order above (kernels/cuda/gemm/gemm_f32.h). The matrices of matmul_per_head follow one another in
//           memory (model/place_weights.h). All other products run on the plain set, whose order is that of the plain CPU
//           kernels
// Misuse    wrong shape or dtype stops the process and names the argument
#pragma once

#include <span>

#include "ops/context.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin::ops {

struct Matmul {
  View x;                       // [T, K] f32, bf16 or f8_e4m3
  View x_scale;                 // [T, ceil(K / 128)] f32, with f8_e4m3 only
  bool scale_by_block = false;  // x_scale as QuantizeFp8 has it then; for weights that ask for it
  const Matrix* w = nullptr;    // [N, K]
  View out;                     // [T, N] f32, overwritten; bf16 too where a tuned kernel of CUDA runs it
};
void matmul(OpContext& ctx, const Matmul& a);
void check_matmul(const OpContext& ctx, const Matmul& a);  // the contract

struct MatmulPerHead {
  View x;                     // [T, H, K] f32 or bf16
  std::span<const Matrix> w;  // H matrices [N, K]
  View out;                   // [T, H, N] f32 or bf16, overwritten; empty where `codes` are given
  View codes = {};            // [T, H * N] f8_e4m3, written; may be empty
  View scale = {};            // of the codes, as quantize_fp8() has it
  bool scale_by_block = false;
};
void matmul_per_head(OpContext& ctx, const MatmulPerHead& a);

}  // namespace levin::ops
