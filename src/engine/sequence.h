// One request on its way through the loop (step_loop.h): its tokens, the rows it still needs, and how it chooses.
//
//   waiting    has no pages. begin() admits it, after rows found in the prefix cache or with none
//   prefill    n_cached < n_fill: chunks of the prompt are computed, and of the answer so far if it was preempted. The
//              last row of the last chunk gives the next token: choose_first_token()
//   decoding   every step verifies the drafts of the step before: accept(), one token or more
//   finished   by a token, a limit, cancel() or fail(); the loop retires it after the step
//
// Preemption leads from prefill and decoding back to waiting: begin() forgets drafts and rows, and keeps the tokens.
//
// Knows logits and drafts, and neither the model, the cache nor the other sequences.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/sampling.h"
#include "engine/draft_depth.h"
#include "engine/drafter.h"
#include "engine/request.h"
#include "grammar/matcher.h"
#include "sched/scheduler.h"
#include "tensor/view.h"

namespace levin {

// What a verify pass made of the drafts.
struct VerifiedDrafts {
  int n_drafted = 0;  // one more if the next had low confidence: to the depth that is a draft that was not accepted
  int n_accepted = 0;
};

struct Sequence final : DraftChooser {
  RequestId id = 0;
  GenerateRequest request;
  SamplingPlan plan;
  int64_t n_prompt = 0;
  int64_t n_fill = 0;  // tokens to compute before the next one is chosen: the prompt, or all there were when preempted
  int64_t max_tokens = 0;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t n_cached = 0;         // trunk rows at positions 0 .. n_cached-1
  std::vector<int32_t> drafts;  // for positions tokens.size(), tokens.size() + 1, ...
  bool low_confidence = false;  // the drafter was not sure enough of them to make the next one
  std::unique_ptr<DraftState> draft_state;
  DraftAcceptance acceptance;
  const SequencePages* pages = nullptr;  // the scheduler's, while it runs
  int64_t n_block_tokens;
  std::vector<ResumeState> block_ends;  // of the blocks that are not yet committed, in order
  std::vector<RowLogprobs> prompt_logprobs;
  TokenHistory history;
  std::unique_ptr<grammar::Matcher> matcher;  // of the answer so far; null where any token may be next
  std::unique_ptr<Generation> out = std::make_unique<Generation>();
  bool finished = false;
  std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point prompt_done;

  Sequence(const Drafter& drafter, SamplingPlan sampling, int64_t block_tokens);

  bool in_prompt() const { return n_cached < n_fill; }
  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_answer_tokens() const { return n_tokens() - n_prompt; }
  // Drafts beyond the answer's last possible token would be thrown away.
  int64_t n_drafts_within(int64_t depth) const;
  SequenceChunk chunk(std::span<const int32_t> step_tokens, int64_t first_position) const {
    return {.tokens = step_tokens, .first_position = static_cast<int32_t>(first_position), .pages = pages};
  }

  // Begins where rows of others end; nowhere, if none were found.
  void begin(const Admitted& admitted, const Drafter& drafter);
  // Goes on behind n rows that are there, as many in every cache.
  void go_on(int64_t n, const ResumeState& tap, const Drafter& drafter);

  // The token behind a prompt, or behind the answer so far of a sequence that was preempted.
  void choose_first_token(const HeadResult& row);
  // Row by row the target's own token; on while it is the one that was drafted.
  VerifiedDrafts accept(std::span<const int32_t> faults, std::span<const HeadResult> rows);  // [1 + drafts] each
  // Ends it if one of these rows, the first of them at position n_cached, is not sound.
  bool fail_on_faults(std::span<const int32_t> faults);
  void note_prompt_done();

  // Ends this sequence, and no other.
  void fail(RowFault fault, int64_t position);
  void cancel();

  // DraftChooser: by the rule, noise, penalties and structure of the target's own tokens.
  std::optional<int32_t> choose(std::span<const float> logits, std::span<const int32_t> behind) override;
  // None while log probabilities are asked for, which the host takes from the logits.
  std::optional<ops::ChoiceRule> rule(int64_t n_drafts) const override;
  bool logits_tell_confidence() const override { return !matcher; }

 private:
  ChoiceContext next_choice(int64_t n_pushed_drafts = 0) const;
  int push_drafts(std::span<const int32_t> behind);
  void pop_drafts(std::span<const int32_t> behind, int n_matched);
  bool choose_and_emit(const HeadResult& row);
  void emit(int32_t token, std::span<const float> logits);
  void finish_on(int32_t token, Verdict verdict);
};

}  // namespace levin
