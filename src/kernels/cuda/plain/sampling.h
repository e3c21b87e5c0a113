// From logits to tokens: argmax, and the choice with noise. Contracts: ops/logits.h, decode/sampling.h,
// decode/noise.h; a token depends on its row alone, not on the batch.
//
// Faults    a row with a logit that is NaN chooses token 0 and has kNanLogit set
#pragma once

#include <cstdint>

#include "base/token_choice.h"
#include "kernels/cuda/plain/faults.h"
#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

struct Logits {
  const float* x = nullptr;  // [T, V], rows ld apart
  int64_t ld = 0;
  int64_t n_rows = 0;
  int64_t n_vocab = 0;
};

struct Argmax {
  Logits logits;
  int32_t* out = nullptr;    // [T]: the largest, ties to the lowest id
  int32_t* fault = nullptr;  // [T], may be null
};
void argmax(const Argmax& a, StreamHandle stream);

// Blocks that share a row of choose_tokens, each with the next ids. Always as many, so that a row's probability has the same bits in
// any batch.
constexpr int kChoiceParts = 8;

// What a block found among its ids.
struct ChoicePart {
  double value;   // of its choice, with noise
  int64_t id;     // -1: it has none
  float maximum;  // of the logits, -infinity without any
  float sum;      // of exp(logit - maximum), NaN if a logit is
};

// The token argmax_v (x[t, v] / temperature + g(v)), ties to the lowest id; x = -infinity is never chosen.
struct ChooseTokens {
  Logits logits;
  const ChoiceRule* rules = nullptr;  // [T]
  ChosenToken* out = nullptr;         // [T]
  ChoicePart* parts = nullptr;        // [T, kChoiceParts], scratch
};
void choose_tokens(const ChooseTokens& a, StreamHandle stream);

}  // namespace levin::cuda::plain
