// The scheduler: which tokens of which sequences the next step computes, and which sequences have cache pages. In the
// field's words, continuous batching with chunked prefill, and preemption by recomputation.
// Pure host logic over plain data: token ids, lengths and page numbers; no tensor, no clock. A recorded run replays to
// the same plans (sched/trace.h). The scheduler decides when a token is computed, never which token it is. A plan is
// final: the caller executes it unchanged.
//
// A sequence waits, then runs (has pages and takes part in steps), and may be preempted, that is, wait again. With n
// tokens, of which c have cache rows, it takes part in a step as
//
//   decode    c = n - 1: the row of the last token and one for each draft
//   prefill   c < n - 1: the next of the rows c .. n-1, a chunk per step. A preempted sequence is prefilled again,
//             including its answer so far
//
// In both cases the row of token n-1 gives the next token (StepEntry::gives_token).
//
// Rank      (priority, order of submission), lower first. Waiting sequences are admitted by rank; none overtakes
//           another
// Step      contains all decoding sequences, then prefill chunks by rank. Prefill gets the rows that decoding leaves of
//           step_tokens, at least kPageTokens of them, so neither starves the other. With prefill_first a step that
//           has prefill chunks has no decoding sequences: measurements begin when every prompt is computed
// Pages     of every kind are allocated as rows need them. If they run short, pages of unused cached prefixes are
//           evicted, then the running sequence of lowest rank is preempted. A sequence for which no lower rank is left
//           skips the step. So the highest rank always advances
// Ahead     a step may be planned before the progress of the last one is known: plan_ahead(). Where a sequence then begins is
//           not known either, so it gets pages for the case that all of its rows are right. Steps with prefill, admission or
//           preemption are not planned ahead
// Admission needs pages for all known tokens and one more for each running sequence, so that they are not preempted at
//           once. A sequence of better priority (not one of earlier submission) preempts others to be admitted, where that
//           makes enough room
// Prefixes  are looked up at admission. Complete blocks are committed while their sequence runs, so that later
//           sequences find them. Blocks of a prompt that exist as records are restored instead of computed, chunk by
//           chunk, even if they were stored after admission. A chunk that is restored completely, or after which the
//           next block exists as a record too, has no entry
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/cache_manager.h"

namespace levin {

using SequenceId = int64_t;

struct SchedulerOptions {
  int64_t step_tokens = 512;     // rows of a step; decoding may exceed it
  int64_t chunk_tokens = 512;    // maximum prefill rows of one sequence in a step
  int64_t max_running = 64;      // sequences
  int64_t max_waiting = 1024;    // sequences that have never run; more are refused
  int64_t lookahead_tokens = 1;  // slots that drafting writes after a step's rows; at most one is beyond limit_tokens.
                                 // A decoding sequence has no more rows
  bool prefill_first = false;    // no sequence decodes while one can be prefilled

  int64_t most_rows() const;  // of a step
};

struct SequenceSpec {
  SequenceId id = 0;
  int32_t priority = 0;                          // lower first
  int64_t limit_tokens = 0;                      // maximum length of prompt and answer
  const std::vector<int32_t>* tokens = nullptr;  // known tokens, not empty; may only grow; must live until remove()
  bool look_up = true;                           // use cached prefixes; false: compute all rows
};

struct StepEntry {
  SequenceId id = 0;
  int64_t first_position = 0;
  int64_t n_tokens = 0;      // known tokens, from first_position on
  int64_t n_drafts = 0;      // draft rows after them, only with gives_token; may be fewer than Progress::n_drafts
  bool gives_token = false;  // the last known token is among them

  int64_t n_rows() const { return n_tokens + n_drafts; }
  bool operator==(const StepEntry&) const = default;
};

struct Admitted {
  SequenceId id = 0;
  int64_t n_cached = 0;  // tokens of the prefix-cache hit: whole pages, not all tokens of the sequence
  ResumeState resume;    // of the last of them
};

// Blocks whose records the caller copies into a sequence's pages before the step runs.
struct Restored {
  SequenceId id = 0;
  int64_t n_before = 0;  // tokens with rows before
  int64_t n_cached = 0;  // and after
  std::vector<RestoredBlock> blocks;
};

struct StepPlan {
  std::vector<SequenceId> preempted;  // their rows and drafts are lost
  std::vector<Admitted> admitted;     // their only rows are those of the prefix-cache hit
  std::vector<Restored> restored;     // to be applied after admission
  std::vector<StepEntry> entries;     // each id once; empty only if there are blocks to restore, or no sequences

