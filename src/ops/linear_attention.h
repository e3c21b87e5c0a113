// Linear attention with a recurrent state, the gated delta rule (Kimi Delta Attention), and what goes with it. Per head
// there is one matrix S [Dl, Dl] of the tokens so far, keys by values, zero before the first.
//
//   short_conv    out[t,c] = silu(sum_i weight[c,i] x[t - n_taps + 1 + i, c]), i < n_taps; rows before the sequence's
//                 first token are zero
//   delta_rule    per head  q^ = q / sqrt(sum q^2 + 1e-6) * Dl^-1/2,  k^ = k / sqrt(sum k^2 + 1e-6)
//                           a  = exp(lower * sigmoid(exp(log_rate) * (decay + bias)))       one for each key column
//                           b  = sigmoid(beta)
//                           S <- diag(a) S;  S <- S + k^ (b (v - S^T k^))^T;  out = S^T q^
//   sigmoid_mul   out = x * sigmoid(gate)
//
// The state is kept in rings (tensor/formats.h): S after every kStateTokens tokens, and what the updates of the tokens
// since are made of. A step continues from the last state at or before its first position by making those updates again, so
// that a token's result is the same bits however the tokens before it were cut into steps, and to undo tokens is to run
// others in their place. Both ops keep what later steps need of their own inputs; every position from the step's first on
// is written anew.
//
// Tree      sums from zero, ascending in i, in the column or in the key's column, by multiplications and additions that
//           round on their own: no fused ones. b (v - S^T k^) as written. exp, sigmoid and silu as in
//           kernels/cpu/simd_math.h
// Numerics  f32 throughout, on every kernel set the same bits; whatever the mode, the state is never rounded
// Misuse    wrong shape or dtype stops the process and names the argument
// Source    model_spec.md 10.2
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

// Where the rows of a step's sequences stand.
struct RecurrentTokens {
  View first_row;       // [B] i32, of each sequence in this step; its rows are consecutive
  View end_row;         // [B] i32, the row after its last one
  View first_position;  // [B] i32, of that row
  RecurrentRings rings;
};

struct ShortConv {
  View x;       // [T, C] f32
  View weight;  // [C, n_taps] f32
  RecurrentTokens tokens;
  int64_t first_channel = 0;  // of the rings' rows, where those of x begin
  View out;                   // [T, C] f32, overwritten
};
void short_conv(OpContext& ctx, const ShortConv& a);

struct DeltaRule {
  View q, k, v;     // [T, Hl * Dl] f32
  View decay;       // [T, Hl * Dl] f32
  View decay_bias;  // [Hl * Dl] f32
  View log_rate;    // [Hl] f32
  float lower = 0;  // below zero: the smallest logarithm of a
  View beta;        // [T, Hl] f32
  RecurrentTokens tokens;
  View out;  // [T, Hl * Dl] f32, overwritten
};
void delta_rule(OpContext& ctx, const DeltaRule& a);

struct SigmoidMul {
  View x;     // [T, D] f32
  View gate;  // [T, D] f32
  View out;   // [T, D] f32, may be x or gate
};
void sigmoid_mul(OpContext& ctx, const SigmoidMul& a);

}  // namespace levin::ops
