#include "engine/token_chooser.h"

#include <algorithm>
#include <utility>

namespace levin {

TokenChooser::TokenChooser(SamplingPlan plan, std::span<const int32_t> prompt,
                           std::unique_ptr<grammar::Matcher> matcher, bool needs_logits)
    : plan_(std::move(plan)), matcher_(std::move(matcher)), n_prompt_(std::ssize(prompt)), needs_logits_(needs_logits) {
  history_.add_prompt(prompt);
}

Choice TokenChooser::choose(const HeadResult& row) const {
  if (!row.chosen) return choose_token(row.logits, plan_, context());
  return row.chosen->sound != 0 ? Choice{.token = row.chosen->token} : Choice{.fault = RowFault::kNotNumbers};
}

bool TokenChooser::push(int32_t token) {
  if (matcher_ && !matcher_->push(token)) return false;
  history_.push(token);
  return true;
}

bool TokenChooser::ends_answer(int32_t token) const {
  const std::vector<int32_t>& stops = plan_.params().stop_tokens;
  return (matcher_ && matcher_->is_complete()) || std::find(stops.begin(), stops.end(), token) != stops.end();
}

std::optional<int32_t> TokenChooser::choose_draft(std::span<const float> logits, std::span<const int32_t> drafts) {
  const int n_matched = push_drafts(drafts);
  const Choice choice = choose_token(logits, plan_, context());
  pop_drafts(drafts, n_matched);
  return choice.ok() ? std::optional(choice.token) : std::nullopt;
}

std::optional<ChoiceRule> TokenChooser::rule(int64_t n_drafts) const {
  const bool by_logits_alone = plan_.by_logits_alone(history_.n_answer_tokens() + n_drafts);
  if (matcher_ || needs_logits_ || !by_logits_alone) return std::nullopt;
  const SamplingParams& params = plan_.params();
  return ChoiceRule{.seed = params.seed,
                    .temperature = params.temperature,
                    .position = static_cast<uint32_t>(position() + n_drafts),
                    .choice = params.choice};
}

// Of the token after all that were pushed. A structure may be complete before the first token, which must end the answer then.
ChoiceContext TokenChooser::context() const {
  return {.history = &history_,
          .position = static_cast<uint32_t>(position()),
          .mask = matcher_ ? matcher_->mask() : TokenMask()};
}

// Returns how many of them the structure allows.
int TokenChooser::push_drafts(std::span<const int32_t> drafts) {
  int n_matched = 0;
  for (const int32_t draft : drafts) {
    history_.push(draft);
    if (matcher_ && matcher_->push(draft)) ++n_matched;
  }
  return n_matched;
}

void TokenChooser::pop_drafts(std::span<const int32_t> drafts, int n_matched) {
  for (const int32_t draft : drafts) history_.pop(draft);
  for (int i = 0; i < n_matched; ++i) matcher_->pop();
}

}  // namespace levin
