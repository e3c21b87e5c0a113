// A sequence by itself: what a verify pass makes of drafts, how an answer ends, and when its tokens are delivered. Sampled tokens
// are written by hand.
#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kVocab = 8;

// Answers greedily after the prompt {1, 2, 3}, whose rows but the last one's are cached.
std::unique_ptr<Sequence> make_sequence(int64_t max_tokens, Tokens stop_tokens = {}) {
  const SamplingParams sampling{.temperature = 0, .stop_tokens = std::move(stop_tokens)};
  auto s = std::make_unique<Sequence>(NoDrafter(), GenerateRequest{.prompt = {1, 2, 3}, .sampling = sampling},
                                      SamplingPlan::make(sampling, kVocab).value(), kPageTokens);
  s->n_cached = 2;
  s->max_tokens = max_tokens;
  s->out->speculation.accepted_per_position.assign(4, 0);
  return s;
}

// What the sampler makes of rows with these tokens.
Sampled sampled_tokens(Sequence& s, const Tokens& tokens, int n_accepted) {
  Sampled out{.tokens = {}, .n_accepted = n_accepted, .failure = std::nullopt};
  for (const int32_t token : tokens) {
    EXPECT_TRUE(s.chooser.push(token));
    out.tokens.push_back({.token = token, .logits = {}});
  }
  return out;
}

Tokens delivered_tokens(const Sequence& s) {
  Tokens out;
  for (const TokenEvent& event : s.out->tokens) out.push_back(event.token);
  return out;
}

