// A drafter guesses which tokens follow an answer, so that one pass of the target model can keep several of them. The
// loop (step_loop.h) knows drafters by this interface alone, and verification does not ask who drafted: a draft is kept
// if it is the token that the target chooses at its place. So a drafter changes speed and never a token.
//
// In every step, for all sequences together:
//
//   commit    the trunk's taps of the positions that are now known to be right: the drafter brings its own caches up to
//             there, or keeps the taps for later
//   propose   drafts behind the committed tokens, each chosen by the sequence's own rule and noise; a draft that the drafter
//             is not sure enough of gets none behind it
//
// What a drafter keeps of a sequence is its DraftState. Rows in the caches survive restarts and preemption with the
// pages; what they do not hold is the tap of the last committed token, which the prefix cache keeps at the end of every
// block and hands to resume(). A drafter whose rows the trunk's own step writes needs no taps, and all of them are committed.
//
// Taps      ForwardRows::state, [T, Model::d_state()] f32: what the target exposes of each of its tokens, on the device
//           where the model runs on one
// Errors    none: a drafter that cannot guess proposes nothing
// Threads   those of the loop: one at a time
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner.h"
#include "kv/shared_pages.h"
#include "tensor/view.h"

namespace levin {

// What a drafter keeps of one sequence.
class DraftState {
 public:
  virtual ~DraftState() = default;
};

// How a sequence chooses: its sampling, noise, penalties and structure.
class DraftChooser {
 public:
  virtual ~DraftChooser() = default;
  // The token behind the answer and these drafts by its logits [V]; nullopt: none may be chosen.
  virtual std::optional<int32_t> choose(std::span<const float> logits, std::span<const int32_t> drafts) = 0;
  // How it chooses behind n drafts, if logits and place alone decide: then a device may. nullopt: by choose().
  virtual std::optional<ops::ChoiceRule> rule(int64_t /*n_drafts*/) const { return std::nullopt; }
  // Whether logits alone tell how likely a draft is to be kept. Where a structure has its say they do not: it leaves few
  // tokens, of which they know nothing.
  virtual bool logits_tell_confidence() const = 0;
};

// One sequence in a step.
struct DraftEntry {
  DraftState* state = nullptr;
  DraftChooser* chooser = nullptr;
  const SequencePages* pages = nullptr;
  std::span<const int32_t> tokens;  // prompt and answer, those chosen in this step at the end
  int64_t first_row = 0;            // of the taps: the first committed row ...
  int64_t n_committed = 0;          // ... and how many; tokens has at least one behind the last of them
  bool of_prompt = false;           // the rows are a chunk of the prompt
  int64_t n_wanted = 0;             // drafts that the sequence has use for; 0 within a prompt
  std::vector<int32_t> drafts;      // written by propose(): for positions tokens.size(), tokens.size() + 1, ...
  bool low_confidence = false;      // written by propose(): the next draft was not made for doubt
  // Written by propose() of drafters that say so of each draft: how likely it is kept if those before it are.
  std::vector<float> confidence;
};

struct DraftRound {
  View taps;                  // [T, d_state] f32, where the model runs
  int depth = 0;              // drafts that this step makes for every sequence, at most
  double min_confidence = 0;  // of the drafts that are to have one behind them, together
  std::vector<DraftEntry> entries;
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual int max_drafts() const = 0;  // in a round; 0: it never drafts
  // Whether resume() wants the tap of the last committed token.
  virtual bool needs_taps() const = 0;

  virtual std::unique_ptr<DraftState> open() const = 0;  // of a sequence without rows
  // The sequence goes on behind n tokens whose rows are in every cache; tap: of the last of them, null if there are none.
  virtual void resume(DraftState& state, int64_t n_cached, const ResumeState& tap) const = 0;
  // How many of the n_cached tokens with rows of the trunk have the drafter's right rows too.
  virtual int64_t n_committed(const DraftState& state, int64_t n_cached) const = 0;

  virtual void commit(DraftRound& round) = 0;
  virtual void propose(DraftRound& round) = 0;  // behind commit() of the same round
};

// No drafts: the loop decodes one token a step.
class NoDrafter final : public Drafter {
 public:
  int max_drafts() const override { return 0; }
  bool needs_taps() const override { return false; }
  std::unique_ptr<DraftState> open() const override { return std::make_unique<DraftState>(); }
  void resume(DraftState&, int64_t, const ResumeState&) const override {}
  int64_t n_committed(const DraftState&, int64_t n_cached) const override { return n_cached; }
  void commit(DraftRound&) override {}
  void propose(DraftRound&) override {}
};

// The drafter that the runner's model brings along, its MTP layer or its block drafter; none if it has none or n_drafts
// is 0.
std::unique_ptr<Drafter> make_drafter(Runner& runner, int n_drafts);

}  // namespace levin
