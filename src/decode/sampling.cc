#include "decode/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/math.h"
#include "decode/noise.h"

namespace levin {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Candidate {
  double logit;  // after penalties; divided by T where sampling is meant
  int32_t token;
};

// (logit descending, id ascending); -0 and +0 compare equal as they are.
bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

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

// The first of the largest. Vocabularies are long and this runs for every token of every request, so the largest is
// sought lane by lane in blocks, which compilers turn into vector instructions, and its place in one block alone.
template <class T>
Candidate best_of(std::span<const T> logits) {
  constexpr size_t kLanes = 16, kBlock = 16 * kLanes;
  T largest = -std::numeric_limits<T>::infinity();
  size_t begin_of_largest = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const T> block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    std::array<T, kLanes> most;
    most.fill(-std::numeric_limits<T>::infinity());
    int n_nan = 0;
    size_t v = 0;
    for (; v + kLanes <= block.size(); v += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) most[j] = block[v + j] > most[j] ? block[v + j] : most[j];
      for (size_t j = 0; j < kLanes; ++j) n_nan += block[v + j] != block[v + j] ? 1 : 0;
    }
    for (; v < block.size(); ++v) {
      most[0] = block[v] > most[0] ? block[v] : most[0];
      n_nan += block[v] != block[v] ? 1 : 0;
    }
    LEVIN_CHECK(n_nan == 0, "{} of the logits of tokens {} to {} are NaN", n_nan, begin, begin + block.size() - 1);
    const T here = *std::max_element(most.begin(), most.end());
    if (here <= largest) continue;
    largest = here;
    begin_of_largest = begin;
  }
  LEVIN_CHECK(largest > -std::numeric_limits<T>::infinity(), "no token may be chosen");
  const auto first = std::find(logits.begin() + static_cast<int64_t>(begin_of_largest), logits.end(), largest);
  return {largest, static_cast<int32_t>(first - logits.begin())};
}

// The tokens that top-k, top-p and min-p leave, with l/T; ranked if top_k or top_p asked for it.
class Survivors {
 public:
  Survivors(std::span<const double> logits, const SamplingParams& params) {
    candidates_.reserve(logits.size());
    for (size_t v = 0; v < logits.size(); ++v) {
      if (logits[v] != kNever) candidates_.push_back({logits[v] / params.temperature, static_cast<int32_t>(v)});
    }
    largest_ = std::max_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
                 return a.logit < b.logit;
               })->logit;
    if (params.top_k > 0) keep_top_k(params.top_k);
    if (params.top_p < 1) keep_top_p(params.top_p);
    if (params.min_p > 0) keep_min_p(params.min_p);
  }

  std::span<const Candidate> candidates() const { return candidates_; }
  double largest() const { return largest_; }

 private:
  void keep_top_k(int64_t k) {
    const size_t kept = std::min(candidates_.size(), static_cast<size_t>(k));
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept) - 1, candidates_.end(),
                     ranks_before);
    candidates_.resize(kept);
  }

  // The shortest ranked prefix that holds at least top_p of the mass. Terms that no longer change the sum end it: later
  // ones are smaller.
  void keep_top_p(double top_p) {
    std::sort(candidates_.begin(), candidates_.end(), ranks_before);
    double total = 0;
    for (const Candidate& c : candidates_) {
      const double sum = total + exp_exact(c.logit - largest_);
      if (sum == total) break;
      total = sum;
    }
    double held = 0;
    size_t kept = 0;
    while (kept < candidates_.size() && held < top_p * total) held += exp_exact(candidates_[kept++].logit - largest_);
    candidates_.resize(std::max<size_t>(kept, 1));
  }

  void keep_min_p(double min_p) {
    const double threshold = largest_ + log_exact(min_p);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < threshold; });
  }

  std::vector<Candidate> candidates_;
  double largest_ = kNever;
};

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

Status check_sampling(const SamplingParams& params, int64_t n_vocab) {
  const auto finite = [](double v) { return std::isfinite(v); };
  if (!finite(params.temperature) || params.temperature < 0)
    return out_of_range("temperature", params.temperature, "a number from 0");
  if (params.top_k < 0)
    return out_of_range("top_k", static_cast<double>(params.top_k), "a whole number from 0 (0 = off)");
  if (!(params.top_p > 0 && params.top_p <= 1))
    return out_of_range("top_p", params.top_p, "a number above 0 and up to 1");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return out_of_range("min_p", params.min_p, "a number from 0 to 1");
  if (!finite(params.repetition_penalty) || params.repetition_penalty <= 0) {
    return out_of_range("repetition_penalty", params.repetition_penalty, "a number above 0 (1 = off)");
  }
  if (!finite(params.presence_penalty))
    return out_of_range("presence_penalty", params.presence_penalty, "a finite number");
  if (!finite(params.frequency_penalty))
    return out_of_range("frequency_penalty", params.frequency_penalty, "a finite number");
  const auto check_token = [&](const char* name, int32_t token) -> Status {
    if (token >= 0 && token < n_vocab) return {};
    return Error{ErrorKind::kUsage,
                 fmt::format("{} names token {}, outside the vocabulary of {} tokens", name, token, n_vocab)};
  };
  for (const auto& [token, bias] : params.logit_bias) {
    LEVIN_TRY(check_token("logit_bias", token));
    if (!finite(bias)) return out_of_range("a logit_bias", bias, "a finite number");
  }
  for (const int32_t token : params.banned_tokens) LEVIN_TRY(check_token("the list of banned tokens", token));
  for (const int32_t token : params.allowed_tokens) LEVIN_TRY(check_token("allowed_token_ids", token));
  for (const int32_t token : params.stop_tokens) LEVIN_TRY(check_token("the list of stop tokens", token));
  return {};
}

int32_t choose_token(std::span<const float> logits, const SamplingParams& params, const ChoiceContext& context) {
  if (params.greedy() && takes_logits_as_they_are(params, context)) return best_of(logits).token;
  const std::vector<double> processed = processed_logits(logits, params, context);
  const Candidate likeliest = best_of(std::span<const double>(processed));  // refuses NaN and an empty choice
  if (params.greedy()) return likeliest.token;
  const Survivors survivors(processed, params);
  const NoisePlace place{.seed = params.seed, .position = context.position, .choice = params.choice};
  Candidate best{kNever, -1};
  for (const Candidate& c : survivors.candidates()) {
    if (c.logit + kMaxGumbelNoise < best.logit) continue;  // no noise could lift it
    const Candidate noisy{c.logit + gumbel_noise(place, static_cast<uint32_t>(c.token)), c.token};
    if (best.token < 0 || ranks_before(noisy, best)) best = noisy;
  }
  return best.token;
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
  std::vector<Candidate> ranked(logits.size());
  for (size_t v = 0; v < logits.size(); ++v) ranked[v] = {logits[v], static_cast<int32_t>(v)};
  const size_t n_kept = std::min(ranked.size(), static_cast<size_t>(n_top));
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<int64_t>(n_kept), ranked.end(), ranks_before);
  for (size_t i = 0; i < n_kept; ++i) out.top.push_back({ranked[i].token, ranked[i].logit - log_total});
  return out;
}

}  // namespace levin