TEST(SequenceTest, CommitsTheTokensOfAVerifyPass) {
  auto s = make_sequence(10);
  s->drafts = {4, 5, 6};
  const VerifiedDrafts verified = s->commit_verified(sampled_tokens(*s, {4, 5, 7}, 2));
  s->deliver();
  EXPECT_EQ(s->tokens, (Tokens{1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(s->n_cached, 5);
  EXPECT_EQ(verified.n_drafted, 3);
  EXPECT_EQ(verified.n_accepted, 2);
  EXPECT_TRUE(s->drafts.empty());
  EXPECT_FALSE(s->finished);
  EXPECT_EQ(s->out->speculation.n_kept, 3);
  EXPECT_EQ(s->out->speculation.accepted_per_position, (std::vector<int64_t>{1, 1, 0, 0}));
}

TEST(SequenceTest, ADraftStoppedForLowConfidenceCountsAsRejected) {
  auto s = make_sequence(10);
  s->drafts = {4};
  s->low_confidence = true;
  const VerifiedDrafts verified = s->commit_verified(sampled_tokens(*s, {4, 5}, 1));
  EXPECT_EQ(verified.n_drafted, 2);
  EXPECT_EQ(verified.n_accepted, 1);
  EXPECT_FALSE(s->low_confidence);
  EXPECT_EQ(s->out->speculation.n_drafted, 1);
}

TEST(SequenceTest, AStopTokenEndsTheAnswer) {
  auto s = make_sequence(10, {5});
  s->drafts = {4, 5, 6};
  s->commit_verified(sampled_tokens(*s, {4, 5}, 2));
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kStop);
}

TEST(SequenceTest, TheLimitCutsAcceptedDraftsOff) {
  auto s = make_sequence(2);
  EXPECT_EQ(s->n_drafts_within(4), 1);
  s->drafts = {4, 5};
  s->commit_verified(sampled_tokens(*s, {4, 5, 6}, 2));
  EXPECT_EQ(s->n_answer_tokens(), 2);
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kLength);
}

TEST(SequenceTest, AFailureEndsTheAnswerAfterTheTokensBeforeIt) {
  auto s = make_sequence(10);
  s->drafts = {4, 5};
  Sampled sampled = sampled_tokens(*s, {4}, 1);
  sampled.failure = {RowFault::kNotNumbers, 3};
  s->commit_verified(sampled);
  s->deliver();
  EXPECT_EQ(delivered_tokens(*s), (Tokens{4}));
  EXPECT_TRUE(s->finished);
  EXPECT_EQ(s->out->finish_reason, FinishReason::kError);
  ASSERT_TRUE(s->out->error.has_value());
  EXPECT_NE(s->out->error->message.find("position 3"), std::string::npos) << s->out->error->message;
}

TEST(SequenceTest, PreemptionForgetsDraftsAndRowsAndKeepsTheTokens) {
  auto s = make_sequence(10);
  s->drafts = {4};
  s->commit_verified(sampled_tokens(*s, {4, 5}, 1));
  s->drafts = {6};
  s->low_confidence = true;
  s->begin({.id = 0, .n_cached = 0, .resume = nullptr}, NoDrafter());
  EXPECT_TRUE(s->in_prompt());
  EXPECT_EQ(s->n_fill, 5);
  EXPECT_TRUE(s->drafts.empty());
  EXPECT_FALSE(s->low_confidence);
  EXPECT_EQ(s->tokens, (Tokens{1, 2, 3, 4, 5}));
}

// ---- delivery ----

TEST(SequenceTest, TokensAreDeliveredOnceAndInOrder) {
  auto s = make_sequence(10);
  Tokens seen;
  s->request.on_token = [&](const TokenEvent& event) {
    seen.push_back(event.token);
    return Verdict::kGoOn;
  };
  s->commit_verified(sampled_tokens(*s, {4}, 0));
  EXPECT_TRUE(seen.empty());
  s->deliver();
  s->deliver();
  s->commit_verified(sampled_tokens(*s, {5}, 0));
  s->deliver();
  EXPECT_EQ(seen, (Tokens{4, 5}));
}

// The caller's word at a token holds, whatever was computed since.
TEST(SequenceTest, TheCallerEndsTheAnswerAtAnyDeliveredToken) {
  for (const Verdict verdict : {Verdict::kStop, Verdict::kCancel}) {
    for (const bool fails : {false, true}) {
      auto s = make_sequence(3);  // at the end of the three tokens
      s->request.on_token = [&](const TokenEvent& event) { return event.token == 5 ? verdict : Verdict::kGoOn; };
      s->drafts = {4, 5};
      Sampled sampled = sampled_tokens(*s, {4, 5, 6}, 2);
      if (fails) {
        sampled.tokens.pop_back();
        sampled.failure = {RowFault::kNotNumbers, 5};
      }
      s->commit_verified(sampled);
      s->deliver();
      EXPECT_TRUE(s->finished);
      EXPECT_FALSE(s->out->error.has_value());
      EXPECT_EQ(s->out->finish_reason, verdict == Verdict::kStop ? FinishReason::kStop : FinishReason::kCancelled);
      EXPECT_EQ(delivered_tokens(*s), (Tokens{4, 5}));
      EXPECT_EQ(s->out->speculation.n_kept, 2) << "tokens after the end are not counted";
      EXPECT_EQ(s->out->speculation.n_accepted, 2);
    }
  }
}

TEST(SequenceTest, AnAnswerThatStopsByItselfIsNotCancelledAtItsLastToken) {
  auto s = make_sequence(10, {5});
  s->request.on_token = [](const TokenEvent& event) { return event.token == 5 ? Verdict::kCancel : Verdict::kGoOn; };
  s->commit_verified(sampled_tokens(*s, {5}, 0));
  s->deliver();
  EXPECT_EQ(s->out->finish_reason, FinishReason::kStop);
}

TEST(SequenceTest, CancellingDropsWhatWasNotDelivered) {
  auto s = make_sequence(10);
  s->commit_verified(sampled_tokens(*s, {4}, 0));
  s->deliver();
  s->commit_verified(sampled_tokens(*s, {5}, 0));
  s->cancel();
  s->deliver();
  EXPECT_EQ(delivered_tokens(*s), (Tokens{4}));
  EXPECT_EQ(s->out->finish_reason, FinishReason::kCancelled);
}

TEST(SequenceTest, LogProbabilitiesOfThePromptComeBeforeTheFirstToken) {
  auto s = make_sequence(10);
  std::vector<std::string> seen;
  s->request.on_prompt = [&](const std::vector<RowLogprobs>& rows) { seen.push_back(std::to_string(rows.size())); };
  s->request.on_token = [&](const TokenEvent&) {
    seen.emplace_back("token");
    return Verdict::kGoOn;
  };
  s->prompt_logprobs.resize(2);
  s->commit_prompt(1);
  s->commit_first_token(sampled_tokens(*s, {4}, 0));
  s->deliver();
  EXPECT_EQ(seen, (std::vector<std::string>{"2", "token"}));
}

}  // namespace
}  // namespace levin
