// Rotary position embedding.
//
//   pair j of a row at position p:   (a, b) -> (a cos - b sin, b cos + a sin),   angle p * f_j
//   interleaved  pair j is (u[2j], u[2j + 1])
//   half-split   pair j is (u[j], u[j + Dr/2])
//
// The pairing is part of the model (V3.2: interleaved in attention, half-split in the indexer); confusing the two
// leaves every value finite and plausible, which is why it is an enum on the call. Results stay in place, in the order
// of the input.
//
// Numerics  a' = fma(a, cos, -(b * sin)),  b' = fma(b, cos, a * sin), f32; the table is right to half a unit
// Source    model_spec.md 3.2; YaRN 3.3
#pragma once

#include <vector>

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

enum class RopePairing : uint8_t { kInterleaved, kHalfSplit };

struct Rope {
  View x;    // [T, H, Dr] f32, rotated in place; usually a slice of wider rows
  View cos;  // [T, Dr/2]  f32
  View sin;  // [T, Dr/2]  f32
  RopePairing pairing = RopePairing::kInterleaved;
};
void rope(OpContext& ctx, const Rope& a);

// cos and sin of positions[t] * frequencies[j]: the product rounded to f32 as the reference does, then cos and sin of
// that f32 value in double precision, rounded once.
struct RopeTable {
  View positions;                                   // [T]       i32
  const std::vector<float>* frequencies = nullptr;  // Dr/2
  View cos;                                         // [T, Dr/2] f32, written
  View sin;                                         // [T, Dr/2] f32, written
};
void rope_table(OpContext& ctx, const RopeTable& a);

}  // namespace levin::ops
