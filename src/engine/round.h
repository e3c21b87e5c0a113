// One step of the loop as plain data, and the functions that fill it in, in this order:
//
//   plan     which sequences take part and with which tokens, as the scheduler says; admits and restores
//   run      enqueues the trunk for all rows, and the head for those that give tokens (Sampler::start)
//   sample   waits, and chooses the tokens (Sampler::finish); log probabilities of prompts
//   commit   the tokens and rows that the sequences have now
//
// Then a drafter proposes drafts for the next round (speculation.h), and settle reports the rows to the scheduler. The loop
// (step_loop.h) decides when to call which, and what the host does in between.
//
// A sequence may finish at any point of a round, by its caller too. Its entry is then ignored by the stages that follow.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "sched/scheduler.h"

namespace levin {

// The rows of one sequence.
struct RoundEntry {
  Sequence* sequence = nullptr;
  std::vector<int32_t> tokens;  // of the rows: known tokens, then drafts
  int64_t first_position = 0;
  int64_t first_row = 0;    // in the packed step
  int64_t n_drafts = 0;     // the last of the tokens
  bool of_prompt = false;   // a chunk of a prompt; otherwise the last token and its drafts
  bool full_depth = false;  // has all the drafts that a round of the last depth makes
  bool gives_token = false;
  Sampled sampled;          // by sample, if it gives tokens
  VerifiedDrafts verified;  // by commit, if it is not of a prompt
  int64_t n_committed = 0;  // by commit: rows whose tokens are now known to be right

  int64_t n_rows() const { return static_cast<int64_t>(tokens.size()); }
  bool ends_block(int64_t r) const { return (first_position + r + 1) % sequence->n_block_tokens == 0; }
};

struct Round {
  std::vector<RoundEntry> entries;  // empty: all that was planned has been restored
  int64_t n_host_hit_tokens = 0;    // restored by plan, from records in host memory
  int64_t n_disk_hit_tokens = 0;    // and on disk
  ForwardRows rows;                 // of the trunk, where the model runs
  View faults;                      // [T] i32 on the host: row status, there after sample has waited
  View block_end_taps;              // of all rows that end a block, in order; on the host likewise
  int depth = 0;                    // drafts that this round makes for each sequence, at most

  std::span<const int32_t> faults_of(const RoundEntry& entry) const {  // [n_rows]
    return {faults.data<int32_t>() + entry.first_row, static_cast<size_t>(entry.n_rows())};
  }
};

using Sequences = std::vector<std::unique_ptr<Sequence>>;

// last_depth: of the round that made the drafts which this one verifies.
// One whose pages have no room for its rows ends with an error and is not in the round.
Round plan_round(Scheduler& scheduler, const Sequences& sequences, const Drafter& drafter, Runner& runner,
                 int last_depth);
// keep_taps: the drafter needs those of the last row of each block.
void run_round(Runner& runner, Sampler& sampler, Round& round, bool keep_taps);
void sample_round(Runner& runner, Sampler& sampler, Round& round);
void commit_round(Round& round);
void settle_round(Scheduler& scheduler, const Drafter& drafter, const Round& round);

}  // namespace levin
