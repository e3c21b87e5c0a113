#include "engine/speculation.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

DraftEntry draft_entry(const RoundEntry& entry, int depth) {
  Sequence& s = *entry.sequence;
  return {.state = s.draft_state.get(),
          .chooser = &s.chooser,
          .pages = s.pages,
          .tokens = s.tokens,
          .first_row = entry.first_row,
          .n_committed = entry.n_committed,
          .of_prompt = entry.of_prompt,
          .n_wanted = s.in_prompt() ? 0 : std::max<int64_t>(s.n_drafts_within(depth), 0)};
}

// Drafts end before the last token of an answer, wherever a round ahead begins; one that it has room for costs nothing.
int64_t room_of(const RoundEntry& entry, bool ahead) {
  const Sequence& s = *entry.sequence;
  if (!ahead) return s.max_tokens - s.n_answer_tokens() - 1;
  return std::max<int64_t>(s.n_prompt + s.max_tokens - 2 - entry.first_position, 2);
}

EnqueuedEntry enqueued_entry(const RoundEntry& entry, bool ahead) {
  const Sequence& s = *entry.sequence;
  const int64_t end = entry.first_position + entry.n_rows();
  return {.state = s.draft_state.get(),
          .chooser = &s.chooser,
          .pages = s.pages,
          .rows = entry.tokens,
          .next_token = entry.gives_token ? 0 : s.tokens[static_cast<size_t>(end)],
          .first_position = entry.first_position,
          .n_chosen = entry.gives_token ? 1 + entry.n_drafts : 0,
          .room = room_of(entry, ahead),
          .place_before = entry.place_before};
}

}  // namespace

Speculation::Speculation(std::unique_ptr<Drafter> drafter, const SpeculationOptions& options)
    : drafter_(std::move(drafter)), options_(options), depth_(options.max_depth) {
  if (!on()) drafter_ = std::make_unique<NoDrafter>();
}

void Speculation::observe(const Round& round) {
  for (const RoundEntry& entry : round.entries) {
    if (!entry.of_prompt) typical_.observe(entry.verified.n_drafted, entry.verified.n_accepted);
  }
}

EnqueuedRound Speculation::enqueued_round(const Round& round) const {
  EnqueuedRound out{
      .step = round.step, .ahead = round.ahead, .depth = *round.depth, .min_confidence = options_.min_confidence};
  for (const RoundEntry& entry : round.entries) out.entries.push_back(enqueued_entry(entry, round.ahead));
  return out;
}

void Speculation::plan(Round& round) {
  if (!on() || !drafter_->enqueues()) return;
  round.depth = choose_depth(round);
  round.drafts_enqueued = *round.depth > 0 && drafter_->can_enqueue(enqueued_round(round));
}

void Speculation::give_up(const Round& round) { given_up_depth_ = round.depth; }

CarriedRows Speculation::carry(const Round& round) { return drafter_->carry(enqueued_round(round)); }

void Speculation::enqueue(const Round& round) {
  EnqueuedRound drafts = enqueued_round(round);
  drafts.taps = round.rows.state;
  drafts.faults = round.rows.faults;
  if (round.head) drafts.chosen = round.head->chosen_there;
  drafter_->enqueue(drafts);
}

void Speculation::draft(Round& round) {
  if (!round.depth) round.depth = choose_depth(round);
  DraftRound drafts{.taps = round.rows.state,
                    .first_taps = round.first_taps,
                    .step = round.step,
                    .depth = *round.depth,
                    .enqueued = round.drafts_enqueued,
                    .min_confidence = options_.min_confidence};
  std::vector<Sequence*> sequences;
  for (const RoundEntry& entry : round.entries) {
    if (entry.sequence->finished || entry.n_committed == 0) continue;
    sequences.push_back(entry.sequence);
    drafts.entries.push_back(draft_entry(entry, *round.depth));
  }
  drafter_->commit(drafts);
  for (const RoundEntry& entry : round.entries) {
    if (entry.of_prompt && entry.sequence->n_answer_tokens() == 1) entry.sequence->note_prompt_done();
  }
  drafter_->propose(drafts);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->drafts = std::move(drafts.entries[i].drafts);
    sequences[i]->low_confidence = drafts.entries[i].low_confidence;
    if (const std::optional<Error>& error = drafts.entries[i].error) sequences[i]->fail_internally(error->message);
  }
}

// The first drafts of an answer are made with its prompt.
int Speculation::choose_depth(const Round& round) {
  if (!options_.adapt_depth) return options_.max_depth;
  if (given_up_depth_) return *std::exchange(given_up_depth_, std::nullopt);
  std::vector<DraftAcceptance> sequences;
  bool decodes = false;
  for (const RoundEntry& entry : round.entries) {
    const Sequence& s = *entry.sequence;
    if (s.finished || !entry.gives_token) continue;
    sequences.push_back(s.acceptance);
    decodes = decodes || !entry.of_prompt;
  }
  if (sequences.empty()) return last_depth_;
  const int n_verified = round.ahead ? decided_depth_ : last_depth_;
  decided_depth_ = decodes ? depth_.next(sequences, n_verified) : depth_.first(sequences);
  return decided_depth_;
}

// Only a round of nothing but decoding, in which all sequences had the drafts that they were to have, tells what drafts cost.
void Speculation::observe_time(const Round& round, double seconds) {
  const bool alone = std::all_of(round.entries.begin(), round.entries.end(), [](const RoundEntry& entry) {
    return !entry.of_prompt && !entry.sequence->finished && entry.full_depth;
  });
  const int depth = round.depth.value_or(0);
  if (alone && options_.adapt_depth) {
    depth_.observe(
        {.n_sequences = std::ssize(round.entries), .n_verified = last_depth_, .n_made = depth, .seconds = seconds});
  }
  last_depth_ = depth;
}

}  // namespace levin
