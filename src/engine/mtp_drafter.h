// Drafts by the model's own MTP layer, one draft after another.
//
//   commit    "extend": the MTP layer runs the pairs (hidden of i, t_{i+1}) of the committed positions with the trunk's own
//             hidden states, overwriting what drafting wrote. Its last row gives d_1
//   propose   "chain": up to S - 1 times it runs (its last output, d_s) and gives d_{s+1}. Where the model says so
//             (share_topk_across_drafts) these steps attend to what the extend step's last row selected
//
// On a device both can be enqueued after the trunk that verifies the last drafts (enqueued_drafts.h); commit() and propose()
// then read what came of it. Rounds that need the host in between do not go that way: those with tokens that it chooses or
// with pending pairs, and all of an MTP layer with entries of its own, whose number depends on what was accepted.
//
// Pairs of a sequence that is not drafted for wait, up to kMaxPendingRows of them, so that plain rounds cost little and drafting
// can begin again. When those of one sequence run, those of others run with them. Where all that wait are more than memory is
// planned for, they run by several passes before that of the round's own pairs.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/drafter.h"
#include "engine/enqueued_drafts.h"
#include "engine/sampler.h"

namespace levin {

class MtpDrafter final : public Drafter {
 public:
  explicit MtpDrafter(Runner& runner)
      : runner_(runner), sampler_(runner), enqueued_{EnqueuedDrafts(runner), EnqueuedDrafts(runner)} {}

  int max_drafts() const override;
  bool needs_taps() const override { return true; }
  std::unique_ptr<DraftState> open() const override;
  void resume(DraftState& state, int64_t n_cached, const ResumeState& tap) const override;
  int64_t n_committed(const DraftState& state, int64_t n_cached) const override;
  void commit(DraftRound& round) override;
  void propose(DraftRound& round) override;
  bool enqueues() const override;
  bool can_enqueue(const EnqueuedRound& round) const override;
  void enqueue(const EnqueuedRound& round) override;
  CarriedRows carry(const EnqueuedRound& round) override;

 private:
  // A sequence that is drafted for, and how likely its drafts so far are to be kept together.
  struct Drafting {
    DraftEntry* entry = nullptr;
    double confidence = 1;
  };
  void keep_taps(const DraftRound& round, const std::vector<DraftEntry*>& waiting);
  void append_pending(const std::vector<DraftEntry*>& running);
  void extend(View taps, const std::vector<DraftEntry*>& running);
  void chain(DraftRound& round);
  void choose(const DraftRound& round);
  static bool continues(const Drafting& drafting, int64_t step, const DraftRound& round);
  static void take(const SampledDraft& sampled, Drafting& drafting, const DraftRound& round);
  bool has_room(DraftEntry& entry, const SequenceChunk& pairs) const;  // false: the entry has an error now

  EnqueuedDrafts& enqueued(int64_t step) { return enqueued_[static_cast<size_t>(step % 2)]; }
  int64_t n_pending_rows(const DraftEntry& entry) const;
  void commit_enqueued(DraftRound& round);
  void propose_enqueued(DraftRound& round);

  Runner& runner_;
  Sampler sampler_;
  std::vector<Drafting> drafting_;          // of the round
  ForwardRows rows_;                        // of the last MTP step, [number drafting, ...]
  std::array<EnqueuedDrafts, 2> enqueued_;  // of the last two steps
  bool is_followed_ = false;                // the last of them
};

}  // namespace levin
