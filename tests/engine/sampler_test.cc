// Where logits become tokens: verification of drafts row by row, and the rule of one sequence. Logits are the rows of a fake model
// (fake_model.h), whose head is the identity.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/fake_model.h"
#include "support/must.h"

namespace levin::test {
namespace {

using Tokens = std::vector<int32_t>;

const Tokens kPrompt = {1, 2, 3};

TokenChooser make_chooser(SamplingParams sampling = {.temperature = 0}, bool needs_logits = false) {
  return {must(SamplingPlan::make(std::move(sampling), kFakeVocab)), kPrompt, nullptr, needs_logits};
}

// Rows whose largest logit is at these tokens, and none of which is at fault.
struct Rows {
  std::vector<float> values;
  std::vector<int32_t> status;

  explicit Rows(const Tokens& tokens) : values(tokens.size() * kFakeVocab, 0.0F), status(tokens.size(), 0) {
    for (size_t r = 0; r < tokens.size(); ++r) values[r * kFakeVocab + static_cast<size_t>(tokens[r])] = 1;
  }
  float* row(size_t r) { return &values[r * kFakeVocab]; }
  View hidden() { return View::of(values.data(), {std::ssize(status), kFakeVocab}); }
  View faults() { return View::of(status.data(), {std::ssize(status)}); }
};

class SamplerTest : public ::testing::Test {
 protected:
  Sampled verify(TokenChooser& chooser, Rows& rows, const Tokens& drafts) {
    runner_.begin_step();
    const std::vector<SampleRows> asked = {
        {.chooser = &chooser, .first_row = 0, .drafts = drafts, .faults = rows.faults()}};
    const std::optional<HeadCall> head = sampler_.start(rows.hidden(), asked);
    return Sampler::finish(*head, asked).front();
  }

