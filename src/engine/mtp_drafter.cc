#include "engine/mtp_drafter.h"

#include <algorithm>

#include "decode/sampling.h"
#include "engine/draft_depth.h"
#include "engine/row_gather.h"

namespace levin {
namespace {

constexpr int64_t kMaxOwedRows = kPageTokens;  // of taps kept for a sequence that is not drafted for

struct MtpState final : DraftState {
  int64_t n_paired = 0;     // MTP rows of positions 0 .. n_paired-1 come from the trunk's own state
  std::vector<float> owed;  // [n, d_state] taps at positions n_paired .. that the MTP layer has yet to see
};

MtpState& own(DraftState& state) { return static_cast<MtpState&>(state); }
const MtpState& own(const DraftState& state) { return static_cast<const MtpState&>(state); }

SequenceChunk chunk(const DraftEntry& entry, std::span<const int32_t> tokens, int64_t first_position) {
  return {.tokens = tokens, .first_position = static_cast<int32_t>(first_position), .pages = entry.pages};
}

// Rows of one MTP step that the next one goes on from. Without sharing the picks are left behind.
class NextInput {
 public:
  explicit NextInput(const Model& model)
      : state_(state_storage_, model.d_state()),
        picks_(picks_storage_, model.config().n_picks),
        share_picks_(model.config().share_picks_across_drafts) {}
  void add(const ForwardRows& rows, int64_t r) {
    state_.add(rows.state.slice_first(r, 1));
    if (share_picks_) picks_.add(rows.picks.slice_first(r, 1));
  }
  MtpInput kept_by(Runner& runner) {
    return {.state = runner.keep(state_.view()), .picks = share_picks_ ? runner.keep(picks_.view()) : View()};
  }

 private:
  std::vector<float> state_storage_;
  std::vector<int32_t> picks_storage_;
  RowGather<float> state_;
  RowGather<int32_t> picks_;
  bool share_picks_;
};

}  // namespace

int MtpDrafter::max_drafts() const { return static_cast<int>(std::min<int64_t>(runner_.max_drafts(), kMaxSpecSteps)); }

std::unique_ptr<DraftState> MtpDrafter::open() const { return std::make_unique<MtpState>(); }

// The last token's pair is the first that the MTP layer has yet to see.
void MtpDrafter::resume(DraftState& state, int64_t n_cached, const ResumeState& tap) const {
  own(state).n_paired = std::max<int64_t>(n_cached - 1, 0);
  own(state).owed = tap ? *tap : std::vector<float>();
}

// The MTP layer's row of a pair lies one slot later.
int64_t MtpDrafter::n_settled(const DraftState& state, int64_t n_cached) const {
  return std::min(n_cached, own(state).n_paired + 1);
}

void MtpDrafter::commit(DraftRound& round) {
  const int64_t d_state = round.taps.dim(1);
  std::vector<float> storage;
  RowGather<float> taps(storage, d_state);
  std::vector<SequenceChunk> chunks;
  std::vector<int32_t> last_rows;  // at which the drafts of drafting_ start
  int64_t row = 0;
  drafting_.clear();
  for (DraftEntry& entry : round.entries) {
    MtpState& state = own(*entry.state);
    RowGather<float>(state.owed, d_state).add(round.taps.slice_first(entry.first_row, entry.n_committed));
    const int64_t n_owed = std::ssize(state.owed) / d_state;
    if (round.depth == 0 && !entry.of_prompt && n_owed < kMaxOwedRows) continue;
    taps.add(View::of(state.owed.data(), {n_owed, d_state}));
    chunks.push_back(chunk(entry,
                           entry.tokens.subspan(static_cast<size_t>(state.n_paired + 1), static_cast<size_t>(n_owed)),
                           state.n_paired));
    state.n_paired += n_owed;
    state.owed.clear();
    row += n_owed;
    if (entry.n_wanted > 0) {
      drafting_.push_back({.entry = &entry});
      last_rows.push_back(static_cast<int32_t>(row - 1));
    }
  }
  if (!chunks.empty()) rows_ = runner_.mtp(chunks, {.state = taps.view()}, last_rows);
}

void MtpDrafter::propose(DraftRound& round) {
  if (drafting_.empty()) return;
  choose(round);
  chain(round);
}

void MtpDrafter::chain(DraftRound& round) {
  View picks = rows_.picks;  // of the rows drafted from
  for (int step = 1; step < round.depth; ++step) {
    std::vector<SequenceChunk> chunks;
    std::vector<Drafting> going_on;
    NextInput next(runner_.model());
    for (size_t i = 0; i < drafting_.size(); ++i) {
      DraftEntry& entry = *drafting_[i].entry;
      if (step >= entry.n_wanted || std::ssize(entry.drafts) < step) continue;
      entry.doubted = drafting_[i].confidence < round.min_confidence;
      if (entry.doubted) continue;
      going_on.push_back(drafting_[i]);
      next.add({.hidden = {}, .state = rows_.state, .picks = picks}, static_cast<int64_t>(i));
      chunks.push_back(chunk(entry, std::span(entry.drafts).last(1), std::ssize(entry.tokens) - 1 + step - 1));
    }
    if (going_on.empty()) return;
    const MtpInput input = next.kept_by(runner_);
    rows_ = runner_.mtp(chunks, input);
    picks = input.picks;
    drafting_ = std::move(going_on);
    choose(round);
  }
}

void MtpDrafter::choose(const DraftRound& round) {
  const View logits = runner_.draft_logits(rows_.hidden);
  for (size_t i = 0; i < drafting_.size(); ++i) {
    DraftEntry& entry = *drafting_[i].entry;
    const std::span<const float> row = row_span(logits, static_cast<int64_t>(i));
    const std::optional<int32_t> token = entry.chooser->choose(row, entry.drafts);
    if (!token) continue;  // the target will say what is wrong, if anything is
    entry.drafts.push_back(*token);
    double& confidence = drafting_[i].confidence;
    if (std::ssize(entry.drafts) < entry.n_wanted && entry.chooser->logits_tell_confidence())
      confidence *= max_prob(row, round.min_confidence / confidence);
  }
}

}  // namespace levin
