// A token's choice as records of words, which the host, the ops (ops/logits.h) and their kernels share.
#pragma once

#include <cstdint>

namespace levin {

// A temperature below it chooses the largest logit, without noise.
constexpr double kGreedyTemperature = 1e-5;
// Of a chosen token: the others have some, be it less than f32 shows.
constexpr float kMostProbability = 0x1.fffffep-1f;

// What decides a row's choice besides its logits. Eight words.
struct ChoiceRule {
  uint64_t seed = 0;
  double temperature = 0;
  uint32_t position = 0;  // of the token to be chosen
  uint32_t choice = 0;
  uint64_t unused = 0;
};
constexpr int64_t kChoiceRuleWords = sizeof(ChoiceRule) / 4;

// What was chosen.
struct ChosenToken {
  int32_t token = 0;      // 0 of a row that is not sound
  int32_t sound = 0;      // whether all logits are finite or -infinity, and one is finite
  float probability = 0;  // of the most likely token at temperature 1, within 1e-3, below 1; not sound: 0
  int32_t unused = 0;
};
constexpr int64_t kChosenTokenWords = sizeof(ChosenToken) / 4;

}  // namespace levin
