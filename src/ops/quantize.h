// Rounding of activations to the type a matrix product takes, and the Hadamard rotation that precedes it in the
// indexer.
//
//   round_to_bf16   out = bf16(x), nearest even
//   quantize_fp8    per row and 128 columns:  s = 2^ceil(log2(max(amax, 1e-4) / 448)),  out = e4m3(x / s),  scale = s
//   round_to_fp8    per row and `group` columns, s as in quantize_fp8:  out = e4m3(x / s) * s, exact in bf16
//   round_to_fp4    per row and 32 columns:  s = 2^ceil(log2(max(amax, 6 * 2^-126) / 6)),  x = e2m1(x / s) * s, in
//                   place: what FP4 makes of values, which stay f32 (and are exact in bf16)
//   round_to_nvfp4  likewise, per row and 16 columns with a scale in e4m3:  s = e4m3(max(amax, 6 * 2^-9) / 6)
//   hadamard        out[r,:] = x[r,:] H / sqrt(Di), H the natural-order Hadamard matrix of a power-of-two width
//
// Tree      hadamard: butterflies over strides 1, 2, 4, ..., Di/2, each (a + b, a - b), then one multiplication by the
//           f32 1/sqrt(Di)
// Source    model_spec.md 4.4, 6.5, 8.1
#pragma once

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct RoundToBf16 {
  View x;    // [T, K] f32
  View out;  // [T, K] bf16
};
void round_to_bf16(OpContext& ctx, const RoundToBf16& a);

struct QuantizeFp8 {
  View x;      // [T, K] f32; bf16 too where a tuned kernel of CUDA runs it
  View out;    // [T, K] f8_e4m3; or bf16: the rounded values themselves, which bf16 holds exactly
  View scale;  // [T, ceil(K / 128)] f32; empty for bf16
  // scale is [ceil(K / 128), T rounded up to a multiple of 4], for products whose weights ask for it
  // (Backend::reads_scales_by_block).
  bool scale_by_block = false;
};
void quantize_fp8(OpContext& ctx, const QuantizeFp8& a);

struct RoundToFp8 {
  View x;  // [T, K] f32
  int64_t group = 32;
  View out;  // [T, K] f32 or bf16; may be x
};
void round_to_fp8(OpContext& ctx, const RoundToFp8& a);

struct RoundToFp4 {
  View x;  // [T, K] f32, rounded in place
};
void round_to_fp4(OpContext& ctx, const RoundToFp4& a);

struct RoundToNvfp4 {
  View x;  // [T, K] f32, rounded in place
};
void round_to_nvfp4(OpContext& ctx, const RoundToNvfp4& a);

struct Hadamard {
  View x;  // [T, H, Di] f32, rotated in place; Di a power of two
};
void hadamard(OpContext& ctx, const Hadamard& a);

}  // namespace levin::ops