  FakeModel model_;
  Runner runner_{model_, {.n_cache_tokens = kPageTokens}};
  Sampler sampler_{runner_};
};

Tokens tokens_of(const Sampled& sampled) {
  Tokens out;
  for (const SampledToken& token : sampled.tokens) out.push_back(token.token);
  return out;
}

TEST_F(SamplerTest, AcceptsDraftsUpToTheFirstThatTheTargetDoesNotChoose) {
  TokenChooser chooser = make_chooser();
  Rows rows({4, 5, 7, 1});
  const Sampled sampled = verify(chooser, rows, {4, 5, 6});
  EXPECT_EQ(tokens_of(sampled), (Tokens{4, 5, 7}));
  EXPECT_EQ(sampled.n_accepted, 2);
  EXPECT_FALSE(sampled.failure.has_value());
  EXPECT_EQ(chooser.position(), 6);
}

TEST_F(SamplerTest, GivesOneTokenMoreThanTheDraftsIfAllAreAccepted) {
  TokenChooser chooser = make_chooser();
  Rows rows({4, 5, 6});
  const Sampled sampled = verify(chooser, rows, {4, 5});
  EXPECT_EQ(tokens_of(sampled), (Tokens{4, 5, 6}));
  EXPECT_EQ(sampled.n_accepted, 2);
}

TEST_F(SamplerTest, NothingFollowsAStopToken) {
  TokenChooser chooser = make_chooser({.temperature = 0, .stop_tokens = {5}});
  Rows rows({4, 5, 6, 7});
  EXPECT_EQ(tokens_of(verify(chooser, rows, {4, 5, 6})), (Tokens{4, 5}));
}

TEST_F(SamplerTest, ARowAtFaultGivesNoTokenAndNamesItsPosition) {
  TokenChooser chooser = make_chooser();
  Rows rows({4, 5, 6});
  rows.status[1] = 1;
  const Sampled sampled = verify(chooser, rows, {4, 5});
  EXPECT_EQ(tokens_of(sampled), (Tokens{4}));
  ASSERT_TRUE(sampled.failure.has_value());
  EXPECT_EQ(sampled.failure->fault, RowFault::kNotNumbers);
  EXPECT_EQ(sampled.failure->position, 3) << "the row of the first draft";
}

TEST_F(SamplerTest, LogitsThatAreNoNumbersFailAtTheTokenTheyShouldHaveGiven) {
  TokenChooser chooser = make_chooser();
  Rows rows({4, 5});
  rows.row(0)[9] = std::numeric_limits<float>::quiet_NaN();
  const Sampled sampled = verify(chooser, rows, {4});
  EXPECT_TRUE(sampled.tokens.empty());
  ASSERT_TRUE(sampled.failure.has_value());
  EXPECT_EQ(sampled.failure->position, 3);
}

// Penalties see the tokens of the rows before.
TEST_F(SamplerTest, ARowIsSampledAfterTheTokensOfTheRowsBeforeIt) {
  TokenChooser chooser = make_chooser({.temperature = 0, .presence_penalty = 2});
  Rows rows({4, 4, 4});
  rows.row(1)[8] = rows.row(2)[8] = 0.5F;
  const Sampled sampled = verify(chooser, rows, {4, 8});
  EXPECT_EQ(tokens_of(sampled).at(1), 8) << "4 has occurred";
  EXPECT_EQ(sampled.n_accepted, 2);
}

TEST_F(SamplerTest, RowsOfSeveralSequencesAreSampledTogether) {
  TokenChooser one = make_chooser(), other = make_chooser();
  Rows rows({4, 9, 5, 6});
  const Tokens drafts = {5};
  runner_.begin_step();
  const std::vector<SampleRows> asked = {
      {.chooser = &one, .first_row = 0, .drafts = {}, .faults = {}},
      {.chooser = &other, .first_row = 2, .drafts = drafts, .faults = {}, .first_result = 1}};
  const std::optional<HeadCall> head = sampler_.start(rows.hidden(), asked);
  const std::vector<Sampled> sampled = Sampler::finish(*head, asked);
  ASSERT_EQ(sampled.size(), 2U);
  EXPECT_EQ(tokens_of(sampled[0]), (Tokens{4}));
  EXPECT_EQ(tokens_of(sampled[1]), (Tokens{5, 6}));
}

TEST_F(SamplerTest, AStepWhoseRowsGiveNoTokenHasNothingToSample) {
  Rows rows({4});
  runner_.begin_step();
  EXPECT_FALSE(sampler_.start(rows.hidden(), {}).has_value());
}

// ---- the rule of one sequence ----

TEST(TokenChooserTest, TokensThatADeviceChoseAreThoseOfLogits) {
  const TokenChooser chooser = make_chooser();
  EXPECT_EQ(chooser.choose({.logits = {}, .chosen = ChosenToken{.token = 6, .sound = 1}}).token, 6);
  EXPECT_EQ(chooser.choose({.logits = {}, .chosen = ChosenToken{}}).fault, RowFault::kNotNumbers);
}

TEST(TokenChooserTest, ADeviceMayChooseWhereNobodyNeedsTheLogits) {
  const std::optional<ChoiceRule> rule = make_chooser().rule(2);
  ASSERT_TRUE(rule.has_value());
  EXPECT_EQ(rule->position, 5U) << "after three tokens and two drafts";
  EXPECT_EQ(rule->temperature, 0);
  EXPECT_FALSE(make_chooser({.temperature = 0}, true).rule(2).has_value());
  EXPECT_FALSE(make_chooser({.temperature = 0, .presence_penalty = 1}).rule(2).has_value());
}

TEST(TokenChooserTest, ADraftIsChosenByTheAnswersRuleAndLeavesNoTrace) {
  TokenChooser chooser = make_chooser({.temperature = 0, .presence_penalty = 2});
  Rows rows({6});
  rows.row(0)[4] = 0.5F;
  const Tokens drafts = {6};
  const DraftRow row{.chooser = &chooser, .drafts = drafts};
  const std::span<const float> logits(rows.row(0), static_cast<size_t>(kFakeVocab));
  EXPECT_EQ(Sampler::choose_draft(logits, row).token, 4) << "6 is among the drafts";
  EXPECT_EQ(chooser.position(), 3);
  EXPECT_EQ(Sampler::choose_draft(logits, {.chooser = &chooser, .drafts = {}}).token, 6);
  EXPECT_TRUE(chooser.logits_tell_confidence());
}

}  // namespace
}  // namespace levin::test
