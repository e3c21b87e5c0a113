// The loop that turns requests into tokens: every step takes some tokens of every sequence through the model.
//
// A sequence with tokens t_0 .. t_{n-1} and trunk rows for all but the last is decoded in rounds:
//
//   verify   the trunk runs [t_{n-1}, d_1 .. d_S] (S drafts, maybe none), giving logits at n rows; row by row the
//            target chooses its own token y for the next position and goes on while y equals the draft. So j accepted
//            drafts give j + 1 tokens.
//   draft    the drafter (drafter.h) takes in the newly accepted positions and proposes drafts for the next round.
//
// Plain decoding is S = 0: verify alone. The depth may change from round to round (draft_depth.h). Prefill is the same step
// with a chunk of the prompt for its rows, followed by the same drafting. Undoing a rejected draft is not advancing: its rows
// are overwritten by the next round. Drafts are chosen by the same rule, noise and penalties as the target's tokens, which
// makes agreement likely and never changes a token.
//
// Which sequences have part in a step, and with how many rows, is the scheduler's word (sched/scheduler.h). One that it
// preempts loses its rows and comes again as a prompt that has its answer so far; one whose prompt begins as
// another's goes on from the rows that are there, with the tap of the last of them for the drafter.
//
// Pages, shared prefixes and stored blocks are the cache manager's (kv/cache_manager.h): a plan says which blocks are
// put into a sequence's pages before the step runs.
//
// Pure loop: one thread calls; nothing here knows about text, files or sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/draft_depth.h"
#include "engine/drafter.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "kv/cache_manager.h"
#include "sched/scheduler.h"

namespace levin {

struct Sequence;  // engine/sequence.h

struct LoopOptions {
  int64_t chunk_tokens = 512;  // prompt tokens of one sequence in a step
  int n_spec_steps = 0;        // S: drafts a round at most, within what the drafter makes; 0 = off
  bool adapt_depth = false;    // draft less, or not at all, where that is faster
  // Drafts that are to have one behind them: the product of the probabilities that the drafter gives its most likely tokens
  // there, at least. 0: whatever it says.
  double min_confidence = kDefaultMinConfidence;
  int64_t max_context_tokens = 0;  // prompt and answer together
  int64_t max_running = 64;        // sequences that have part in steps
  int64_t max_waiting = 1 << 20;   // sequences that wait for their first
  bool share_prefixes = true;
  bool prefill_first = false;       // no sequence decodes while one can be prefilled (sched/scheduler.h)
  int64_t n_host_blocks = 0;        // of prefixes, kept as records in memory where prefixes are shared
  std::shared_ptr<PageStore> disk;  // and on disk; null: not
  TraceWriter* schedule_trace = nullptr;
};

class StepLoop {
 public:
  // Drafts with what the model brings along (make_drafter()), or as it is told to.
  StepLoop(Runner& runner, const LoopOptions& options);
  StepLoop(Runner& runner, const LoopOptions& options, std::unique_ptr<Drafter> drafter);
  ~StepLoop();

  // What submit() refuses, naming it: an empty prompt, ids outside the vocabulary, a prompt beyond the context, bad
  // sampling values. It reads nothing that changes and may be called from any thread.
  Status check(const GenerateRequest& request) const;
  // Also refuses what the cache has no room for, and anything while max_waiting sequences wait.
  Result<RequestId> submit(GenerateRequest request);

  // One step for all sequences. False when there is nothing left to do.
  bool step();

  void cancel(RequestId id);  // ends it before its next token
  // The result of a finished request, once; nullptr while it runs.
  std::unique_ptr<Generation> take(RequestId id);

  SchedulerCounts counts() const;  // found tokens: those restored from host memory among them
  const CacheManager& cache() const { return cache_; }
  StepPhase phase() const { return phase_; }  // from any thread
  const StepTimes& last_step() const { return times_; }
  int64_t n_restored_tokens() const { return n_disk_hit_tokens_; }  // read from disk instead of computed
  void forget_prefixes() { scheduler_.forget_prefixes(); }          // so that others may have the pages

 private:
  struct Batch;

  void run(Batch& batch);
  void plan(Batch& batch);
  void restore(Sequence& sequence, const Restored& restored);
  void run_trunk(Batch& batch);
  void fetch_block_ends(Batch& batch);
  void choose_tokens(Batch& batch);
  void score_prompt(Sequence& sequence, const Batch& batch, int64_t first_row, int64_t n_rows);
  void keep_block_ends(const Batch& batch);
  void advance(const Batch& batch);
  void choose_depth(Batch& batch);
  void draft(Batch& batch);
  void note_round(const Batch& batch, double seconds);
  void retire_finished();

  Runner& runner_;
  std::unique_ptr<Drafter> drafter_;
  LoopOptions options_;
  CacheManager cache_;
  Scheduler scheduler_;
  DraftDepth depth_;
  int last_depth_ = 0;       // of the drafts that the next step verifies
  DraftAcceptance typical_;  // of all sequences so far: where a new one begins
  RequestId next_id_ = 1;
  int64_t n_disk_hit_tokens_ = 0;
  int64_t n_host_hit_tokens_ = 0;  // restored from host memory
  std::atomic<StepPhase> phase_ = StepPhase::kIdle;
  StepTimes times_;
  bool went_on_ = false;                              // after the last step something was left to do
  std::vector<std::unique_ptr<Sequence>> sequences_;  // running, in order of submission
  std::vector<std::pair<RequestId, std::unique_ptr<Generation>>> finished_;
};

}  // namespace levin
