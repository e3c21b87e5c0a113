#include "engine/mtp_drafter.h"

#include <algorithm>

#include "decode/sampling.h"
#include "engine/draft_depth.h"
#include "engine/row_gather.h"

namespace levin {
namespace {

constexpr int64_t kMaxPendingRows = kPageTokens;  // of taps kept for a sequence that is not drafted for

struct MtpState final : DraftState {
  int64_t n_draft_synced = 0;  // MTP rows of positions 0 .. n_draft_synced-1 come from the trunk's own state
  std::vector<float> pending;  // [n, d_state] taps at positions n_draft_synced .. that the MTP layer has yet to see
};

MtpState& own(DraftState& state) { return static_cast<MtpState&>(state); }
const MtpState& own(const DraftState& state) { return static_cast<const MtpState&>(state); }

SequenceChunk chunk(const DraftEntry& entry, std::span<const int32_t> tokens, int64_t first_position) {
  return {.tokens = tokens, .first_position = static_cast<int32_t>(first_position), .pages = entry.pages};
}

// Rows of one MTP step that the next one goes on from. Without sharing the selects are left behind.
class NextInput {
 public:
  explicit NextInput(const Model& model)
      : state_(state_storage_, model.d_state()),
        topk_(topk_storage_, model.config().n_topk),
        share_topk_(model.config().share_topk_across_drafts) {}
  void add(const ForwardRows& rows, int64_t r) {
    state_.add(rows.state.slice_first(r, 1));
    if (share_topk_) topk_.add(rows.topk.slice_first(r, 1));
  }
  MtpInput kept_by(Runner& runner) {
    return {.state = runner.keep(state_.view()), .topk = share_topk_ ? runner.keep(topk_.view()) : View()};
  }

 private:
  std::vector<float> state_storage_;
  std::vector<int32_t> topk_storage_;
  RowGather<float> state_;
  RowGather<int32_t> topk_;
  bool share_topk_;
};

}  // namespace

int MtpDrafter::max_drafts() const { return static_cast<int>(std::min<int64_t>(runner_.max_drafts(), kMaxSpecSteps)); }

std::unique_ptr<DraftState> MtpDrafter::open() const { return std::make_unique<MtpState>(); }

// The last token's pair is the first that the MTP layer has yet to see.
void MtpDrafter::resume(DraftState& state, int64_t n_cached, const ResumeState& tap) const {
  own(state).n_draft_synced = std::max<int64_t>(n_cached - 1, 0);
  own(state).pending = tap ? *tap : std::vector<float>();
}

// The MTP layer's row of a pair lies one slot later.
int64_t MtpDrafter::n_committed(const DraftState& state, int64_t n_cached) const {
  return std::min(n_cached, own(state).n_draft_synced + 1);
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
    RowGather<float>(state.pending, d_state).add(round.taps.slice_first(entry.first_row, entry.n_committed));
    const int64_t n_pending = std::ssize(state.pending) / d_state;
    if (round.depth == 0 && !entry.of_prompt && n_pending < kMaxPendingRows) continue;
    taps.add(View::of(state.pending.data(), {n_pending, d_state}));
    chunks.push_back(chunk(
        entry, entry.tokens.subspan(static_cast<size_t>(state.n_draft_synced + 1), static_cast<size_t>(n_pending)),
        state.n_draft_synced));
    state.n_draft_synced += n_pending;
    state.pending.clear();
    row += n_pending;
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
  View topk = rows_.topk;  // of the rows drafted from
  for (int step = 1; step < round.depth; ++step) {
    std::vector<SequenceChunk> chunks;
    std::vector<Drafting> going_on;
    NextInput next(runner_.model());
    for (size_t i = 0; i < drafting_.size(); ++i) {
      DraftEntry& entry = *drafting_[i].entry;
      if (step >= entry.n_wanted || std::ssize(entry.drafts) < step) continue;
      entry.low_confidence = drafting_[i].confidence < round.min_confidence;
      if (entry.low_confidence) continue;
      going_on.push_back(drafting_[i]);
      next.add({.hidden = {}, .state = rows_.state, .topk = topk}, static_cast<int64_t>(i));
      chunks.push_back(chunk(entry, std::span(entry.drafts).last(1), std::ssize(entry.tokens) - 1 + step - 1));
    }
    if (going_on.empty()) return;
    const MtpInput input = next.kept_by(runner_);
    rows_ = runner_.mtp(chunks, input);
    topk = input.topk;
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
