// Copies and scalings of rows between the ops of a model.
//
//   copy_rows   out[i,:] = x[rows[i],:]; without rows x[i / repeat,:], so that each row comes `repeat` times
//   scale_rows  out[t,:] = x[t,:] * factor * scale[t,:], in that order; without a scale x * factor
//
// With `out` a slice of wider rows, two calls of copy_rows put rows side by side. A factor of -1 negates exactly.
#pragma once

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct CopyRows {
  View x;          // [T, D] f32 or i32
  View rows = {};  // [N] i32, below T; empty: i / repeat
  int64_t repeat = 1;
  View out;  // [N, D] same dtype, overwritten
};
void copy_rows(OpContext& ctx, const CopyRows& a);

struct ScaleRows {
  View x;  // [T, D] f32
  float factor = 1;
  View scale = {};  // [T, D] f32; may be empty
  View out;         // [T, D] f32; may be x
};
void scale_rows(OpContext& ctx, const ScaleRows& a);

}  // namespace levin::ops
