// Any drafter behind the interface: the toy one of docs/adding_a_drafter.md, those that are always right or always wrong, and
// none. Tokens never change, and the counts of drafts are what was proposed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/loaded_model.h"
#include "engine/mtp_drafter.h"
#include "engine/prompt_sets.h"
#include "engine/step_loop.h"
#include "engine/toy_drafter.h"

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
                            Runner& runner, int n_drafts) {
  StepLoop loop(runner, {.chunk_tokens = 64, .n_spec_steps = n_drafts, .max_context_tokens = kContext},
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

// Proposes what is known to come, or always something else.
class KnowingDrafter final : public Drafter {
 public:
  KnowingDrafter(std::vector<Tokens> texts, bool lies) : texts_(std::move(texts)), lies_(lies) {}
  int max_drafts() const override { return 5; }
  bool needs_taps() const override { return false; }
  std::unique_ptr<DraftState> open() const override { return std::make_unique<DraftState>(); }
  void resume(DraftState&, int64_t, const ResumeState&) const override {}
  int64_t n_settled(const DraftState&, int64_t n_cached) const override { return n_cached; }
  void commit(DraftRound&) override {}
  void propose(DraftRound& round) override {
    for (DraftEntry& entry : round.entries) {
      for (const Tokens& text : texts_) {
        if (!std::equal(entry.tokens.begin(), entry.tokens.end(), text.begin(),
                        text.begin() + std::min(std::ssize(entry.tokens), std::ssize(text))))
          continue;
        for (auto i = entry.tokens.size(); i < text.size() && std::ssize(entry.drafts) < entry.n_wanted; ++i)
          entry.drafts.push_back(lies_ ? std::abs(text[i] - 1) : text[i]);
        break;
      }
    }
  }

 private:
  std::vector<Tokens> texts_;
  bool lies_;
};

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
  const std::vector<Answer> found = run(std::make_unique<KnowingDrafter>(texts(), false), 5);
  expect_plain_tokens(found);
  for (const Answer& answer : found) {
    EXPECT_EQ(answer.stats.n_accepted, answer.stats.n_drafted);
    // All but the first token of an answer come out of passes that keep six of them, the last one fewer.
    EXPECT_EQ(answer.stats.n_verify_passes, (std::ssize(answer.tokens) - 1 + 5) / 6);
  }
}

TEST_F(DrafterTest, DraftsThatAreAllWrongAreAllRejected) {
  const std::vector<Answer> found = run(std::make_unique<KnowingDrafter>(texts(), true), 5);
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

TEST_F(DrafterTest, TheMtpLayerChangesNoToken) {
  Runner runner(*model_, runner_options(4 * (kContext + 1)));
  expect_plain_tokens(answers(*model_, prompts_, make_drafter(runner, 3), runner, 3));
}

}  // namespace
}  // namespace levin::test
