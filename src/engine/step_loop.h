// The loop that turns requests into tokens: every step takes some tokens of every sequence through the model.
//
// A sequence with tokens t_0 .. t_{n-1} and trunk rows for all but the last is decoded in rounds (round.h):
//
//   verify   the trunk runs [t_{n-1}, d_1 .. d_S] (S drafts, maybe none), giving logits at n rows; row by row the
//            target chooses its own token y for the next position, until y is not the draft. So j accepted
//            drafts give j + 1 tokens (sampler.h)
//   draft    the drafter (drafter.h) takes in the newly accepted positions and proposes drafts for the next round
//
// Plain decoding is S = 0: verify alone. Prefill is the same step with a chunk of the prompt for its rows, followed by the
// same drafting. A rejected draft needs no undoing: its rows are overwritten by the next round.
//
// Which sequences take part in a step, and with how many rows, is decided by the scheduler (sched/scheduler.h). One that it
// preempts loses its rows and comes again as a prompt that includes its answer so far. Pages, shared prefixes and stored
// blocks belong to the cache manager (kv/cache_manager.h): a plan says which blocks are copied into a sequence's pages
// before the step runs.
//
// The loop comes in two orders, which give the same tokens:
//
//   in order     plan, run, sample, commit, deliver, draft, settle
//   overlapped   where it can the next round is enqueued before the results of the last one are read (round.h, Ahead), so that a
//                device does not wait for the host
//
// Pure loop: one thread calls; nothing here knows about text, files or sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/round.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "kv/cache_manager.h"
#include "sched/scheduler.h"

namespace levin {

struct LoopOptions {
  int64_t chunk_tokens = 512;  // maximum prompt tokens of one sequence in a step
  int n_spec_steps = 0;        // S: maximum drafts per round, within what the drafter makes; 0: off
  bool adapt_depth = false;    // fewer drafts, or none, where that is faster
  // A chain gets another draft while the product of the probabilities that the drafter gives its most likely tokens is at
  // least this; 0: always.
  double min_confidence = kDefaultMinConfidence;
  int64_t max_context_tokens = 0;  // prompt and answer together
  int64_t max_running = 64;        // sequences that take part in steps
  int64_t max_waiting = 1 << 20;   // sequences that wait for their first step
  bool share_prefixes = true;
  bool prefill_first = false;       // no sequence decodes while one can be prefilled (sched/scheduler.h)
  bool overlap = false;             // enqueue the next round before the results of one are read
  int64_t n_host_blocks = 0;        // capacity for records of prefixes in host memory, where prefixes are shared
  std::shared_ptr<PageStore> disk;  // and on disk; null: none
  BlockRecords assumed;             // not empty: of all prompts, as in kv/prefix_index.h
  TraceWriter* schedule_trace = nullptr;
};

class StepLoop {
 public:
  // With the drafter of the model (make_drafter()), or another one.
  StepLoop(Runner& runner, const LoopOptions& options);
  StepLoop(Runner& runner, const LoopOptions& options, std::unique_ptr<Drafter> drafter);
  ~StepLoop();

  // The error that submit() would return for the request alone: an empty prompt, ids outside the vocabulary, a prompt beyond
  // the context, bad sampling values. Reads nothing that changes and may be called from any thread.
  Status check(const GenerateRequest& request) const;
  // Also refuses what the cache could never hold, everything while max_waiting sequences wait, and what memory is too small
  // for.
  Result<RequestId> submit(GenerateRequest request);

  // One step for all sequences. False: nothing is left to do. What goes wrong within it, by an error of ours or for lack of
  // memory, ends one sequence where it concerns one, and otherwise those of the round, or its prompts; a lost device is thrown.
  bool step();
  void finish_records() { cache_.finish_records(); }  // waits for block records that a device still copies

  void cancel(RequestId id);  // ends it before its next token
  // The result of a finished request, once; nullptr while it runs.
  std::unique_ptr<Generation> take(RequestId id);

  SchedulerCounts counts() const;  // hits include tokens restored from host memory
  const CacheManager& cache() const { return cache_; }
  StepPhase phase() const { return phase_; }  // from any thread
  const StepTimes& last_step() const { return times_; }
  int64_t n_restored_tokens() const { return n_disk_hit_tokens_; }  // read from disk instead of computed
  void forget_prefixes() { scheduler_.forget_prefixes(); }          // frees the pages of prefixes that nobody uses

 private:
  Result<RequestId> enqueue(GenerateRequest request);
  bool run_step();
  Round next_round();
  void compute_round(Round& round);
  void end_round(const Round& round, const std::exception& thrown);
  Round plan();
  void run(Round& round);
  void compute(Round& round);
  std::optional<Round> look_ahead(const Round& last);
  void sample(Round& round);
  void draft(Round& round);
  void deliver();
  void retire_finished();

  Runner& runner_;
  Sampler sampler_;
  LoopOptions options_;
  Speculation speculation_;
  CacheManager cache_;
  Scheduler scheduler_;
  RequestId next_id_ = 1;
  int64_t n_disk_hit_tokens_ = 0;
  int64_t n_host_hit_tokens_ = 0;
  std::atomic<StepPhase> phase_ = StepPhase::kIdle;
  StepTimes times_;
  bool busy_ = false;           // the last step ran a round and left something to do
  Sequences sequences_;         // running and waiting, in order of submission
  std::optional<Round> ahead_;  // the next round, if it is enqueued already
  std::vector<std::pair<RequestId, std::unique_ptr<Generation>>> finished_;
};

}  // namespace levin
