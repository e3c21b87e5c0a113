// Which tokens of which sequences the next step computes, and who holds the cache pages meanwhile.
//
// Pure host logic over plain data: token ids, lengths and page numbers; no tensor, no clock. A recorded run replays to
// the same plans (sched/trace.h). What is decided here changes when a token is computed, never which token it is. A plan
// is final: whoever carries it out changes nothing of it.
//
// A sequence waits, then runs (holds pages and has part in steps), and may be sent back to wait. With n tokens, of
// which c have cache rows, it has part in a step as
//
//   decode    c = n - 1: the last token's row and one for each draft
//   prefill   c < n - 1: the next rows of c .. n-1, a chunk at a time. A sequence that was sent back comes this way
//             again, its answer so far included
//
// The row of token n-1 gives the next token either way (StepEntry::gives_token).
//
// Rank      (priority, order of submission), lower first. Waiting sequences are admitted by rank, none overtakes
// Step      first every decoding sequence, then prefill chunks by rank. Prefill has the rows that decoding leaves of
//           step_tokens, and at least kPageTokens of them: neither can starve the other
// Pages     are taken as rows need them, of every kind. When one is short: pages of cached prefixes that nobody uses,
//           then those of the running sequence that ranks last, which goes back to wait. Who finds none left below its own rank sits
//           out the step, so the first in rank always moves on
// Admission needs pages for all tokens known, and one more for each running sequence, so that it does not end at
//           once; a better priority (not an earlier submission) sends others back for them
// Prefixes  are looked up at admission and committed as blocks fill up, so later sequences find them while this one
//           runs. Blocks of a prompt that exist as records are restored instead of computed, chunk by chunk, whenever
//           they came to be; a chunk that is restored whole, or behind which the next block is stored too, has no entry
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kv/cache_manager.h"

namespace levin {

using SequenceId = int64_t;

struct SchedulerOptions {
  int64_t step_tokens = 512;     // rows of a step; decoding may exceed it
  int64_t chunk_tokens = 512;    // prefill rows of one sequence in a step
  int64_t max_running = 64;      // sequences
  int64_t max_waiting = 1024;    // sequences that have never run; more are refused
  int64_t lookahead_tokens = 1;  // slots that drafting writes after a step's rows, at most one of them after the limit
};

struct SequenceSpec {
  SequenceId id = 0;
  int32_t priority = 0;                          // lower first
  int64_t limit_tokens = 0;                      // prompt and answer, the most there will be
  const std::vector<int32_t>* tokens = nullptr;  // so far, not empty; it only grows, and outlives the sequence's stay
  bool look_up = true;                           // take rows that are cached; false where all are to be computed
};

struct StepEntry {
  SequenceId id = 0;
  int64_t first_position = 0;
  int64_t n_tokens = 0;      // known ones, from first_position on
  int64_t n_drafts = 0;      // rows behind them; with gives_token alone. May be fewer than there are
  bool gives_token = false;  // the last known token is among them

  int64_t n_rows() const { return n_tokens + n_drafts; }
  bool operator==(const StepEntry&) const = default;
};

struct Admitted {
  SequenceId id = 0;
  int64_t n_cached = 0;  // tokens whose rows were found: whole pages, fewer than the sequence has
  ResumeState resume;    // of the last of them
};

// Blocks whose rows are to be put into a sequence's pages before the step runs.
struct Restored {
  SequenceId id = 0;
  int64_t n_before = 0;  // tokens that had rows
  int64_t n_cached = 0;  // and have now
  std::vector<RestoredBlock> blocks;
};

struct StepPlan {
  std::vector<SequenceId> sent_back;  // their rows are gone; drafts too
  std::vector<Admitted> admitted;     // have no rows but those found
  std::vector<Restored> restored;     // after admission
  std::vector<StepEntry> entries;     // each id once; none only when there are blocks to restore, or no sequences

  int64_t n_rows() const;
};

// What a step did to one sequence.
struct Progress {
  int64_t n_cached = 0;   // rows that are right now
  int64_t n_settled = 0;  // of them in every cache, the draft layer's too, which may lag behind
  int64_t n_drafts = 0;   // for the next step
  // One for each block that n_settled completed in this step; looked at where prefixes are shared
  std::span<const ResumeState> resume;
};

enum class Submission : uint8_t {
  kAccepted,
  kQueueFull,  // max_waiting
  kTooLong,    // limit_tokens needs more pages of some kind than there are
};

struct SchedulerCounts {
  int64_t n_waiting = 0;
  int64_t n_running = 0;
  int64_t n_pages = 0;  // of the kind that is nearest to running short (kv/cache_manager.h, CacheUsage)
  int64_t n_free_pages = 0;
  int64_t n_cached_pages = 0;    // of cached prefixes that nobody uses; the rest is in use
  int64_t n_sent_back = 0;       // since the start, as all below
  int64_t n_queried_tokens = 0;  // at admission
  int64_t n_found_tokens = 0;    // of those, in shared pages
};

class TraceWriter;

class Scheduler {
 public:
  // `trace`, if given, receives every call and plan.
  Scheduler(const SchedulerOptions& options, CacheManager& cache, TraceWriter* trace = nullptr);

  Submission submit(const SequenceSpec& spec);
  // Finished or cancelled: its pages are free or those of cached prefixes. In no later plan.
  void remove(SequenceId id);

  // The next step. After it, advance() for each of its entries whose sequence goes on or has filled pages.
  StepPlan plan();
  void advance(SequenceId id, const Progress& progress);

  void forget_prefixes();  // all that no sequence uses

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
    int64_t n_settled = 0;
    int64_t n_drafts = 0;
    std::vector<RestoredBlock> restored;  // by the last plan

    int64_t n_tokens() const { return static_cast<int64_t>(spec.tokens->size()); }
    bool decoding() const { return n_cached == n_tokens() - 1 && n_cached > 0; }
  };

  Sequence& at(SequenceId id) { return sequences_.at(id); }
  int64_t slots_after(const Sequence& s, int64_t n_rows) const;
  bool secure(Sequence& s, int64_t n_slots, StepPlan& plan);
  bool room_for_drafts(Sequence& s);
  void send_back(Sequence& s, StepPlan& plan);
  void plan_decoding(StepPlan& plan);
  void plan_prefill(StepPlan& plan);
  void admit(StepPlan& plan);
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
  int64_t n_new_ = 0;  // waiting and never run
  SchedulerCounts totals_;
};

}  // namespace levin
