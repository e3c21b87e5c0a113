// Requests to the engine and their results: plain data.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "decode/sampling.h"
#include "grammar/matcher.h"

namespace levin {

using RequestId = int64_t;

struct TokenEvent {
  int32_t token = -1;
  std::optional<RowLogprobs> logprobs;  // if the request has `logprobs`
};

// The caller's decision after a token.
enum class Verdict : uint8_t {
  kGoOn,
  kStop,    // the answer ends with this token, as with a stop token
  kCancel,  // end the request; nobody waits for the rest
};

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  int64_t max_tokens = 0;       // of the answer; 0: as many as the context has room for
  SamplingParams sampling;      // one of its stop_tokens ends the answer and is included in the result
  // Structured output: the answer matches it and ends where nothing more can follow. Excludes allowed tokens.
  std::optional<grammar::Structure> structure;
  bool logprobs = false;
  int n_top_logprobs = 0;  // most likely tokens to report in addition to the chosen one, for both kinds of logprobs
  // Log probability of every prompt token but the first, given the preceding ones; computes the whole prompt, even if
  // rows of it are cached.
  bool prompt_logprobs = false;
  std::function<void(std::vector<RowLogprobs>)> on_prompt;  // receives them before the first token of the answer
  int32_t priority = 0;                                     // lower first
  // Called with every token in order, also with each of several accepted drafts; the answer ends as its result says.
  // May be empty.
  std::function<Verdict(const TokenEvent& event)> on_token;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled", "error"

// Drafts and their acceptance. A verification pass with j accepted drafts commits j + 1 tokens. Tokens after the end of
// the answer are not counted, nor is the first token, which prefill gives.
struct SpeculationStats {
  int64_t n_verify_passes = 0;
  int64_t n_drafted = 0;
  int64_t n_accepted = 0;
  int64_t n_kept = 0;                          // committed tokens of verification passes
  std::vector<int64_t> accepted_per_position;  // [S]: how often the draft at this position was accepted

  double mean_accept_length() const {
    return n_verify_passes > 0 ? static_cast<double>(n_kept) / static_cast<double>(n_verify_passes) : 0.0;
  }
};

// Why a request ended: by an error of ours, or by what was thrown while it was served.
Error internal_error(std::string_view what);
Error failure_of(const std::exception& thrown);

struct Generation {
  std::vector<TokenEvent> tokens;
  FinishReason finish_reason = FinishReason::kLength;
  // Only with kError: why this request failed. `tokens` are those chosen before, and are valid.
  std::optional<Error> error;
  SpeculationStats speculation;
  int64_t n_hit_tokens = 0;       // prefix-cache hits: prompt tokens whose rows were not computed
  std::optional<double> queue_s;  // from submission to the first step with the request; empty: it was in none
  double prefill_s = 0;           // from submission to the first token, after target and MTP layer ran the prompt
  double decode_s = 0;            // from the first token to the last
};

// The phase of a step, for monitoring.
enum class StepPhase : uint8_t { kIdle, kPlanning, kTrunk, kChoosing, kDrafting, kSettling };
std::string_view step_phase_name(StepPhase phase);  // "between steps", "computing the trunk", ...

struct StepTimes {
  double step_s = 0;  // duration of the step
  // Time from the model's last result in the previous step to its first call in this one, in which it waited for the
  // host, including the caller of step(). On a device by its clock, from the end of its work to the trunk's first kernel.
  // Empty if the engine was idle in between.
  std::optional<double> host_gap_s;
};

}  // namespace levin
