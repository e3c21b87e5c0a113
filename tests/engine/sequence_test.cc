// A sequence by itself: what a verify pass makes of drafts, and how an answer ends. Logits are written by hand.
#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

constexpr int64_t kVocab = 8;

// Answers greedily behind the prompt {1, 2, 3}, whose rows but the last one's are there.
std::unique_ptr<Sequence> make_sequence(int64_t max_tokens, std::vector<int32_t> stop_tokens = {}) {
  const SamplingParams sampling{.temperature = 0, .stop_tokens = std::move(stop_tokens)};
  auto s = std::make_unique<Sequence>(NoDrafter(), SamplingPlan::make(sampling, kVocab).value(), kPageTokens);
  s->tokens = {1, 2, 3};
  s->n_prompt = s->n_fill = 3;
  s->n_cached = 2;
  s->max_tokens = max_tokens;
  s->history.add_prompt(s->tokens);
  s->out->speculation.accepted_per_position.assign(4, 0);
  return s;
}

// Rows whose largest logit is at these tokens.
struct Rows {
  std::vector<float> values;
  std::vector<int32_t> faults;  // none of them has one

  explicit Rows(const std::vector<int32_t>& tokens) : values(tokens.size() * kVocab, 0.0F), faults(tokens.size(), 0) {
    for (size_t r = 0; r < tokens.size(); ++r) values[r * kVocab + static_cast<size_t>(tokens[r])] = 1;
  }
  std::vector<HeadResult> results() const {
    std::vector<HeadResult> out(faults.size());
    for (size_t r = 0; r < out.size(); ++r) out[r].logits = std::span(values).subspan(r * kVocab, kVocab);
    return out;
  }
};

TEST(SequenceTest, KeepsDraftsUpToTheFirstThatTheTargetDoesNotChoose) {
  auto s = make_sequence(10);
  s->drafts = {4, 5, 6};
  Rows rows({4, 5, 7, 1});
  const VerifiedDrafts verified = s->accept(rows.faults, rows.results());
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(s->n_cached, 5);
  EXPECT_EQ(verified.n_drafted, 3);
  EXPECT_EQ(verified.n_accepted, 2);
  EXPECT_TRUE(s->drafts.empty());
  EXPECT_FALSE(s->finished);
  EXPECT_EQ(s->out->speculation.accepted_per_position, (std::vector<int64_t>{1, 1, 0, 0}));
}

TEST(SequenceTest, GivesOneTokenMoreThanTheDraftsWhenAllAreAccepted) {
  auto s = make_sequence(10);
  s->drafts = {4, 5};
  Rows rows({4, 5, 6});
  EXPECT_EQ(s->accept(rows.faults, rows.results()).n_accepted, 2);
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(s->out->speculation.n_kept, 3);
}

TEST(SequenceTest, ADraftStoppedForLowConfidenceCountsAsRejected) {
  auto s = make_sequence(10);
  s->drafts = {4};
  s->low_confidence = true;
  Rows rows({4, 5});
  const VerifiedDrafts verified = s->accept(rows.faults, rows.results());
  EXPECT_EQ(verified.n_drafted, 2);
  EXPECT_EQ(verified.n_accepted, 1);
  EXPECT_FALSE(s->low_confidence);
  EXPECT_EQ(s->out->speculation.n_drafted, 1);
}

TEST(SequenceTest, AStopTokenAmongAcceptedDraftsEndsTheAnswer) {
  auto s = make_sequence(10, {5});
  s->drafts = {4, 5, 6};
  Rows rows({4, 5, 6, 7});
  s->accept(rows.faults, rows.results());
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kStop);
}

TEST(SequenceTest, TheLimitCutsAcceptedDraftsOff) {
  auto s = make_sequence(2);
  EXPECT_EQ(s->n_drafts_within(4), 1);
  s->drafts = {4, 5};
  Rows rows({4, 5, 6});
  s->accept(rows.faults, rows.results());
  EXPECT_EQ(s->n_answer_tokens(), 2);
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kLength);
}

TEST(SequenceTest, AFaultyRowEndsTheAnswerBehindTheTokensThatCameBeforeIt) {
  auto s = make_sequence(10);
  s->drafts = {4, 5};
  Rows rows({4, 5, 6});
  rows.faults[1] = 1;
  s->accept(rows.faults, rows.results());
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kError);
  ASSERT_TRUE(s->out->error.has_value());
  EXPECT_NE(s->out->error->message.find("position 3"), std::string::npos) << s->out->error->message;
}

TEST(SequenceTest, TokensThatADeviceChoseAreAcceptedAsThoseOfLogits) {
  auto s = make_sequence(10);
  s->drafts = {4, 5};
  const std::vector<int32_t> faults(3, 0);
  std::vector<HeadResult> rows(3);
  for (size_t r = 0; r < rows.size(); ++r) rows[r].chosen = {.token = r < 2 ? 4 : 6, .sound = 1};
  EXPECT_EQ(s->accept(faults, rows).n_accepted, 1);
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4, 4}));
  EXPECT_FALSE(s->finished);
  s->drafts = {};
  rows[0].chosen = ops::ChosenToken{};
  s->accept(faults, std::span(rows).first(1));
  EXPECT_TRUE(s->finished);
  ASSERT_TRUE(s->out->error.has_value());
  EXPECT_NE(s->out->error->message.find("position 5"), std::string::npos) << s->out->error->message;
}

TEST(SequenceTest, ADeviceMayChooseWhereTheHostHasNoUseForTheLogits) {
  auto s = make_sequence(10);
  const std::optional<ops::ChoiceRule> rule = s->rule(2);
  ASSERT_TRUE(rule.has_value());
  EXPECT_EQ(rule->position, 5U) << "behind three tokens and two drafts";
  EXPECT_EQ(rule->temperature, 0);
  s->request.logprobs = true;
  EXPECT_FALSE(s->rule(2).has_value());
}

TEST(SequenceTest, PreemptionForgetsDraftsAndRowsAndKeepsTheTokens) {
  auto s = make_sequence(10);
  s->drafts = {4};
  s->low_confidence = true;
  Rows rows({4, 5});
  s->accept(rows.faults, rows.results());
  s->drafts = {6};
  s->begin({.id = 0, .n_cached = 0, .resume = nullptr}, NoDrafter());
  EXPECT_TRUE(s->in_prompt());
  EXPECT_EQ(s->n_fill, 5);
  EXPECT_TRUE(s->drafts.empty());
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3, 4, 5}));
}

TEST(SequenceTest, ADraftIsChosenByTheAnswersRuleAndLeavesNoTrace) {
  auto s = make_sequence(10);
  Rows rows({6});
  const std::vector<int32_t> behind = {4, 5};
  EXPECT_EQ(s->choose(rows.results().front().logits, behind), 6);
  EXPECT_EQ(s->tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(s->logits_tell_confidence());
}

}  // namespace
}  // namespace levin
