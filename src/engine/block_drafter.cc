#include "engine/block_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/draft_depth.h"
#include "engine/row_span.h"
#include "engine/sampler.h"

namespace levin {

SequenceChunk BlockDrafter::Drafting::chunk() const {
  return {
      .tokens = block, .first_position = static_cast<int32_t>(std::ssize(entry->tokens) - 1), .pages = entry->pages};
}

int BlockDrafter::max_drafts() const {
  const int64_t n_block = runner_.model().config().n_draft_block;
  return static_cast<int>(std::min({n_block, runner_.max_drafts(), int64_t{kMaxSpecSteps}}));
}

void BlockDrafter::propose(DraftRound& round) {
  const auto n_block = static_cast<size_t>(runner_.model().config().n_draft_block);
  drafting_.clear();
  int64_t n_rows = 0;
  for (DraftEntry& entry : round.entries) {
    const int64_t n_drafts = std::min<int64_t>({entry.n_wanted, round.depth, max_drafts()});
    if (n_drafts <= 0) continue;
    Drafting d{.entry = &entry, .n_drafts = n_drafts, .first_row = n_rows, .block = {}};
    d.block.assign(n_block, runner_.model().block_drafting()->noise_token());
    d.block.front() = entry.tokens.back();
    if (const Status room = check_block_room(d.chunk()); !room.ok()) {
      entry.error = room.error();
      continue;
    }
    drafting_.push_back(std::move(d));
    n_rows += n_drafts;
  }
  if (drafting_.empty()) return;
  run_blocks();
  for (int64_t i = 0; choose(round, i);) ++i;
}

void BlockDrafter::run_blocks() {
  std::vector<SequenceChunk> blocks;
  for (const Drafting& d : drafting_) blocks.push_back(d.chunk());
  const ForwardRows rows = runner_.draft_blocks(blocks);
  std::vector<int32_t> drafted;
  for (size_t b = 0; b < drafting_.size(); ++b) {
    for (int64_t i = 0; i < drafting_[b].n_drafts; ++i)
      drafted.push_back(static_cast<int32_t>(b * drafting_[b].block.size()) + static_cast<int32_t>(i));
  }
  logits_ = runner_.draft_logits(runner_.gather(rows.hidden, drafted));
  state_ = runner_.gather(rows.state, drafted);
}

bool BlockDrafter::choose(const DraftRound& round, int64_t i) {
  std::vector<Drafting*> continuing;
  std::vector<int32_t> before, rows;
  for (Drafting& d : drafting_) {
    DraftEntry& entry = *d.entry;
    if (i >= d.n_drafts || std::ssize(entry.drafts) < i) continue;
    entry.low_confidence = d.confidence < round.min_confidence;
    if (entry.low_confidence) continue;
    continuing.push_back(&d);
    before.push_back(i == 0 ? entry.tokens.back() : entry.drafts.back());
    rows.push_back(static_cast<int32_t>(d.first_row + i));
  }
  if (continuing.empty()) return false;
  const DraftTerms terms =
      runner_.draft_terms(View::of(before.data(), {std::ssize(before)}), runner_.gather(state_, rows));
  for (size_t j = 0; j < continuing.size(); ++j) {
    Drafting& d = *continuing[j];
    const auto row = static_cast<int64_t>(j);
    const std::span<const float> term = row_span(terms.logits, row);
    float* const logits = logits_.row<float>(d.first_row + i);
    std::transform(term.begin(), term.end(), logits, logits, [](float t, float z) { return z + t; });
    const std::optional<int32_t> token = Sampler::choose_draft(row_span(logits_, d.first_row + i),
                                                               {.chooser = d.entry->chooser, .drafts = d.entry->drafts})
                                             .token;
    if (!token) continue;
    d.entry->drafts.push_back(*token);
    d.entry->confidence.push_back(1 / (1 + std::exp(-terms.confidence.row<float>(row)[0])));
    if (d.entry->chooser->logits_tell_confidence()) d.confidence *= d.entry->confidence.back();
  }
  return true;
}

}  // namespace levin
