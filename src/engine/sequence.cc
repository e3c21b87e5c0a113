#include "engine/sequence.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

bool contains(const std::vector<int32_t>& list, int32_t token) {
  return std::find(list.begin(), list.end(), token) != list.end();
}

Error error_of(RowFault fault, int64_t position) {
  if (fault == RowFault::kNothingLeft) {
    return {ErrorKind::kUsage,
            fmt::format("no token is left at position {}: the structure, the banned tokens and min_tokens together "
                        "exclude all; relax one of them",
                        position)};
  }
  if (fault == RowFault::kAgainstMask) {
    return {ErrorKind::kRuntime,
            fmt::format("the structure refuses the token at position {} that its mask allowed; this is "
                        "an error of levin's, and ends this request alone",
                        position)};
  }
  return {ErrorKind::kRuntime, fmt::format("the model's logits are NaN or infinite at position {}; this request ends, "
                                           "others continue. Check the checkpoint, or try --numerics reference",
                                           position)};
}

Choice choice_of(const ops::ChosenToken& chosen) {
  return chosen.sound != 0 ? Choice{.token = chosen.token} : Choice{.fault = RowFault::kNotNumbers};
}

}  // namespace

Sequence::Sequence(const Drafter& drafter, SamplingPlan sampling, int64_t block_tokens)
    : plan(std::move(sampling)), draft_state(drafter.open()), n_block_tokens(block_tokens) {}

int64_t Sequence::n_drafts_within(int64_t depth) const { return std::min(depth, max_tokens - n_answer_tokens() - 1); }

void Sequence::begin(const Admitted& admitted, const Drafter& drafter) {
  go_on(admitted.n_cached, admitted.resume, drafter);
  block_ends.clear();
  drafts.clear();
  low_confidence = false;
  n_fill = n_tokens();
  if (n_answer_tokens() == 0) out->n_hit_tokens = n_cached;
  if (!out->queue_s) out->queue_s = std::chrono::duration<double>(Clock::now() - submitted).count();
}

void Sequence::go_on(int64_t n, const ResumeState& tap, const Drafter& drafter) {
  n_cached = n;
  drafter.resume(*draft_state, n, tap);
}

void Sequence::choose_first_token(const HeadResult& row) {
  if (n_answer_tokens() == 0) {
    note_prompt_done();
    if (request.on_prompt) request.on_prompt(std::exchange(prompt_logprobs, {}));
  }
  choose_and_emit(row);
}

VerifiedDrafts Sequence::accept(std::span<const int32_t> faults, std::span<const HeadResult> rows) {
  SpeculationStats& stats = out->speculation;
  ++stats.n_verify_passes;
  stats.n_drafted += static_cast<int64_t>(drafts.size());
  const std::vector<int32_t> verified = std::exchange(drafts, {});
  int n_accepted = 0;
  for (size_t j = 0; j <= verified.size() && !finished; ++j) {
    if (fail_on_faults(faults.subspan(j, 1)) || !choose_and_emit(rows[j])) break;
    const int32_t token = tokens.back();
    ++stats.n_kept;
    ++n_cached;
    if (j == verified.size() || token != verified[j]) break;
    ++n_accepted;
    ++stats.accepted_per_position[j];
  }
  stats.n_accepted += n_accepted;
  const int n_drafted = static_cast<int>(verified.size()) + (std::exchange(low_confidence, false) ? 1 : 0);
  acceptance.observe(n_drafted, n_accepted);
  return {.n_drafted = n_drafted, .n_accepted = n_accepted};
}

bool Sequence::fail_on_faults(std::span<const int32_t> faults) {
  const auto bad = std::find_if(faults.begin(), faults.end(), [](int32_t f) { return f != 0; });
  if (bad == faults.end()) return false;
  fail(RowFault::kNotNumbers, n_cached + (bad - faults.begin()));
  return true;
}