  int64_t n_rows() const;
};

// What a step did to one sequence.
struct Progress {
  int64_t n_cached = 0;     // tokens with valid rows
  int64_t n_committed = 0;  // of these, tokens with final rows in every cache, also the drafter's, which may lag
  int64_t n_drafts = 0;     // to be verified in the next step
  // One for each block that n_committed completed in this step; used only if prefixes are shared
  std::span<const ResumeState> resume;
};

enum class Submission : uint8_t {
  kAccepted,
  kQueueFull,  // max_waiting is reached
  kTooLong,    // limit_tokens needs more pages of some kind than the pool has
};

struct SchedulerCounts {
  int64_t n_waiting = 0;
  int64_t n_running = 0;
  int64_t n_pages = 0;  // of the kind with the smallest share of free pages (kv/cache_manager.h, CacheUsage)
  int64_t n_free_pages = 0;
  int64_t n_cached_pages = 0;    // of unused cached prefixes; all other pages are in use
  int64_t n_preempted = 0;       // preemptions since the start; the counts below are also since the start
  int64_t n_queried_tokens = 0;  // looked up in the prefix index at admission
  int64_t n_hit_tokens = 0;      // of these, found in shared pages
};

class TraceWriter;

class Scheduler {
 public:
  // `trace` may be null; otherwise it records every call and plan.
  Scheduler(const SchedulerOptions& options, CacheManager& cache, TraceWriter* trace = nullptr);

  // Queues a sequence whose id is not known yet; anything but kAccepted leaves it out and changes nothing.
  Submission submit(const SequenceSpec& spec);
  // Removes a finished or cancelled sequence, which is in no later plan. Its pages are released; complete blocks stay
  // in the prefix index.
  void remove(SequenceId id);

  // Plans the next step. After the step, call advance() for each entry whose sequence continues or has filled pages.
  StepPlan plan();
  void advance(SequenceId id, const Progress& progress);
  // Plans the step after the one last planned, of which advance() was not called yet; its caller executes it as well. Of every
  // sequence in that one which may have another row the entry has one token and n_drafts drafts, and first_position is the
  // last that it may begin at. nullopt: a sequence does not decode, one may be admitted, or pages are short.
  std::optional<StepPlan> plan_ahead(int64_t n_drafts);

  void forget_prefixes();  // frees the pages of prefixes that no sequence uses

  const SequencePages& pages(SequenceId id) const { return sequences_.at(id).cache.pages(); }
  SchedulerCounts counts() const;
  const SchedulerOptions& options() const { return options_; }

 private:
  using Rank = std::pair<int32_t, uint64_t>;  // priority, order of submission
  struct Sequence {
    SequenceSpec spec;
    Rank rank;
    SequenceCache cache;
    bool has_run = false;
    int64_t n_cached = 0;
    int64_t n_committed = 0;
    int64_t n_drafts = 0;
    int64_t n_planned_rows = 0;           // of the last plan, if it decodes there
    std::vector<RestoredBlock> restored;  // by the last plan

    int64_t n_tokens() const { return static_cast<int64_t>(spec.tokens->size()); }
    bool decoding() const { return n_cached == n_tokens() - 1 && n_cached > 0; }
  };

  Sequence& at(SequenceId id) { return sequences_.at(id); }
  int64_t slots_after(const Sequence& s, int64_t n_rows) const;
  bool secure(Sequence& s, int64_t n_slots, StepPlan& plan);
  bool room_for_drafts(Sequence& s);
  void preempt(Sequence& s, StepPlan& plan);
  void plan_decoding(StepPlan& plan);
  std::optional<StepPlan> decoding_ahead(int64_t n_drafts);
  bool may_admit() const;
  void plan_prefill(StepPlan& plan);
  void admit(StepPlan& plan);
  bool fits(const Sequence& s) const;
  bool would_fit(const Sequence& s) const;
  bool admit_one(Sequence& s, StepPlan& plan);
  void add_chunk(Sequence& s, StepPlan& plan);
  void restore(Sequence& s, int64_t n_rows, StepPlan& plan);
  void commit_restored(Sequence& s);
  int64_t prefill_room(const StepPlan& plan) const;

  SchedulerOptions options_;
  CacheManager& cache_;
  TraceWriter* trace_;
  std::map<SequenceId, Sequence> sequences_;
  std::map<Rank, SequenceId> waiting_;
  std::map<Rank, SequenceId> running_;
  uint64_t n_submitted_ = 0;
  int64_t n_new_ = 0;  // waiting sequences that have never run
  SchedulerCounts totals_;
};

}  // namespace levin
