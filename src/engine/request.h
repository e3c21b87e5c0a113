// What is asked of the engine, and what it answers: plain data.
#pragma once

#include <cstdint>
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
  std::optional<RowLogprobs> logprobs;  // when asked for
};

// What the caller makes of a token.
enum class Verdict : uint8_t {
  kGoOn,
  kStop,    // the answer ends with it, as with a stop token
  kCancel,  // nobody wants the rest
};

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  int64_t max_tokens = 0;       // 0: as many as the context holds
  SamplingParams sampling;      // its stop_tokens end the answer, the last of them included in the result
  // What the answer must look like; it ends where nothing more can follow. Not together with allowed tokens.
  std::optional<grammar::Structure> structure;
  bool logprobs = false;
  int n_top_logprobs = 0;  // beside the chosen token's, with either kind of logprobs
  // Of every prompt token but the first, given those before it; the prompt is then computed in full, cached or not.
  bool prompt_logprobs = false;
  std::function<void(std::vector<RowLogprobs>)> on_prompt;  // gets them before the first token
  int32_t priority = 0;                                     // lower goes first
  // Sees every token in order, those of one accepted run too, and says how to go on. May be empty
  std::function<Verdict(const TokenEvent& event)> on_token;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled", "error"

// Drafts offered and kept. A verify pass with j accepted drafts keeps j + 1 tokens; what an end or a limit cuts off is
// not counted. The token that prefill gives is not counted either.
struct SpeculationStats {
  int64_t n_verify_passes = 0;
  int64_t n_drafted = 0;
  int64_t n_accepted = 0;
  int64_t n_kept = 0;                          // tokens of the answer that came from verify passes
  std::vector<int64_t> accepted_per_position;  // [S]: how often the draft at this place was accepted

  double mean_accept_length() const {
    return n_verify_passes > 0 ? static_cast<double>(n_kept) / static_cast<double>(n_verify_passes) : 0.0;
  }
};

struct Generation {
  std::vector<TokenEvent> tokens;
  FinishReason finish_reason = FinishReason::kLength;
  // With kError alone: why this request, and no other, could not go on. Its tokens so far are those of a sound answer.
  std::optional<Error> error;
  SpeculationStats speculation;
  int64_t n_found_tokens = 0;     // of the prompt, whose cache rows others had left
  std::optional<double> queue_s;  // from submission until it first had part in a step; empty: it never had
  double prefill_s = 0;           // from submission until the prompt is through trunk and MTP layer, first token chosen
  double decode_s = 0;            // from there to the last token
};

// What a step is at, for whoever watches from outside.
enum class StepPhase : uint8_t { kIdle, kPlanning, kTrunk, kChoosing, kDrafting, kSettling };
std::string_view step_phase_name(StepPhase phase);  // "between steps", "computing the trunk", ...

struct StepTimes {
  double step_s = 0;
  // From the model's last result in the step before to its first call in this one: what the host needed meanwhile,
  // callers of step() included. Empty where nothing was left to do in between.
  std::optional<double> host_gap_s;
};

}  // namespace levin
