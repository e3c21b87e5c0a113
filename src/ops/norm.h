// Normalisation over the last dimension, and element-wise sums of the residual stream.
//
//   rms_norm    out[t,:] = weight * (x[t,:] * (mean(x[t,:]^2) + eps)^(-1/2));  without a weight, ones
//   layer_norm  out[t,:] = weight * ((x[t,:] - mean) * (variance + eps)^(-1/2)) + bias        biased variance
//
// Tree      sums over a row: 128 partial sums, element i into sum i mod 128 ascending, then folded 64, 32, ..., 1
//           (sum j += sum j + half); squares by fused multiply-adds. The same on every kernel set and on CUDA: as many
//           sums keep the fused multiply-adds of a processor's vectors apart, and the longest chain of a device's threads
//           at D / 128
// Numerics  f32 throughout. mean = sum / D; inverse = 1 / sqrt(mean + eps), both correctly rounded;
//           weight * (x * inverse), and fma(weight, (x - mean) * inverse, bias)
// Source    model_spec.md 3.1; the indexer's key LayerNorm has a bias
#pragma once

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct RmsNorm {
  View x;       // [T, D] f32
  View weight;  // [D]    f32, may be empty
  float eps = 0;
  View out;  // [T, D] f32; may be x
};
void rms_norm(OpContext& ctx, const RmsNorm& a);

struct LayerNorm {
  View x;       // [T, D] f32
  View weight;  // [D]    f32
  View bias;    // [D]    f32
  float eps = 0;
  View out;  // [T, D] f32; may be x
};
void layer_norm(OpContext& ctx, const LayerNorm& a);

// x[t,:] += y[t,:]
struct AddInto {
  View x;  // [T, D] f32, updated
  View y;  // [T, D] f32
};
void add_into(OpContext& ctx, const AddInto& a);

}  // namespace levin::ops
