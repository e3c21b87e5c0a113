// The entries of DeepSeek-V4's compressors: some consecutive tokens pooled into one row, channel by channel.
//
//   pool_windows  out[n,c] = sum_i alpha_i v_i[c],   alpha = softmax over the slots i of (g_i[c] + bias_i[c])
//                 for entry w = slot[n] of a sequence. Its tokens are first_token + w * ratio + i, i < ratio; v and g
//                 are their value and gate rows, bias_i is row i of the position bias.
//                 plain      C = d: one slot a token
//                 overlap    C = 2 d: first slots for the `ratio` tokens before, with channels 0 .. d-1 of v, g and
//                            bias, then slots for the entry's own, with channels d .. 2d-1; entry 0 has no tokens
//                            before it
//   keep_state    keeps values and gates of the step's tokens in the sequences' rings, for entries of later steps, and of
//                 those that end a block after the rings too
//
// A token at or after first_position[seq] is a row of this step, an earlier one stands in the ring; both hold the same
// f32 values, so an entry is the same bits however its tokens came in. Nothing accumulates: to undo tokens is to run
// other ones at their positions. Pool first, keep then.
//
// Tree      per channel: logit = g + bias; the largest; then slots ascending, weight = exp(logit - largest),
//           sum += weight, total = fma(weight, v, total), both from zero; out = total / sum. exp as in
//           kernels/cpu/simd_math.h
// Numerics  f32 throughout
// Misuse    wrong shape or dtype stops the process and names the argument
// Source    model_spec.md 6.4, 7.3, 10.4
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

// Where the tokens of a step stand.
struct WindowTokens {
  View values;          // [T, C] f32
  View gates;           // [T, C] f32
  View seq;             // [T] i32, of each row
  View first_row;       // [B] i32, of each sequence in this step; its rows are consecutive
  View end_row;         // [B] i32, the row after its last one
  View first_position;  // [B] i32, of that row
  StateRings state;
};

struct PoolWindows {
  WindowTokens tokens;
  View bias;  // [ratio, C] f32
  bool overlap = false;
  int32_t first_token = 0;
  View seq;   // [N] i32
  View slot;  // [N] i32, entries that are complete with this step's tokens
  View out;   // [N, d] f32, overwritten
};
void pool_windows(OpContext& ctx, const PoolWindows& a);

void keep_state(OpContext& ctx, const WindowTokens& a);

}  // namespace levin::ops
