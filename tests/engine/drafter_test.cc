// Any drafter that implements the interface: the toy one of docs/adding_a_drafter.md, those that are always right or always wrong, and
// none. Tokens never change, and the counts of drafts are what was proposed.
#include <gtest/gtest.h>

#include "engine/knowing_drafter.h"
#include "engine/loaded_model.h"
#include "engine/mtp_drafter.h"
#include "engine/oracle.h"
#include "engine/prompt_sets.h"
#include "engine/step_loop.h"
#include "engine/toy_drafter.h"
#include "engine/trace.h"

namespace levin::test {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kContext = 1024, kMostTokens = 64;

struct Answer {
  Tokens tokens;
  SpeculationStats stats;
};

// Two greedy answers and two sampled ones, side by side.
std::vector<Answer> answers(const Model& model, const std::vector<Tokens>& prompts, std::unique_ptr<Drafter> drafter,
                            Runner& runner, int n_drafts, double min_confidence = kDefaultMinConfidence) {
  StepLoop loop(
      runner,
      {.chunk_tokens = 64, .n_spec_steps = n_drafts, .min_confidence = min_confidence, .max_context_tokens = kContext},
      std::move(drafter));
  std::vector<RequestId> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request{.prompt = prompts[i], .max_tokens = kMostTokens};
    request.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.8, .stop_tokens = model.config().eos_tokens};
    request.sampling.seed = i;
    ids.push_back(must(loop.submit(std::move(request))));
  }
  while (loop.step()) continue;
  std::vector<Answer> out;
  for (const RequestId id : ids) {
    const std::unique_ptr<Generation> done = loop.take(id);
    Answer& answer = out.emplace_back();
    for (const TokenEvent& event : done->tokens) answer.tokens.push_back(event.token);
    answer.stats = done->speculation;
  }
  return out;
}

class DrafterTest : public testing::Test {
 protected:
  DrafterTest() : model_(load_model(demo_model_folder("demo-v32"), {.numerics = NumericsMode::kFast})) {
    for (const Tokens& prompt : prompt_set("code", demo_model_folder("demo-v32"))) {
      if (prompts_.size() < 4) prompts_.push_back(prompt);
    }
    plain_ = run(std::make_unique<NoDrafter>(), 0);
  }
  std::vector<Answer> run(std::unique_ptr<Drafter> drafter, int n_drafts) {
    Runner runner(*model_, runner_options(4 * (kContext + 1)));
    return answers(*model_, prompts_, std::move(drafter), runner, n_drafts);
  }
  std::vector<Tokens> texts() const {
    std::vector<Tokens> out;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      Tokens& text = out.emplace_back(prompts_[i]);
      text.insert(text.end(), plain_[i].tokens.begin(), plain_[i].tokens.end());
    }
    return out;
  }
  void expect_plain_tokens(const std::vector<Answer>& found) const {
    ASSERT_EQ(found.size(), plain_.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].tokens, plain_[i].tokens) << "answer " << i;
  }

  std::unique_ptr<Model> model_;
  std::vector<Tokens> prompts_;
  std::vector<Answer> plain_;
};

TEST(LookedUp, IsWhatCameBehindTheLastTwoTokens) {
  EXPECT_EQ(looked_up(Tokens{1, 2, 3, 4, 1, 2}, 3), (Tokens{3, 4, 1}));
  EXPECT_EQ(looked_up(Tokens{1, 2, 3, 1, 2, 4, 1, 2}, 1), (Tokens{4}));
  EXPECT_EQ(looked_up(Tokens{7, 7, 7}, 4), (Tokens{7}));
  EXPECT_EQ(looked_up(Tokens{1, 2, 3}, 3), Tokens());
  EXPECT_EQ(looked_up(Tokens{1, 2}, 3), Tokens());
}

TEST_F(DrafterTest, TheToyChangesNoTokenAndHasDraftsKept) {
  const std::vector<Answer> found = run(std::make_unique<LookupDrafter>(), 4);
  expect_plain_tokens(found);
  int64_t n_accepted = 0;
  for (const Answer& answer : found) n_accepted += answer.stats.n_accepted;
  EXPECT_GT(n_accepted, 0);
}

TEST_F(DrafterTest, DraftsThatAreAllRightAreAllKept) {
  const std::vector<Answer> found = run(std::make_unique<KnowingDrafter>(texts(), Knowledge::kRight), 5);
  expect_plain_tokens(found);
  for (const Answer& answer : found) {
    EXPECT_EQ(answer.stats.n_accepted, answer.stats.n_drafted);
    // All but the first token of an answer come out of passes that keep six of them, the last one fewer.
    EXPECT_EQ(answer.stats.n_verify_passes, (std::ssize(answer.tokens) - 1 + 5) / 6);
  }
}

