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
//
// Failure  what a request asks for is proven before it runs (SamplingPlan): within its limits no logit of a sound row
//          leaves the numbers, and some token survives at every position. What only the run can show, a row of logits
//          that are no numbers or a structure that leaves none of the allowed tokens, is the status of that one row.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace levin {

constexpr double kGreedyTemperature = 1e-5;  // below: plain argmax

// Limits of what may be asked, over HTTP and on the command line alike. Far beyond any use, and far from where doubles
// end: a logit of 3e38 stays finite under all of them together, in an answer of 2^31 tokens.
constexpr double kMaxTemperature = 100;
constexpr double kMinRepetitionPenalty = 1e-3, kMaxRepetitionPenalty = 1e3;
constexpr double kMaxPenalty = 100;    // presence and frequency, and as much below 0
constexpr double kMaxLogitBias = 100;  // and as much below 0

struct SamplingParams {
  double temperature = 1;         // 0 to kMaxTemperature
  int64_t top_k = 0;              // 0: off
  double top_p = 1;               // above 0, up to 1
  double min_p = 0;               // 0 to 1
  double repetition_penalty = 1;  // divides positive logits, multiplies negative ones
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // several of one token add up
  std::vector<int32_t> banned_tokens;
  std::vector<int32_t> allowed_tokens;  // not empty: nothing else may be chosen
  std::vector<int32_t> stop_tokens;     // end the answer; not to be chosen before min_tokens
  int64_t min_tokens = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;

  bool greedy() const { return temperature < kGreedyTemperature; }
};

// Parameters that were proven to leave a token at every position of an answer.
class SamplingPlan {
 public:
  // Errors (kUsage) name the parameter, its value and what is allowed, or the parameters that exclude each other.
  static Result<SamplingPlan> make(SamplingParams params, int64_t n_vocab);

  const SamplingParams& params() const { return params_; }
  int64_t n_vocab() const { return n_vocab_; }

 private:
  SamplingPlan(SamplingParams params, int64_t n_vocab) : params_(std::move(params)), n_vocab_(n_vocab) {}

  SamplingParams params_;  // lists of tokens sorted, each token once
  int64_t n_vocab_;
};

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

// Why a row gave no token.
enum class RowFault : uint8_t {
  kNone,
  kNotNumbers,   // a logit is NaN or +infinity, or all are -infinity
  kNothingLeft,  // the mask leaves none of the tokens that the plan allows here
};

struct Choice {
  int32_t token = -1;  // -1 with a fault
  RowFault fault = RowFault::kNone;

  bool ok() const { return fault == RowFault::kNone; }
};

// logits [V] of the plan's vocabulary; -infinity is a logit.
Choice choose_token(std::span<const float> logits, const SamplingPlan& plan, const ChoiceContext& context);

// Whether every logit is a number or -infinity, and one is a number.
bool is_sound(std::span<const float> logits);

// The probability of a row's likeliest token (temperature 1, nothing applied), to 1e-3; 0 if it is less than `least`, or
// if the row is not sound.
double share_of_likeliest(std::span<const float> logits, double least);

struct TokenLogprob {
  int32_t token = -1;
  double logprob = 0;
};

// Raw log probabilities of a sound row (temperature 1, nothing applied): of `token`, and the n_top likeliest by (logit
// descending, id ascending).
struct RowLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
RowLogprobs row_logprobs(std::span<const float> logits, int32_t token, int n_top);

}  // namespace levin
