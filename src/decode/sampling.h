// Sampling: the rule by which every token is chosen from its logits, for the target and for drafts alike.
//
// Order   penalties (repetition over prompt and answer; presence and frequency over the answer) and logit bias; bans
//         and masks; then l / T; top-k; top-p over the renormalised rest; min-p as l/T >= max(l/T) + ln(min_p).
// Sorts   by (logit descending, id ascending); sums run in that order, in double precision.
// Choice  argmax over the survivors of l/T + g(position, id), ties to the lowest id (decode/noise.h); T < 1e-5: plain
//         argmax.
//
// A token depends on its logits, the request's parameters, the preceding tokens and its position, but not on time,
// batch or speculation.
//
// Failure  SamplingPlan proves before a request runs that logits stay finite within the limits below and that a token
//          is left at every position. What can fail only at run time (logits that are NaN or infinite, a structure that
//          leaves none of the allowed tokens) is the status of that one row (RowFault).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/token_choice.h"

namespace levin {

// Limits of parameters, over HTTP and on the command line. They are far beyond any use and far from overflow in double:
// with all of them together a logit of 3e38 stays finite, in an answer of 2^31 tokens.
constexpr double kMaxTemperature = 100;
constexpr double kMinRepetitionPenalty = 1e-3, kMaxRepetitionPenalty = 1e3;
constexpr double kMaxPenalty = 100;    // presence and frequency: -100 to 100
constexpr double kMaxLogitBias = 100;  // -100 to 100

struct SamplingParams {
  double temperature = 1;         // 0 to kMaxTemperature
  int64_t top_k = 0;              // 0: off
  double top_p = 1;               // above 0, up to 1
  double min_p = 0;               // 0 to 1
  double repetition_penalty = 1;  // divides positive logits, multiplies negative ones
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // (token, bias); several for one token add up
  std::vector<int32_t> banned_tokens;
  std::vector<int32_t> allowed_tokens;  // if not empty, the only tokens that may be chosen
  std::vector<int32_t> stop_tokens;     // end the answer; may not be chosen before min_tokens
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
  // Whether the token after n answer tokens depends on its logits and its place alone, where there is no mask.
  bool by_logits_alone(int64_t n_answer_tokens) const;
  int64_t n_vocab() const { return n_vocab_; }

 private:
  SamplingPlan(SamplingParams params, int64_t n_vocab) : params_(std::move(params)), n_vocab_(n_vocab) {}

  SamplingParams params_;  // lists of tokens sorted, each token once
  int64_t n_vocab_;
};

// How often each token occurs in the prompt and in the answer so far. Drafts are pushed while a row after them is
// sampled, and popped afterwards.
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

// One bit per token, token i in bit i % 64 of word i / 64; set: the token may be chosen. Empty: no mask.
using TokenMask = std::span<const uint64_t>;

struct ChoiceContext {
  const TokenHistory* history = nullptr;
  uint32_t position = 0;  // of the token to choose
  TokenMask mask;
};

// Why a row gives no token.
enum class RowFault : uint8_t {
  kNone,
  kNotNumbers,    // a logit is NaN or +infinity, or all are -infinity
  kNothingLeft,   // the mask excludes all tokens that the plan allows at this position
  kAgainstMask,   // a structure takes none that its mask allowed: an error of ours
  kTooManySteps,  // a structure can be read in too many ways to find its mask
};

struct Choice {
  int32_t token = -1;  // -1 with a fault
  RowFault fault = RowFault::kNone;

  bool ok() const { return fault == RowFault::kNone; }
};

// logits [V], V = plan.n_vocab(); -infinity is allowed.
Choice choose_token(std::span<const float> logits, const SamplingPlan& plan, const ChoiceContext& context);

// Whether every logit is finite or -infinity, and at least one is finite.
bool is_sound(std::span<const float> logits);

// The probability of a row's most likely token (temperature 1, without penalties or masks), to 1e-3; 0 if it is less
// than `least`, or if the row is not sound.
double max_prob(std::span<const float> logits, double least);

struct TokenLogprob {
  int32_t token = -1;
  double logprob = 0;
};

// Raw log probabilities of a sound row (temperature 1, without penalties or masks): of `token`, and of the n_top most
// likely tokens by (logit descending, id ascending).
struct RowLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
RowLogprobs row_logprobs(std::span<const float> logits, int32_t token, int n_top);

}  // namespace levin
