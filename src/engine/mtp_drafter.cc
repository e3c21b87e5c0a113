#include "engine/mtp_drafter.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/draft_depth.h"

namespace levin {
namespace {

constexpr int64_t kMaxPendingRows = kPageTokens;  // of taps kept for a sequence that is not drafted for
constexpr int64_t kMostJoinedRows = 512;          // of a pass that sequences join before they have to

struct MtpState final : DraftState {
  int64_t n_draft_synced = 0;  // MTP rows of positions 0 .. n_draft_synced-1 come from the trunk's own state
  std::vector<float> pending;  // [n, d_state] taps at positions n_draft_synced .. that the MTP layer has yet to see
};

MtpState& own(DraftState& state) { return static_cast<MtpState&>(state); }
const MtpState& own(const DraftState& state) { return static_cast<const MtpState&>(state); }

// The committed rows of the taps, which follow n_before others.
void add_committed_rows(const DraftEntry& entry, int64_t n_before, std::vector<int32_t>& rows) {
  for (int64_t r = 0; r < entry.n_committed; ++r) rows.push_back(static_cast<int32_t>(n_before + entry.first_row + r));
}

SequenceChunk chunk(const DraftEntry& entry, std::span<const int32_t> tokens, int64_t first_position) {
  return {.tokens = tokens, .first_position = static_cast<int32_t>(first_position), .pages = entry.pages};
}

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

bool MtpDrafter::enqueues() const { return runner_.on_device() && !runner_.pools().kinds().mtp_entries; }

bool MtpDrafter::can_enqueue(const EnqueuedRound& round) const {
  if (round.ahead && !is_followed_) return false;
  return std::all_of(round.entries.begin(), round.entries.end(), [&](const EnqueuedEntry& entry) {
    const MtpState& state = own(*entry.state);
    const bool is_extended = state.pending.empty() && (round.ahead || state.n_draft_synced == entry.first_position);
    return is_extended && (entry.n_chosen == 0 || entry.chooser->rule(0)) && enqueued_[0].has_room(entry, round.depth);
  });
}

void MtpDrafter::enqueue(const EnqueuedRound& round) {
  enqueued(round.step).start(round);
  is_followed_ = enqueued(round.step).is_followed();
}

CarriedRows MtpDrafter::carry(const EnqueuedRound& round) {
  return enqueued(round.step).carry(round, enqueued(round.step - 1));
}

void MtpDrafter::commit(DraftRound& round) {
  if (round.enqueued) return commit_enqueued(round);
  std::vector<DraftEntry*> running, waiting;
  int64_t n_rows = 0;
  bool has_full = false;
  for (DraftEntry& entry : round.entries) {
    const bool is_full = n_pending_rows(entry) >= kMaxPendingRows;
    const bool waits = round.depth == 0 && !entry.of_prompt && !is_full;
    has_full |= is_full && !entry.of_prompt;
    if (!waits) n_rows += n_pending_rows(entry);
    (waits ? waiting : running).push_back(&entry);
  }
  // 64 rows read nearly all experts already, so sequences that began at different times share a pass.
  if (has_full) {
    const int64_t most_rows = std::min(kMostJoinedRows, runner_.most_rows());
    std::erase_if(waiting, [&](DraftEntry* entry) {
      const int64_t n = n_pending_rows(*entry);
      if (n_rows + n > most_rows) return false;
      n_rows += n;
      running.push_back(entry);
      return true;
    });
  }
  drafting_.clear();
  if (!waiting.empty()) keep_taps(round, waiting);
  if (n_rows > runner_.most_rows()) append_pending(running);
  if (!running.empty()) extend(round.taps, running);
}

// With those of this round.
int64_t MtpDrafter::n_pending_rows(const DraftEntry& entry) const {
  return std::ssize(own(*entry.state).pending) / runner_.model().d_state() + entry.n_committed;
}

// Keeps the taps of sequences that are not drafted for on the host, since rows of a step are gone with it.
void MtpDrafter::keep_taps(const DraftRound& round, const std::vector<DraftEntry*>& waiting) {
  View gathered;
  if (round.first_taps.empty()) {
    std::vector<int32_t> rows;
    for (const DraftEntry* entry : waiting) add_committed_rows(*entry, 0, rows);
    gathered = runner_.to_host(runner_.gather(round.taps, rows));
  }
  int64_t n_before = 0;
  for (const DraftEntry* entry : waiting) {
    std::vector<float>& pending = own(*entry->state).pending;
    const View own_rows = gathered.empty() ? round.first_taps.slice_first(entry->first_row, entry->n_committed)
                                           : gathered.slice_first(n_before, entry->n_committed);
    pending.insert(pending.end(), own_rows.data<float>(), own_rows.data<float>() + own_rows.n_elements());
    n_before += entry->n_committed;
  }
}

// The waiting pairs, of as many sequences at a time as a pass has rows for.
void MtpDrafter::append_pending(const std::vector<DraftEntry*>& running) {
  const int64_t d_state = runner_.model().d_state();
  std::vector<SequenceChunk> chunks;
  std::vector<float> states;
  const auto n_rows = [&] { return std::ssize(states) / d_state; };
  const auto run = [&] {
    if (!chunks.empty()) runner_.append_pairs(chunks, View::of(states.data(), {n_rows(), d_state}));
    chunks.clear(), states.clear();
  };
  for (DraftEntry* entry : running) {
    MtpState& state = own(*entry->state);
    const int64_t n = std::ssize(state.pending) / d_state;
    const SequenceChunk pairs =
        chunk(*entry, entry->tokens.subspan(static_cast<size_t>(state.n_draft_synced + 1), static_cast<size_t>(n)),
              state.n_draft_synced);
    if (n == 0 || !has_room(*entry, pairs)) continue;
    if (n_rows() + n > runner_.most_rows()) run();
    chunks.push_back(pairs);
    states.insert(states.end(), state.pending.begin(), state.pending.end());
    state.n_draft_synced += n;
    state.pending.clear();
  }
  run();
}

void MtpDrafter::extend(View taps, const std::vector<DraftEntry*>& running) {
  const int64_t d_state = runner_.model().d_state();
  std::vector<float> pending;
  for (const DraftEntry* entry : running) {
    const std::vector<float>& own_pending = own(*entry->state).pending;
    pending.insert(pending.end(), own_pending.begin(), own_pending.end());
  }
  const int64_t n_pending = std::ssize(pending) / d_state;  // rows before the taps
  std::vector<int32_t> rows, last_rows;                     // of the pairs; at which the drafts of drafting_ start
  std::vector<SequenceChunk> chunks;
  int32_t next_pending = 0;
  for (DraftEntry* entry : running) {
    MtpState& state = own(*entry->state);
    const int64_t n_own_pending = std::ssize(state.pending) / d_state, n_rows = n_own_pending + entry->n_committed;
    const int32_t first_pending = std::exchange(next_pending, next_pending + static_cast<int32_t>(n_own_pending));
    const SequenceChunk pairs =
        chunk(*entry, entry->tokens.subspan(static_cast<size_t>(state.n_draft_synced + 1), static_cast<size_t>(n_rows)),
              state.n_draft_synced);
    if (!has_room(*entry, pairs)) continue;
    chunks.push_back(pairs);
    for (int32_t i = 0; i < n_own_pending; ++i) rows.push_back(first_pending + i);
    add_committed_rows(*entry, n_pending, rows);
    state.n_draft_synced += n_rows;
    state.pending.clear();
    if (entry->n_wanted > 0) {
      drafting_.push_back({.entry = entry});
      last_rows.push_back(static_cast<int32_t>(std::ssize(rows) - 1));
    }
  }
  if (chunks.empty()) return;
  const View state = n_pending == 0 ? taps : runner_.place(View::of(pending.data(), {n_pending, d_state}), taps);
  rows_ = runner_.mtp(chunks, {.state = state, .rows = rows}, last_rows);
}

void MtpDrafter::commit_enqueued(DraftRound& round) {
  for (DraftEntry& entry : round.entries) own(*entry.state).n_draft_synced += entry.n_committed;
}

bool MtpDrafter::has_room(DraftEntry& entry, const SequenceChunk& pairs) const {
  const Status room = check_room(pairs, SlotRule::kAfterPosition, runner_.pools().kinds());
  if (!room.ok()) entry.error = room.error();
  return room.ok();
}

void MtpDrafter::propose(DraftRound& round) {
  if (round.enqueued) return propose_enqueued(round);
  if (drafting_.empty()) return;
  choose(round);
  chain(round);
}

void MtpDrafter::chain(DraftRound& round) {
  const bool share_topk = runner_.model().config().share_topk_across_drafts;
  for (int step = 1; step < round.depth; ++step) {
    std::vector<SequenceChunk> chunks;
    std::vector<Drafting> continuing;
    std::vector<int32_t> rows;  // of the last MTP step, which this one continues
    for (size_t i = 0; i < drafting_.size(); ++i) {
      DraftEntry& entry = *drafting_[i].entry;
      if (!continues(drafting_[i], step, round)) continue;
      const SequenceChunk pair = chunk(entry, std::span(entry.drafts).last(1), std::ssize(entry.tokens) - 1 + step - 1);
      if (!has_room(entry, pair)) continue;
      continuing.push_back(drafting_[i]);
      rows.push_back(static_cast<int32_t>(i));
      chunks.push_back(pair);
    }
    if (continuing.empty()) return;
    rows_ = runner_.mtp(chunks, {.state = rows_.state, .topk = share_topk ? rows_.topk : View(), .rows = rows});
    drafting_ = std::move(continuing);
    choose(round);
  }
}

void MtpDrafter::choose(const DraftRound& round) {
  std::vector<DraftRow> rows;
  for (const Drafting& d : drafting_) rows.push_back({.chooser = d.entry->chooser, .drafts = d.entry->drafts});
  const std::vector<SampledDraft> sampled = sampler_.choose_drafts(rows_.hidden, rows);
  for (size_t i = 0; i < drafting_.size(); ++i) take(sampled[i], drafting_[i], round);
}

// Whether a chain that was asked for `step` drafts so far gets another one.
bool MtpDrafter::continues(const Drafting& drafting, int64_t step, const DraftRound& round) {
  DraftEntry& entry = *drafting.entry;
  if (step >= entry.n_wanted || std::ssize(entry.drafts) < step) return false;
  entry.low_confidence = drafting.confidence < round.min_confidence;
  return !entry.low_confidence;
}

void MtpDrafter::take(const SampledDraft& sampled, Drafting& drafting, const DraftRound& round) {
  DraftEntry& entry = *drafting.entry;
  if (!sampled.token) return;
  entry.drafts.push_back(*sampled.token);
  if (std::ssize(entry.drafts) >= entry.n_wanted || !entry.chooser->logits_tell_confidence()) return;
  drafting.confidence *= sampled.confidence(round.min_confidence / drafting.confidence);
}

// The device has gone by the same rule.
void MtpDrafter::propose_enqueued(DraftRound& round) {
  for (DraftEntry& entry : round.entries) {
    const std::optional<EnqueuedDrafts::Result> result = enqueued(round.step).result_of(*entry.state);
    if (!result) continue;
    if (result->n_committed != entry.n_committed) {
      entry.error = Error{ErrorKind::kRuntime, fmt::format("the device found {} rows right, and the host {}",
                                                           result->n_committed, entry.n_committed)};
      continue;
    }
    Drafting drafting{.entry = &entry};
    for (int step = 0; step < round.depth && entry.n_wanted > 0; ++step) {
      if (step > 0 && !continues(drafting, step, round)) break;
      take(Sampler::draft_of(result->choices[static_cast<size_t>(step)]), drafting, round);
    }
  }
}

}  // namespace levin
