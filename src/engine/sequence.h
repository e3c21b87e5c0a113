// One request on its way through the loop (step_loop.h): its tokens, which of their rows are cached, and what was delivered.
//
//   waiting    has no pages. begin() admits it, after rows found in the prefix cache or with none
//   prefill    n_cached < n_fill: chunks of the prompt are computed, and of the answer so far if it was preempted:
//              commit_prompt(). The last row of the last chunk gives the next token: commit_first_token()
//   decoding   every step verifies the drafts of the step before: commit_verified(), one token or more
//   finished   by a token, a limit, its caller, cancel() or fail(); the loop retires it after the step
//
// Preemption leads from prefill and decoding back to waiting: begin() forgets drafts and rows, and keeps the tokens.
//
// deliver() hands committed tokens to the request's caller, who may end the answer at any of them. The loop decides when:
// tokens may be delivered after later ones are being computed.
//
// Knows sampled tokens and drafts, and neither the model, the cache nor the other sequences.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/device_fault.h"
#include "base/recovery.h"
#include "engine/draft_depth.h"
#include "engine/drafter.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/token_chooser.h"
#include "sched/scheduler.h"

namespace levin {

// What a verify pass made of the drafts.
struct VerifiedDrafts {
  int n_drafted = 0;  // one more if the next had low confidence: to the depth that is a draft that was not accepted
  int n_accepted = 0;
};

struct Sequence {
  RequestId id = 0;
  GenerateRequest request;
  TokenChooser chooser;
  int64_t n_prompt;
  int64_t n_fill;  // tokens to compute before the next one is chosen: the prompt, or all there were when preempted
  int64_t max_tokens = 0;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t n_cached = 0;         // trunk rows at positions 0 .. n_cached-1
  std::vector<int32_t> drafts;  // for positions tokens.size(), tokens.size() + 1, ...
  bool low_confidence = false;  // the drafter's confidence was too low to make the next one
  std::unique_ptr<DraftState> draft_state;
  DraftAcceptance acceptance;
  const SequencePages* pages = nullptr;  // the scheduler's, while it runs
  int64_t n_block_tokens;
  std::vector<ResumeState> block_ends;  // of the blocks that are not yet committed, in order
  std::vector<RowLogprobs> prompt_logprobs;
  std::unique_ptr<Generation> out = std::make_unique<Generation>();
  bool finished = false;
  Clock::time_point submitted = Clock::now();
  Clock::time_point prompt_done;

  Sequence(const Drafter& drafter, GenerateRequest request, SamplingPlan plan, int64_t block_tokens);

  bool in_prompt() const { return n_cached < n_fill; }
  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_answer_tokens() const { return n_tokens() - n_prompt; }
  // Drafts beyond the answer's last possible token would be thrown away.
  int64_t n_drafts_within(int64_t depth) const;
  SequenceChunk chunk(std::span<const int32_t> step_tokens, int64_t first_position) const {
    return {.tokens = step_tokens, .first_position = static_cast<int32_t>(first_position), .pages = pages};
  }

  // Admits it, after the rows of a prefix-cache hit; after none, if there was no hit.
  void begin(const Admitted& admitted, const Drafter& drafter);
  // Continues after n rows that every cache contains. tap: see Drafter::resume().
  void resume(int64_t n, const ResumeState& tap, const Drafter& drafter);

  // Ends it if one of these rows, the first of them at position n_cached, is at fault.
  bool fail_on_faults(std::span<const int32_t> faults);
  void commit_prompt(int64_t n_rows) { n_cached += n_rows; }
  // The token after a prompt, or after the answer so far of a sequence that was preempted.
  void commit_first_token(const Sampled& sampled);
  // What the rows of its last token and its drafts gave.
  VerifiedDrafts commit_verified(const Sampled& sampled);
  void note_prompt_done();

  // Calls the request's functions with everything committed since the last call.
  void deliver();

  // Ends this sequence, and no other.
  void fail(RowFault fault, int64_t position);
  void fail(Error error);
  void fail(const std::exception& thrown);
  void fail_internally(std::string_view what);  // by an error of ours
  void cancel();                                // tokens that are not delivered are dropped

 private:
  void commit(const Sampled& sampled);
  void append(const SampledToken& sampled, bool is_last);
  void count_delivered(int64_t n_tokens);
  void end_at_delivered(Verdict verdict);

  int64_t n_delivered_ = 0;   // tokens of the answer
  int64_t n_verified_ = 0;    // of those committed after them, the ones that a verify pass gave
  int64_t n_accepted_ = 0;    // of these, accepted drafts: the first
  bool owes_prompt_ = false;  // on_prompt is to be called before the next token
};

// Does what concerns one sequence alone: what is thrown ends that sequence. A lost device ends more.
template <class Body>
void guarded(Sequence& s, const Body& body) {
  try {
    const Recovery recovery;
    body();
  } catch (const DeviceFault&) {
    throw;
  } catch (const std::exception& thrown) {
    s.fail(thrown);
  }
}

}  // namespace levin