TEST_F(DrafterTest, DraftsThatAreAllWrongAreAllRejected) {
  const std::vector<Answer> found = run(std::make_unique<KnowingDrafter>(texts(), Knowledge::kWrong), 5);
  expect_plain_tokens(found);
  for (const Answer& answer : found) {
    EXPECT_GT(answer.stats.n_drafted, 0);
    EXPECT_EQ(answer.stats.n_accepted, 0);
    EXPECT_EQ(answer.stats.n_verify_passes, std::ssize(answer.tokens) - 1);
  }
}

TEST_F(DrafterTest, ADrafterIsAskedForNoMoreThanItMakes) {
  const std::vector<Answer> found = run(std::make_unique<LookupDrafter>(), 16);
  expect_plain_tokens(found);
  for (const Answer& answer : found) EXPECT_EQ(answer.stats.accepted_per_position.size(), 4u);
}

class BlockDrafterTest : public testing::Test {
 protected:
  BlockDrafterTest() : model_(load_fixture("v4-dspark")), oracle_("v4-dspark") {
    const std::vector<int64_t> ids = oracle_.values<int64_t>("input_ids");
    prompts_ = {{ids.begin(), ids.end()}, {ids.begin(), ids.begin() + 20}, {7}, {ids.begin() + 30, ids.end()}};
  }
  std::vector<Answer> run(int n_drafts, double min_confidence) const {
    Runner runner(*model_, runner_options(4 * (kContext + 1)));
    return answers(*model_, prompts_, make_drafter(runner, n_drafts), runner, n_drafts, min_confidence);
  }
  void expect_tokens_of(const std::vector<Answer>& found, const std::vector<Answer>& expected) const {
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].tokens, expected[i].tokens) << "answer " << i;
  }

  std::unique_ptr<Model> model_;
  Oracle oracle_;
  std::vector<Tokens> prompts_;
};

// The whole block is run whatever is wanted of it: its rows see each other.
TEST_F(BlockDrafterTest, FewerDraftsAreTheFirstOfTheSameBlock) {
  const std::vector<float> logits = oracle_.values<float>("draft.logits");
  for (int n_drafts = 1; n_drafts <= 5; ++n_drafts) {
    const TraceOptions options{.ids = prompts_[0], .n_drafts = n_drafts};
    Runner runner(*model_, runner_options(trace_cache_tokens(options)));
    const TraceResult result = must(trace(runner, options));
    const auto n_values = static_cast<size_t>(n_drafts * model_->config().n_vocab);
    EXPECT_LE(relative_error(result.draft_logits, std::span(logits).first(n_values)), 2e-5) << n_drafts;
  }
}

TEST_F(BlockDrafterTest, NoMoreThanABlockIsDrafted) {
  const std::vector<Answer> plain = run(0, 0), whole = run(5, 0), more = run(7, 0);
  expect_tokens_of(whole, plain);
  expect_tokens_of(more, plain);
  for (size_t i = 0; i < more.size(); ++i) {
    EXPECT_EQ(more[i].stats.accepted_per_position.size(), 5u);
    EXPECT_EQ(more[i].stats.accepted_per_position, whole[i].stats.accepted_per_position);
  }
  const TraceOptions options{.ids = prompts_[0], .n_drafts = 6};
  Runner runner(*model_, runner_options(trace_cache_tokens(options)));
  const auto refused = trace(runner, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--drafts is 6, and 5 can be drafted"), std::string::npos)
      << refused.error().message;
}

// The first is always made; those after it as long as the model's own confidence in all before them is enough.
TEST_F(BlockDrafterTest, ItsOwnConfidenceDecidesHowManyAreVerified) {
  const std::vector<Answer> plain = run(0, 0), all = run(5, 0), low_confidence = run(5, 1);
  expect_tokens_of(low_confidence, plain);
  int64_t n_all = 0, n_low_confidence = 0, n_low_confidence_passes = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    n_all += all[i].stats.n_drafted;
    n_low_confidence += low_confidence[i].stats.n_drafted;
    n_low_confidence_passes += low_confidence[i].stats.n_verify_passes;
  }
  EXPECT_LE(n_low_confidence, n_low_confidence_passes);
  EXPECT_GT(n_low_confidence, 0);
  EXPECT_GT(n_all, 3 * n_low_confidence);
}

// Drafts take the noise of the request, so that they are kept at any temperature.
TEST_F(BlockDrafterTest, DraftsAreKeptWithTheNoiseOfTheRequest) {
  const std::vector<Answer> found = run(5, 0);
  for (size_t i = 0; i < 2; ++i) EXPECT_GT(found[i].stats.n_accepted, 0) << i;  // greedy and sampled
}

TEST_F(DrafterTest, TheMtpLayerChangesNoToken) {
  Runner runner(*model_, runner_options(4 * (kContext + 1)));
  expect_plain_tokens(answers(*model_, prompts_, make_drafter(runner, 3), runner, 3));
}

}  // namespace
}  // namespace levin::test
