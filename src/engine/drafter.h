// A drafter guesses the tokens that follow an answer, so that one pass of the target model can accept several of them. The
// loop (step_loop.h) knows drafters by this interface alone, and verification does not ask who drafted: a draft is accepted
// if it is the token that the target chooses at its position. So a drafter changes speed and never a token.
//
// In every step, for all sequences together:
//
//   commit    the trunk's taps of the positions that are now known to be right: the drafter brings its own caches up to
//             there, or keeps the taps for later
//   propose   drafts for the positions after the committed tokens, each chosen by the sequence's own rule and noise; a chain
//             ends with a draft of low confidence
//
// A drafter may be able to do both where the tokens are chosen, before the host knows them (can_enqueue()). Then the loop
// calls enqueue() after it has enqueued the trunk and its head, and waits for all of it at once; commit() and propose() of
// that round only take in what is there. The drafts are the same. A round may then be enqueued before the results of the one
// before it are there: carry() has its trunk compute from that one's drafts.
//
// What a drafter keeps of a sequence is its DraftState. Rows in the caches survive restarts and preemption with their
// pages. The tap of the last committed token is not in them: the prefix cache keeps it at the end of every block and passes
// it to resume(). A drafter whose rows are written by the trunk's own step needs no taps, and all of its rows are committed.
//
// Taps      ForwardRows::state, [T, Model::d_state()] f32: what the target exposes of each of its tokens, on the device
//           where the model runs on one
// Errors    a drafter that cannot guess proposes nothing. DraftEntry::error ends one sequence
// Threads   those of the loop: one at a time
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "engine/token_chooser.h"
#include "kv/shared_pages.h"
#include "tensor/view.h"

namespace levin {

// What a drafter keeps of one sequence.
class DraftState {
 public:
  virtual ~DraftState() = default;
};

// One sequence in a step.
struct DraftEntry {
  DraftState* state = nullptr;
  DraftChooser* chooser = nullptr;
  const SequencePages* pages = nullptr;
  std::span<const int32_t> tokens;  // prompt and answer, those chosen in this step at the end
  int64_t first_row = 0;            // of the taps: the first committed row ...
  int64_t n_committed = 0;          // ... and how many; at least one token follows the last of them
  bool of_prompt = false;           // the rows are a chunk of the prompt
  int64_t n_wanted = 0;             // drafts that the sequence can use; 0 within a prompt
  std::vector<int32_t> drafts;      // written by propose(): for positions tokens.size(), tokens.size() + 1, ...
  bool low_confidence = false;      // written by propose(): confidence was too low for another draft
  // Written by commit() or propose(): the drafter's caches lack rows of the sequence, which cannot continue.
  std::optional<Error> error;
  // Written by propose() of drafters that know it: the probability that a draft is accepted if those before it are.
  std::vector<float> confidence;
};

// The same before the step's tokens are chosen.
struct EnqueuedEntry {
  const DraftState* state = nullptr;
  const DraftChooser* chooser = nullptr;
  const SequencePages* pages = nullptr;
  std::span<const int32_t> rows;  // tokens that the step's rows compute: known ones, then drafts
  int32_t next_token = 0;         // after the last row, of a chunk inside a prompt
  int64_t first_position = 0;     // of the rows
  int64_t n_chosen = 0;           // rows that give tokens: the last ones; 0 inside a prompt
  int64_t room = 0;               // tokens that may follow the known ones, chosen ones and drafts together
  // Of a round ahead: its place among the sequences of the round before, whose drafts `rows` will be. first_position is then
  // the last that it may have, and room is for one draft at least, whatever is left.
  int32_t place_before = -1;
};

struct EnqueuedRound {
  View taps;           // [T, d_state] f32: of the rows of all entries, in order
  View faults;         // [T] i32: their row status
  View chosen;         // [sum of n_chosen, kChosenTokenWords] i32
  int64_t step = 0;    // of the runner
  bool ahead = false;  // the results of the round before, which was enqueued, are still to come
  int depth = 0;
  double min_confidence = 0;
  std::vector<EnqueuedEntry> entries;
};

// What a round ahead takes from the one before it, where the model runs.
struct CarriedRows {
  StepEdit edit;    // of the trunk's step
  View rules = {};  // [rows, kChoiceRuleWords] i32: how tokens are chosen; empty: the host knows
};

struct DraftRound {
  View taps;         // [T, d_state] f32, where the model runs
  View first_taps;   // the first of them on the host, those of all chunks that are not of prompts; empty: not there
  int64_t step = 0;  // of the runner
  int depth = 0;     // maximum drafts of a sequence in this step
  bool enqueued = false;      // enqueue() was called for it
  double min_confidence = 0;  // of all drafts of a chain together, for it to get another one
  std::vector<DraftEntry> entries;
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual int max_drafts() const = 0;  // in a round; 0: it never drafts
  // Whether resume() needs the tap of the last committed token.
  virtual bool needs_taps() const = 0;

  virtual std::unique_ptr<DraftState> open() const = 0;  // of a sequence without rows
  // The sequence continues after n_cached tokens whose rows are in every cache; tap: of the last of them, null if n_cached is 0.
  virtual void resume(DraftState& state, int64_t n_cached, const ResumeState& tap) const = 0;
  // How many of the n_cached tokens with rows of the trunk also have final rows of the drafter.
  virtual int64_t n_committed(const DraftState& state, int64_t n_cached) const = 0;

  virtual void commit(DraftRound& round) = 0;
  virtual void propose(DraftRound& round) = 0;  // after commit() of the same round

  // Whether it ever enqueues. The loop then decides how many drafts a round makes before it runs.
  virtual bool enqueues() const { return false; }
  // Whether enqueue() could make the drafts of a round, whose views are empty yet.
  virtual bool can_enqueue(const EnqueuedRound& /*round*/) const { return false; }
  virtual void enqueue(const EnqueuedRound& /*round*/) {}
  // Of a round ahead, before its trunk: it verifies the drafts of the round before, whatever they turn out to be.
  virtual CarriedRows carry(const EnqueuedRound& /*round*/) { return {}; }
};

// One that keeps nothing of a sequence: it has no rows in the caches, or they are written by the trunk's own step.
class TaplessDrafter : public Drafter {
 public:
  bool needs_taps() const final { return false; }
  std::unique_ptr<DraftState> open() const final { return std::make_unique<DraftState>(); }
  void resume(DraftState&, int64_t, const ResumeState&) const final {}
  int64_t n_committed(const DraftState&, int64_t n_cached) const final { return n_cached; }
  void commit(DraftRound&) final {}
};

// No drafts: the loop decodes one token a step.
class NoDrafter final : public TaplessDrafter {
 public:
  int max_drafts() const override { return 0; }
  void propose(DraftRound&) override {}
};

// The drafter of the runner's model: its MTP layer or its block drafter; NoDrafter if it has neither or n_drafts is 0.
std::unique_ptr<Drafter> make_drafter(Runner& runner, int n_drafts);

}  // namespace levin