void Sequence::note_prompt_done() {
  prompt_done = Clock::now();
  out->prefill_s = std::chrono::duration<double>(prompt_done - submitted).count();
}

void Sequence::fail(RowFault fault, int64_t position) {
  finished = true;
  out->finish_reason = FinishReason::kError;
  out->error = error_of(fault, position);
}

void Sequence::cancel() {
  finished = true;
  out->finish_reason = FinishReason::kCancelled;
}

std::optional<int32_t> Sequence::choose(std::span<const float> logits, std::span<const int32_t> behind) {
  const int n_matched = push_drafts(behind);
  const Choice choice = choose_token(logits, plan, next_choice(std::ssize(behind)));
  pop_drafts(behind, n_matched);
  return choice.ok() ? std::optional(choice.token) : std::nullopt;
}

std::optional<ops::ChoiceRule> Sequence::rule(int64_t n_drafts) const {
  if (matcher || request.logprobs || !plan.by_logits_alone(n_answer_tokens() + n_drafts)) return std::nullopt;
  const SamplingParams& params = plan.params();
  return ops::ChoiceRule{.seed = params.seed,
                         .temperature = params.temperature,
                         .position = static_cast<uint32_t>(n_tokens() + n_drafts),
                         .choice = params.choice};
}

// For the token behind the answer and the drafts that were pushed to history and matcher. Behind a structure that is
// complete only a draft is asked for, which will be thrown away.
ChoiceContext Sequence::next_choice(int64_t n_pushed_drafts) const {
  return {.history = &history,
          .position = static_cast<uint32_t>(n_tokens() + n_pushed_drafts),
          .mask = matcher && !matcher->is_complete() ? matcher->mask() : TokenMask()};
}

// Puts drafts behind the answer; returns how many of them the structure has room for.
int Sequence::push_drafts(std::span<const int32_t> behind) {
  int n_matched = 0;
  for (const int32_t draft : behind) {
    history.push(draft);
    if (matcher && matcher->push(draft)) ++n_matched;
  }
  return n_matched;
}

void Sequence::pop_drafts(std::span<const int32_t> behind, int n_matched) {
  for (const int32_t draft : behind) history.pop(draft);
  for (int i = 0; i < n_matched; ++i) matcher->pop();
}

// The target's own token for a row; false: the row gave none, and the sequence has ended with an error.
bool Sequence::choose_and_emit(const HeadResult& row) {
  const Choice choice = row.chosen ? choice_of(*row.chosen) : choose_token(row.logits, plan, next_choice());
  if (!choice.ok()) {
    fail(choice.fault, n_tokens());
    return false;
  }
  if (matcher && !matcher->push(choice.token)) {
    fail(RowFault::kAgainstMask, n_tokens());
    return false;
  }
  emit(choice.token, row.logits);
  return true;
}

void Sequence::emit(int32_t token, std::span<const float> logits) {
  tokens.push_back(token);
  history.push(token);
  TokenEvent event{.token = token, .logprobs = std::nullopt};
  if (request.logprobs) event.logprobs = row_logprobs(logits, token, request.n_top_logprobs);
  const Verdict verdict = request.on_token ? request.on_token(event) : Verdict::kGoOn;
  out->tokens.push_back(std::move(event));
  out->decode_s = std::chrono::duration<double>(Clock::now() - prompt_done).count();
  finish_on(token, verdict);
}

// Ends the answer where this token is its last.
void Sequence::finish_on(int32_t token, Verdict verdict) {
  const bool complete = matcher && matcher->is_complete();
  if (verdict == Verdict::kStop || complete || contains(plan.params().stop_tokens, token)) {
    out->finish_reason = FinishReason::kStop;
  } else if (verdict == Verdict::kCancel) {
    out->finish_reason = FinishReason::kCancelled;
  } else if (n_answer_tokens() == max_tokens) {
    out->finish_reason = FinishReason::kLength;
  } else {
    return;
  }
  finished = true;
}

}  // namespace levin
