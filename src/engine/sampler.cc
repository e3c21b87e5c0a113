#include "engine/sampler.h"

#include <utility>

namespace levin {
namespace {

// Row by row the target's own token, until it is not the draft.
Sampled verify(const SampleRows& in, std::span<const HeadResult> results) {
  Sampled out;
  TokenChooser& chooser = *in.chooser;
  for (size_t j = 0; j < results.size(); ++j) {
    const int64_t position = chooser.position();
    if (!in.faults.empty() && in.faults.data<int32_t>()[j] != 0) {
      out.failure = {RowFault::kNotNumbers, position - 1};
      break;
    }
    const Choice choice = chooser.choose(results[j]);
    const RowFault fault = !choice.ok()                  ? choice.fault
                           : !chooser.push(choice.token) ? RowFault::kAgainstMask
                                                         : RowFault::kNone;
    if (fault != RowFault::kNone) {
      out.failure = {chooser.over_limit() ? RowFault::kTooManySteps : fault, position};
      break;
    }
    out.tokens.push_back({.token = choice.token, .logits = results[j].logits});
    if (j == in.drafts.size() || choice.token != in.drafts[j]) break;
    ++out.n_accepted;
    if (chooser.ends_answer(choice.token)) break;
  }
  return out;
}

}  // namespace

double SampledDraft::confidence(double least) const {
  return row.chosen ? row.chosen->probability : max_prob(row.logits, least);
}

std::optional<HeadCall> Sampler::start(View hidden, std::span<const SampleRows> rows) {
  std::vector<HeadRow> asked;
  for (const SampleRows& sequence : rows) {
    for (int64_t j = 0; j <= std::ssize(sequence.drafts); ++j) {
      asked.push_back({.number = static_cast<int32_t>(sequence.first_row + j), .rule = sequence.chooser->rule(j)});
    }
  }
  return asked.empty() ? std::nullopt : std::optional(runner_.start_head(hidden, asked));
}

std::vector<Sampled> Sampler::finish(const HeadCall& head, std::span<const SampleRows> rows) {
  const std::vector<HeadResult> results = Runner::results_of(head);
  std::vector<Sampled> out;
  out.reserve(rows.size());
  for (const SampleRows& sequence : rows) {
    const auto first = static_cast<size_t>(sequence.first_result);
    out.push_back(verify(sequence, std::span(results).subspan(first, sequence.drafts.size() + 1)));
  }
  return out;
}

std::vector<SampledDraft> Sampler::choose_drafts(View hidden, std::span<const DraftRow> rows) {
  std::vector<HeadRow> asked;
  for (const DraftRow& row : rows) {
    asked.push_back({.number = static_cast<int32_t>(asked.size()), .rule = row.chooser->rule(std::ssize(row.drafts))});
  }
  const std::vector<HeadResult> results = runner_.draft_head(hidden, asked);
  std::vector<SampledDraft> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::optional<ChosenToken>& chosen = results[i].chosen;
    out.push_back(chosen ? draft_of(*chosen) : choose_draft(results[i].logits, rows[i]));
  }
  return out;
}

SampledDraft Sampler::choose_draft(std::span<const float> logits, const DraftRow& row) {
  return {.token = row.chooser->choose_draft(logits, row.drafts), .row = {.logits = logits, .chosen = std::nullopt}};
}

SampledDraft Sampler::draft_of(const ChosenToken& chosen) {
  return {.token = chosen.sound != 0 ? std::optional(chosen.token) : std::nullopt,
          .row = {.logits = {}, .chosen = chosen}};
}

}  // namespace levin
