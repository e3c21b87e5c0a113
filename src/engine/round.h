// One step of the loop as plain data, and the functions that fill it in, in this order:
//
//   plan     which sequences take part and with which tokens, as the scheduler says; admits and restores
//   run      enqueues the trunk for all rows, and the head for those that give tokens (Sampler::start)
//   sample   waits, and chooses the tokens (Sampler::finish); log probabilities of prompts
//   commit   the tokens and rows that the sequences have now
//
// Then a drafter proposes drafts for the next round (speculation.h), and settle reports the rows to the scheduler. Where the
// drafts are enqueued after the trunk, sample waits for them too: once a round. The loop (step_loop.h) decides when to call
// which, and what the host does in between.
//
// Ahead     on a device the next round may be enqueued while this one's results are still to come, if all that it needs of
//           them is there: all sequences decode, and a device chooses their tokens. Its rows come from this round's tokens and
//           drafts where they are, as many for each sequence as there may be; those that are not used become padding. The host
//           gives it the positions, and secures the pages, for the case that all rows are right. catch_up() then tells it what
//           this round gave, and from there on it is like any other. A sequence that ends meanwhile has rows in it in vain:
//           its entry goes
//
// A sequence may finish at any point of a round, by its caller too. Its entry is then ignored by the stages that follow.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  int64_t first_row = 0;      // in the packed step
  int64_t n_drafts = 0;       // the last of the tokens
  int64_t first_result = 0;   // of the rows that give tokens, among the head's results
  int32_t place = 0;          // among the sequences of the step
  int32_t place_before = -1;  // of a round ahead: in the step before
  bool of_prompt = false;     // a chunk of a prompt; otherwise the last token and its drafts
  bool full_depth = false;    // has all the drafts that a round of the last depth makes
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
  int64_t step = 0;                 // of the runner
  bool ahead = false;               // see above
  ForwardRows rows;                 // of the trunk, where the model runs
  std::optional<HeadCall> head;     // nullopt: no row gives a token
  View faults;                      // [T] i32 on the host: row status, there after sample has waited
  View block_end_taps;              // of all rows that end a block, in order; on the host likewise
  View first_taps;                  // of a round that makes no drafts: of all rows that are not of prompts; likewise
  std::optional<int> depth;         // drafts that this round makes for each sequence, at most; once that is decided
  bool drafts_enqueued = false;     // before the host knows which tokens are chosen

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

// The round after `last`, which is enqueued and made n_drafts for each sequence at most. nullopt: it has to wait for its results.
std::optional<Round> plan_round_ahead(Scheduler& scheduler, Runner& runner, const Round& last, int64_t n_drafts);
// The tokens of a round without drafts, of whose sequences each has the next row in `next`.
CarriedRows carry_tokens(Runner& runner, const Round& last, const Round& next);
void run_round_ahead(Runner& runner, Round& round, const CarriedRows& carried, bool keep_taps);
// What it holds now that the round before is over, which made last_depth drafts; and what is fetched of that.
void catch_up(Runner& runner, Round& round, int last_depth, bool keep_taps);

void sample_round(Runner& runner, Round& round);  // waits for its step
void commit_round(Round& round);
void settle_round(Scheduler& scheduler, const Drafter& drafter, const Round& round);

}  // namespace levin
