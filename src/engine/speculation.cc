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

void Speculation::draft(Round& round) {
  round.depth = choose_depth(round);
  DraftRound drafts{.taps = round.rows.state, .depth = round.depth, .min_confidence = options_.min_confidence};
  std::vector<Sequence*> sequences;
  for (const RoundEntry& entry : round.entries) {
    if (entry.sequence->finished || entry.n_committed == 0) continue;
    sequences.push_back(entry.sequence);
    drafts.entries.push_back(draft_entry(entry, round.depth));
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

int Speculation::choose_depth(const Round& round) {
  if (!options_.adapt_depth) return options_.max_depth;
  std::vector<DraftAcceptance> sequences;
  for (const RoundEntry& entry : round.entries) {
    const Sequence& s = *entry.sequence;
    if (!s.finished && !s.in_prompt()) sequences.push_back(s.acceptance);
  }
  return sequences.empty() ? last_depth_ : depth_.next(sequences);
}

// Only a round that verified what another of its depth had made, for the same sequences and nothing else, tells what its
// depth costs.
void Speculation::observe_time(const Round& round, double seconds) {
  const bool steady = std::all_of(round.entries.begin(), round.entries.end(), [](const RoundEntry& entry) {
    return !entry.of_prompt && !entry.sequence->finished && entry.full_depth;
  });
  if (steady && round.depth == last_depth_ && options_.adapt_depth)
    depth_.observe(std::ssize(round.entries), round.depth, seconds);
  last_depth_ = round.depth;
}

}  // namespace levin
