// Embedding rows in, token choices out.
#pragma once

#include <cstdint>

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

// What decides a row's choice besides its logits. Eight words of a row of ChooseTokens::rules.
struct ChoiceRule {
  uint64_t seed = 0;
  double temperature = 0;  // below 1e-5: the largest logit
  uint32_t position = 0;   // of the token to be chosen
  uint32_t choice = 0;
  uint64_t unused = 0;
};
constexpr double kGreedyTemperature = 1e-5;
constexpr float kMostProbability = 0x1.fffffep-1f;  // the others have some, be it less than f32 shows
constexpr int64_t kChoiceRuleWords = sizeof(ChoiceRule) / 4;

// What was chosen: a row of ChooseTokens::out.
struct ChosenToken {
  int32_t token = 0;      // 0 of a row that is not sound
  int32_t sound = 0;      // whether all logits are finite or -infinity, and one is finite
  float probability = 0;  // of the most likely token at temperature 1, within 1e-3, below 1; not sound: 0
  int32_t unused = 0;
};
constexpr int64_t kChosenTokenWords = sizeof(ChosenToken) / 4;

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
