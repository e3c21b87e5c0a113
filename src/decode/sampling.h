// Logits to a token: the one rule by which every token of an answer is chosen, by the target and by the drafter alike.
//
// Order   penalties (repetition over prompt and answer; presence and frequency over the answer) and logit bias; bans
//         and masks; then l / T; top-k; top-p over the renormalised rest; min-p as l/T >= max(l/T) + ln(min_p).
// Sorts   by (logit descending, id ascending); sums run in that order, in double precision.
// Choice  argmax over the survivors of l/T + g(position, id), ties to the lowest id (decode/noise.h); T < 1e-5: plain
//         argmax.
//
// A token depends on its logits, the request's parameters, what stands before it, and its position: not on time, batch
// or speculation.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace levin {

constexpr double kGreedyTemperature = 1e-5;  // below: plain argmax

struct SamplingParams {
  double temperature = 1;
  int64_t top_k = 0;  // 0: off
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;  // > 0; divides positive logits, multiplies negative ones
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;
  std::vector<int32_t> banned_tokens;
  std::vector<int32_t> allowed_tokens;  // not empty: nothing else may be chosen
  std::vector<int32_t> stop_tokens;     // end the answer; not to be chosen before min_tokens
  int64_t min_tokens = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;

  bool greedy() const { return temperature < kGreedyTemperature; }
};

// Errors (kUsage) name the parameter, its value and what is allowed.
Status check_sampling(const SamplingParams& params, int64_t n_vocab);

// How often each token stands in the prompt and in the answer so far. Drafted tokens are added before a row is judged
// and taken back after.
class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> tokens);
  void push(int32_t token);  // to the answer
  void pop(int32_t token);   // undoes the last push

  int64_t n_answer_tokens() const { return n_answer_tokens_; }
  struct Count {
    int32_t in_prompt = 0;
    int32_t in_answer = 0;
  };
  const std::unordered_map<int32_t, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, Count> counts_;
  int64_t n_answer_tokens_ = 0;
};

// One bit per token, set: may be chosen. Empty: no mask.
using TokenMask = std::span<const uint64_t>;

struct ChoiceContext {
  const TokenHistory* history = nullptr;
  uint32_t position = 0;  // where the token will stand
  TokenMask mask;
};

// logits [V], finite or -inf. At least one token must survive the bans; the caller's checks see to that.
int32_t choose_token(std::span<const float> logits, const SamplingParams& params, const ChoiceContext& context);

// The probability of a row's likeliest token (temperature 1, nothing applied), to 1e-3; 0 if it is less than `least`.
double share_of_likeliest(std::span<const float> logits, double least);

struct TokenLogprob {
  int32_t token = -1;
  double logprob = 0;
};

// Raw log probabilities of a row (temperature 1, nothing applied): of `token`, and the n_top likeliest by (logit
// descending, id ascending).
struct RowLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
RowLogprobs row_logprobs(std::span<const float> logits, int32_t token, int n_top);

}  // namespace levin
