// Embedding rows in, token choices out.
#pragma once

#include <cstdint>

#include "base/token_choice.h"
#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

// out[t,:] = table[ids[t],:]. ids were checked against the vocabulary when they came in.
struct Embed {
  View ids;    // [T] i32
  View table;  // [V, D] f32 or bf16
  View out;    // [T, D] f32
};
void embed(OpContext& ctx, const Embed& a);

// out[t] = the index of the largest x[t,:], the lowest of equals, -0 counting as +0. NaN is
// never the largest; a row of nothing else gives 0.
struct Argmax {
  View x;    // [T, V] f32
  View out;  // [T] i32
};
void argmax(OpContext& ctx, const Argmax& a);

// The choice of decode/sampling.h for rows that it depends on logits and place alone: without penalties, bias, masks and
// cuts. out[t]: argmax_v x[t,v] / temperature + noise(seed, position, choice, v), ties to the lowest id.
struct ChooseTokens {
  View x;      // [T, V] f32
  View rules;  // [T, kChoiceRuleWords] i32: of ChoiceRule
  View out;    // [T, kChosenTokenWords] i32: of ChosenToken
};
void choose_tokens(OpContext& ctx, const ChooseTokens& a);

// Marks the rows of x that hold NaN or an infinity (ops/context.h, row status).
struct MarkUnusable {
  View x;       // [T, D] f32
  View faults;  // [T] i32
};
void mark_unusable(OpContext& ctx, const MarkUnusable& a);

}  // namespace levin::ops
