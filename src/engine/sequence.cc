#include "engine/sequence.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

Error error_of(RowFault fault, int64_t position) {
  if (fault == RowFault::kNothingLeft) {
    return {ErrorKind::kUsage,
            fmt::format("no token is left at position {}: the structure, the banned tokens and min_tokens together "
                        "exclude all; relax one of them",
                        position)};
  }
  if (fault == RowFault::kTooManySteps) return grammar::too_many_steps();
  if (fault == RowFault::kAgainstMask) {
    return internal_error(
        fmt::format("the structure refuses the token at position {} that its mask allowed", position));
  }
  return {ErrorKind::kRuntime, fmt::format("the model's logits are NaN or infinite at position {}; this request ends, "
                                           "others continue. Check the checkpoint, or try --numerics reference",
                                           position)};
}

std::unique_ptr<grammar::Matcher> make_matcher(const GenerateRequest& request) {
  if (!request.structure) return nullptr;
  return std::make_unique<grammar::Matcher>(*request.structure, request.sampling.stop_tokens);
}

}  // namespace

Sequence::Sequence(const Drafter& drafter, GenerateRequest asked, SamplingPlan plan, int64_t block_tokens)
    : request(std::move(asked)),
      chooser(std::move(plan), request.prompt, make_matcher(request), request.logprobs),
      n_prompt(std::ssize(request.prompt)),
      n_fill(n_prompt),
      tokens(request.prompt),
      draft_state(drafter.open()),
      n_block_tokens(block_tokens) {}

int64_t Sequence::n_drafts_within(int64_t depth) const { return std::min(depth, max_tokens - n_answer_tokens() - 1); }

void Sequence::begin(const Admitted& admitted, const Drafter& drafter) {
  resume(admitted.n_cached, admitted.resume, drafter);
  block_ends.clear();
  drafts.clear();
  low_confidence = false;
  n_fill = n_tokens();
  if (n_answer_tokens() == 0) out->n_hit_tokens = n_cached;
  if (!out->queue_s) out->queue_s = seconds_since(submitted);
}

void Sequence::resume(int64_t n, const ResumeState& tap, const Drafter& drafter) {
  n_cached = n;
  drafter.resume(*draft_state, n, tap);
}

bool Sequence::fail_on_faults(std::span<const int32_t> faults) {
  const auto bad = std::find_if(faults.begin(), faults.end(), [](int32_t f) { return f != 0; });
  if (bad == faults.end()) return false;
  fail(RowFault::kNotNumbers, n_cached + (bad - faults.begin()));
  return true;
}

void Sequence::commit_first_token(const Sampled& sampled) {
  if (n_answer_tokens() == 0) {
    note_prompt_done();
    owes_prompt_ = true;
  }
  commit(sampled);
}

VerifiedDrafts Sequence::commit_verified(const Sampled& sampled) {
  const auto n_drafts = static_cast<int>(drafts.size());
  const int n_drafted = n_drafts + (std::exchange(low_confidence, false) ? 1 : 0);
  ++out->speculation.n_verify_passes;
  out->speculation.n_drafted += n_drafts;
  drafts.clear();
  const int64_t n_before = n_tokens();
  commit(sampled);
  n_verified_ = n_tokens() - n_before;
  n_cached += n_verified_;
  const int n_accepted = static_cast<int>(std::min<int64_t>(sampled.n_accepted, n_verified_));
  n_accepted_ = n_accepted;
  acceptance.observe(n_drafted, n_accepted);
  return {.n_drafted = n_drafted, .n_accepted = n_accepted};
}

void Sequence::commit(const Sampled& sampled) {
  for (const SampledToken& token : sampled.tokens) {
    append(token, &token == &sampled.tokens.back());
    if (finished) return;
  }
  if (sampled.failure) fail(sampled.failure->fault, sampled.failure->position);
}

void Sequence::append(const SampledToken& sampled, bool is_last) {
  tokens.push_back(sampled.token);
  TokenEvent& event = out->tokens.emplace_back(TokenEvent{.token = sampled.token, .logprobs = std::nullopt});
  if (request.logprobs) event.logprobs = row_logprobs(sampled.logits, sampled.token, request.n_top_logprobs);
  out->decode_s = seconds_since(prompt_done);
  const bool stops = is_last && chooser.ends_answer(sampled.token);
  finished = stops || n_answer_tokens() == max_tokens;
  if (finished) out->finish_reason = stops ? FinishReason::kStop : FinishReason::kLength;
}

void Sequence::note_prompt_done() {
  prompt_done = Clock::now();
  out->prefill_s = std::chrono::duration<double>(prompt_done - submitted).count();
}

void Sequence::deliver() {
  if (std::exchange(owes_prompt_, false) && request.on_prompt) request.on_prompt(std::exchange(prompt_logprobs, {}));
  const int64_t n_before = n_delivered_;
  Verdict verdict = Verdict::kGoOn;
  while (n_delivered_ < std::ssize(out->tokens) && verdict == Verdict::kGoOn) {
    if (request.on_token) verdict = request.on_token(out->tokens[static_cast<size_t>(n_delivered_)]);
    ++n_delivered_;
  }
  count_delivered(n_delivered_ - n_before);
  if (verdict != Verdict::kGoOn) end_at_delivered(verdict);
}

// Tokens after the answer's end are in no count.
void Sequence::count_delivered(int64_t n_tokens) {
  SpeculationStats& stats = out->speculation;
  stats.n_kept += std::min(n_tokens, std::exchange(n_verified_, 0));
  const int64_t n_accepted = std::min(n_tokens, std::exchange(n_accepted_, 0));
  stats.n_accepted += n_accepted;
  for (int64_t i = 0; i < n_accepted; ++i) ++stats.accepted_per_position[static_cast<size_t>(i)];
}

// The caller ends the answer at the last token that it was given, whatever was computed since.
void Sequence::end_at_delivered(Verdict verdict) {
  const bool is_last = n_delivered_ == std::ssize(out->tokens);
  const bool stopped = is_last && finished && out->finish_reason == FinishReason::kStop;
  finished = true;
  out->tokens.resize(static_cast<size_t>(n_delivered_));
  out->error.reset();
  out->finish_reason = verdict == Verdict::kStop || stopped ? FinishReason::kStop : FinishReason::kCancelled;
}

void Sequence::fail(RowFault fault, int64_t position) { fail(error_of(fault, position)); }

void Sequence::fail(Error error) {
  finished = true;
  out->finish_reason = FinishReason::kError;
  out->error = std::move(error);
}

void Sequence::fail(const std::exception& thrown) { fail(failure_of(thrown)); }

void Sequence::fail_internally(std::string_view what) { fail(internal_error(what)); }

void Sequence::cancel() {
  owes_prompt_ = false;
  finished = true;
  out->tokens.resize(static_cast<size_t>(n_delivered_));
  out->finish_reason = FinishReason::kCancelled;
}

}  // namespace levin
