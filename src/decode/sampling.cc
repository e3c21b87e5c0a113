#include "decode/sampling.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/math.h"
#include "decode/candidates.h"

namespace levin {
namespace {

Error out_of_range(const char* name, double value, const char* allowed) {
  return {ErrorKind::kUsage, fmt::format("{} is {}, expected {}", name, value, allowed)};
}

bool allowed_by(TokenMask mask, int32_t token) {
  return mask.empty() || ((mask[static_cast<size_t>(token) / 64] >> (token % 64)) & 1) != 0;
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

void apply_penalties(std::vector<double>& logits, const SamplingParams& params, const TokenHistory& history) {
  for (const auto& [token, count] : history.counts()) {
    if (count.in_prompt == 0 && count.in_answer == 0) continue;
    double& logit = logits[token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count.in_answer > 0) logit -= params.presence_penalty + params.frequency_penalty * count.in_answer;
  }
}

void apply_bans(std::vector<double>& logits, const SamplingParams& params, const ChoiceContext& context) {
  if (!params.allowed_tokens.empty()) {
    std::vector<double> kept(logits.size(), kNever);
    for (const int32_t token : params.allowed_tokens) kept[token] = logits[token];
    logits.swap(kept);
  }
  for (const int32_t token : params.banned_tokens) logits[token] = kNever;
  if (context.history != nullptr && context.history->n_answer_tokens() < params.min_tokens) {
    for (const int32_t token : params.stop_tokens) logits[token] = kNever;
  }
  if (context.mask.empty()) return;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!allowed_by(context.mask, static_cast<int32_t>(v))) logits[v] = kNever;
  }
}

std::vector<double> processed_logits(std::span<const float> logits, const SamplingParams& params,
                                     const ChoiceContext& context) {
  std::vector<double> out(logits.begin(), logits.end());
  if (context.history != nullptr && has_penalties(params)) apply_penalties(out, params, *context.history);
  for (const auto& [token, bias] : params.logit_bias) out[token] += bias;
  apply_bans(out, params, context);
  return out;
}

bool takes_logits_as_they_are(const SamplingParams& params, const ChoiceContext& context) {
  const bool too_short = context.history != nullptr && context.history->n_answer_tokens() < params.min_tokens;
  return !has_penalties(params) && params.logit_bias.empty() && params.banned_tokens.empty() &&
         params.allowed_tokens.empty() && context.mask.empty() && !too_short;
}

template <class T>
int32_t choose_from(const LogitRow<T>& row, const SamplingParams& params, uint32_t position) {
  if (params.greedy()) return row.argmax().token;
  const NoisePlace place{.seed = params.seed, .position = position, .choice = params.choice};
  if (params.top_k == 0 && params.top_p >= 1 && params.min_p <= 0) {
    return row.gumbel_max(params.temperature, place).token;
  }
  return gumbel_max_of(row.survivors(params.temperature, params.top_k, params.top_p, params.min_p), place).token;
}

// ---- what a plan proves -------------------------------------------------------------------------------------------

Status check_number(const char* name, double value, double min, double max) {
  if (value >= min && value <= max) return {};  // false for NaN
  return Error{ErrorKind::kUsage, fmt::format("{} is {}, expected a number from {} to {}", name, value, min, max)};
}

Status check_ranges(const SamplingParams& params) {
  LEVIN_TRY(check_number("temperature", params.temperature, 0, kMaxTemperature));
  if (params.top_k < 0)
    return out_of_range("top_k", static_cast<double>(params.top_k), "a whole number from 0 (0 = off)");
  if (!(params.top_p > 0 && params.top_p <= 1))
    return out_of_range("top_p", params.top_p, "a number above 0 and up to 1");
  LEVIN_TRY(check_number("min_p", params.min_p, 0, 1));
  LEVIN_TRY(
      check_number("repetition_penalty", params.repetition_penalty, kMinRepetitionPenalty, kMaxRepetitionPenalty));
  LEVIN_TRY(check_number("presence_penalty", params.presence_penalty, -kMaxPenalty, kMaxPenalty));
  LEVIN_TRY(check_number("frequency_penalty", params.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  for (const auto& [token, bias] : params.logit_bias) {
    LEVIN_TRY(check_number("a logit_bias", bias, -kMaxLogitBias, kMaxLogitBias));
  }
  return {};
}

Status check_token(const char* name, int32_t token, int64_t n_vocab) {
  if (token >= 0 && token < n_vocab) return {};
  return Error{ErrorKind::kUsage,
               fmt::format("{} names token {}, outside the vocabulary of {} tokens", name, token, n_vocab)};
}

Status check_tokens(const SamplingParams& params, int64_t n_vocab) {
  for (const auto& [token, bias] : params.logit_bias) LEVIN_TRY(check_token("logit_bias", token, n_vocab));
  for (const int32_t token : params.banned_tokens) {
    LEVIN_TRY(check_token("the list of banned tokens", token, n_vocab));
  }
  for (const int32_t token : params.allowed_tokens) LEVIN_TRY(check_token("allowed_token_ids", token, n_vocab));
  for (const int32_t token : params.stop_tokens) LEVIN_TRY(check_token("the list of stop tokens", token, n_vocab));
  return {};
}

void sort_tokens(std::vector<int32_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

bool has(const std::vector<int32_t>& sorted, int32_t token) {
  return std::binary_search(sorted.begin(), sorted.end(), token);
}

// Tokens that are allowed and not banned, and how many of them do not end the answer.
struct Survivors {
  int64_t n = 0;
  int64_t n_not_stopping = 0;
};
Survivors survivors_of(const SamplingParams& params, int64_t n_vocab) {
  if (params.allowed_tokens.empty()) {
    const int64_t n_banned = std::ssize(params.banned_tokens);
    const int64_t n_stopping = std::count_if(params.stop_tokens.begin(), params.stop_tokens.end(),
                                             [&](int32_t token) { return !has(params.banned_tokens, token); });
    return {.n = n_vocab - n_banned, .n_not_stopping = n_vocab - n_banned - n_stopping};
  }
  Survivors out;
  for (const int32_t token : params.allowed_tokens) {
    if (has(params.banned_tokens, token)) continue;
    ++out.n;
    out.n_not_stopping += has(params.stop_tokens, token) ? 0 : 1;
  }
  return out;
}

// Top-k, top-p and min-p keep the most likely token, so only lists can leave none.
Status check_survivors(const SamplingParams& params, int64_t n_vocab) {
  const Survivors survivors = survivors_of(params, n_vocab);
  if (survivors.n == 0) {
    return Error{ErrorKind::kUsage,
                 fmt::format("no token may be chosen: {} of {} are banned; ban fewer or allow more",
                             params.allowed_tokens.empty() ? "all tokens" : "all tokens of allowed_token_ids",
                             params.allowed_tokens.empty() ? n_vocab : std::ssize(params.allowed_tokens))};
  }
  if (params.min_tokens > 0 && survivors.n_not_stopping == 0) {
    return Error{ErrorKind::kUsage,
                 fmt::format("min_tokens is {}, but every token that may be chosen ends the answer: {} are allowed and "
                             "all of them are stop tokens; leave out min_tokens, or allow others",
                             params.min_tokens, survivors.n)};
  }
  return {};
}

}  // namespace

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) ++counts_[token].in_prompt;
}

void TokenHistory::push(int32_t token) {
  ++counts_[token].in_answer;
  ++n_answer_tokens_;
}

void TokenHistory::pop(int32_t token) {
  --counts_[token].in_answer;
  --n_answer_tokens_;
}

Result<SamplingPlan> SamplingPlan::make(SamplingParams params, int64_t n_vocab) {
  LEVIN_TRY(check_ranges(params));
  LEVIN_TRY(check_tokens(params, n_vocab));
  for (std::vector<int32_t>* tokens : {&params.banned_tokens, &params.allowed_tokens, &params.stop_tokens}) {
    sort_tokens(*tokens);
  }
  LEVIN_TRY(check_survivors(params, n_vocab));
  return SamplingPlan(std::move(params), n_vocab);
}

Choice choose_token(std::span<const float> logits, const SamplingPlan& plan, const ChoiceContext& context) {
  const SamplingParams& params = plan.params();
  if (takes_logits_as_they_are(params, context)) {
    const LogitRow row(logits);
    if (!row.has_numbers() || !row.has_candidates()) return {.fault = RowFault::kNotNumbers};
    return {.token = choose_from(row, params, context.position)};
  }
  if (!is_sound(logits)) return {.fault = RowFault::kNotNumbers};  // a ban would hide it
  const std::vector<double> processed = processed_logits(logits, params, context);
  const LogitRow row{std::span<const double>(processed)};
  if (!row.has_candidates()) return {.fault = RowFault::kNothingLeft};
  return {.token = choose_from(row, params, context.position)};
}

bool SamplingPlan::by_logits_alone(int64_t n_answer_tokens) const {
  const SamplingParams& p = params_;
  const bool cuts = !p.greedy() && (p.top_k > 0 || p.top_p < 1 || p.min_p > 0);
  const bool penalizes = p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  const bool bans = !p.logit_bias.empty() || !p.banned_tokens.empty() || !p.allowed_tokens.empty() ||
                    (!p.stop_tokens.empty() && n_answer_tokens < p.min_tokens);
  return !cuts && !penalizes && !bans;
}

bool is_sound(std::span<const float> logits) {
  const LogitRow row(logits);
  return row.has_numbers() && row.has_candidates();
}

double max_prob(std::span<const float> logits, double least) {
  const LogitRow row(logits);
  return row.has_numbers() && row.has_candidates() ? row.max_prob(least) : 0;
}

RowLogprobs row_logprobs(std::span<const float> logits, int32_t token, int n_top) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::array<double, 16> sums{};  // as the kernels sum a row: 16 interleaved sums, folded 8, 4, 2, 1
  for (size_t v = 0; v < logits.size(); ++v) sums[v % 16] += exp_exact(logits[v] - largest);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  const double log_total = largest + log_exact(sums[0]);
  RowLogprobs out{.chosen = {token, logits[token] - log_total}, .top = {}};
  if (n_top == 0) return out;
  std::vector<Candidate> ranked(logits.size());
  for (size_t v = 0; v < logits.size(); ++v) ranked[v] = {logits[v], static_cast<int32_t>(v)};
  const size_t n_kept = std::min(ranked.size(), static_cast<size_t>(n_top));
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<int64_t>(n_kept), ranked.end(), ranks_before);
  for (size_t i = 0; i < n_kept; ++i) out.top.push_back({ranked[i].token, ranked[i].logit - log_total});
  return out;
}

}  // namespace levin
