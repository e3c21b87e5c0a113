// How one sequence chooses its tokens: by its sampling parameters, noise, penalties and structure, from a row of logits.
//
// Drafts are chosen by the same rule and noise as the target's own tokens: that makes agreement likely and never changes a
// token. A chooser knows the tokens of its sequence and neither the model nor the other sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "decode/sampling.h"
#include "engine/head_rows.h"
#include "grammar/matcher.h"

namespace levin {

// What a drafter may ask of a sequence.
class DraftChooser {
 public:
  virtual ~DraftChooser() = default;
  // The token that follows the sequence and these drafts, by its logits [V]; nullopt: there is none that may be chosen.
  virtual std::optional<int32_t> choose_draft(std::span<const float> logits, std::span<const int32_t> drafts) = 0;
  // How the token after n drafts is chosen, if logits and position alone decide: then a device may choose it. Rules of one
  // sequence differ in the position alone, and if the next token has one so has every token after it.
  virtual std::optional<ChoiceRule> rule(int64_t /*n_drafts*/) const { return std::nullopt; }
  // Whether the draft layer's logits alone tell how likely a draft is to be accepted. With a structure they do not: it
  // excludes tokens of which they know nothing.
  virtual bool logits_tell_confidence() const = 0;
};

class TokenChooser final : public DraftChooser {
 public:
  // `matcher` may be null. `needs_logits`: the caller reads every row's logits, so no device may keep them.
  TokenChooser(SamplingPlan plan, std::span<const int32_t> prompt, std::unique_ptr<grammar::Matcher> matcher,
               bool needs_logits);

  int64_t position() const { return n_prompt_ + history_.n_answer_tokens(); }  // of the next token

  Choice choose(const HeadResult& row) const;  // the next token
  bool push(int32_t token);                    // appends it; false, and nothing done: the structure does not allow it
  bool ends_answer(int32_t token) const;       // the last token: it is a stop token, or completes the structure
  // Whether the last choice failed, or push, because the structure can be read in too many ways.
  bool over_limit() const { return matcher_ && matcher_->over_limit(); }

  std::optional<int32_t> choose_draft(std::span<const float> logits, std::span<const int32_t> drafts) override;
  std::optional<ChoiceRule> rule(int64_t n_drafts) const override;
  bool logits_tell_confidence() const override { return !matcher_; }

 private:
  ChoiceContext context() const;
  int push_drafts(std::span<const int32_t> drafts);
  void pop_drafts(std::span<const int32_t> drafts, int n_matched);

  SamplingPlan plan_;
  TokenHistory history_;
  std::unique_ptr<grammar::Matcher> matcher_;  // of the answer so far
  int64_t n_prompt_;
  bool needs_logits_;
};

}  // namespace levin
