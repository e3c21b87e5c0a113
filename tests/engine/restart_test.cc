// Prefixes on disk: a process that is started again reads what another computed, and gives the same tokens, also after
// the other was killed at any moment.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "engine/loaded_model.h"
#include "engine/page_tiers.h"
#include "engine/same_tokens.h"
#include "engine/step_loop.h"

namespace levin::test {
namespace {

constexpr int kSpecSteps = 3;

struct Answered {
  std::vector<int32_t> tokens;
  SpeculationStats speculation;
  int64_t n_found = 0;
};

class RestartTest : public ::testing::Test {
 protected:
  struct Circumstance {
    int64_t chunk_tokens = 512;
    int64_t n_cache_tokens = 4096;
    bool stored = true;
  };

  // A loop as a process has it: everything of its own but the folder.
  struct Process {
    Process(const Model& model, const RestartTest& test, const Circumstance& c)
        : runner(model, runner_options(c.n_cache_tokens, 1)),
          store(c.stored ? std::make_unique<PageTiers>(0, test.open_store(model)) : nullptr),
          loop(runner, {.chunk_tokens = c.chunk_tokens,
                        .n_spec_steps = kSpecSteps,
                        .max_context_tokens = 2048,
                        .store = store.get()}) {}
    Answered run(GenerateRequest request) {
      const RequestId id = must(loop.submit(std::move(request)));
      while (loop.step()) {
        if (const auto done = loop.take(id)) return answered(*done);
      }
      return {};
    }
    Runner runner;
    std::unique_ptr<PageTiers> store;
    StepLoop loop;
  };

  std::unique_ptr<PageStore> open_store(const Model& model) const {
    const CacheLayout layout = model.cache_layout();
    return must(PageStore::open({.folder = folder_.path(),
                                 .max_bytes = int64_t{1} << 30,
                                 .fingerprint = {},
                                 .n_tokens = layout.block_tokens(),
                                 .n_row_bytes = layout.block_bytes(),
                                 .n_state = model.d_state(),
                                 .note = [](const std::string& line) { ADD_FAILURE() << line; }}));
  }
  static Answered answered(const Generation& g) {
    Answered out{.tokens = {}, .speculation = g.speculation, .n_found = g.n_found_tokens};
    for (const TokenEvent& event : g.tokens) out.tokens.push_back(event.token);
    return out;
  }
  static GenerateRequest request(std::vector<int32_t> prompt, double temperature = 0) {
    GenerateRequest out{.prompt = std::move(prompt), .max_tokens = 24};
    out.sampling = {.temperature = temperature, .seed = 5};
    return out;
  }

  TempDir folder_;
  const std::unique_ptr<Model> model_ = load_model(demo_model_folder(), {.numerics = NumericsMode::kFast});
  const std::vector<int32_t> prompt_ = text_prompt(demo_model_folder(), 70, 300);
};

TEST_F(RestartTest, AnotherProcessGoesOnFromTheDisk) {
  const GenerateRequest what = request(prompt_, 0.8);
  Process first(*model_, *this, {.stored = false});
  const Answered cold = first.run(what);
  Process(*model_, *this, {}).run(what);
  for (const int64_t chunk : {512, 96, 20}) {
    Process again(*model_, *this, {.chunk_tokens = chunk});
    const Answered found = again.run(what);
    EXPECT_EQ(found.n_found, 256) << chunk;
    EXPECT_EQ(again.loop.n_restored_tokens(), 256) << chunk;
    EXPECT_EQ(found.tokens, cold.tokens) << chunk;
    EXPECT_EQ(found.speculation.accepted_per_position, cold.speculation.accepted_per_position) << chunk;
    // the MTP layer's rows and state among them, and all that was written after them
    EXPECT_TRUE(page_contents(again.runner) == page_contents(first.runner)) << chunk;
  }
}

// The answer is stored with the prompt, and what was in nobody's memory is looked for in the folder too.
TEST_F(RestartTest, TheSecondTurnOfAConversationFindsTheFirst) {
  Answered first = Process(*model_, *this, {}).run(request(prompt_));
  std::vector<int32_t> second = prompt_;
  second.insert(second.end(), first.tokens.begin(), first.tokens.end());
  second.insert(second.end(), prompt_.begin(), prompt_.begin() + 90);
  const Answered cold = Process(*model_, *this, {.stored = false}).run(request(second));
  Process again(*model_, *this, {.chunk_tokens = 128});
  EXPECT_EQ(again.run(request(second)).tokens, cold.tokens);
  EXPECT_EQ(again.loop.n_restored_tokens(), 320);      // 300 tokens and 20 of the answer
  EXPECT_EQ(again.run(request(second)).n_found, 384);  // in memory now
  EXPECT_EQ(again.loop.n_restored_tokens(), 320);
}

TEST_F(RestartTest, LogProbabilitiesOfAPromptAreComputed) {
  Process(*model_, *this, {}).run(request(prompt_));
  Process again(*model_, *this, {});
  GenerateRequest what = request(prompt_);
  what.prompt_logprobs = true;
  size_t n_scored = 0;
  what.on_prompt = [&](const std::vector<RowLogprobs>& logprobs) { n_scored = logprobs.size(); };
  EXPECT_EQ(again.run(what).n_found, 0);
  EXPECT_EQ(n_scored, prompt_.size() - 1);
}

// Company, a cache too small for it, and pages that go to the disk and come back while others run.
TEST_F(RestartTest, TheDiskServesWhoWasSentBack) {
  std::vector<GenerateRequest> requests;
  std::vector<Answered> alone;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt = prompt_;
    prompt.resize(static_cast<size_t>(100 + 40 * i));
    prompt[static_cast<size_t>(20 * i)] = 7;
    requests.push_back(request(prompt, i % 2 == 0 ? 0 : 0.8));
    alone.push_back(Process(*model_, *this, {.stored = false}).run(requests.back()));
  }
  for (int turn = 0; turn < 2; ++turn) {
    Process process(*model_, *this, {.chunk_tokens = 150, .n_cache_tokens = 10 * kPageTokens});
    std::vector<RequestId> ids;
    for (const GenerateRequest& r : requests) ids.push_back(must(process.loop.submit(r)));
    while (process.loop.step()) continue;
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(answered(*process.loop.take(ids[i])).tokens, alone[i].tokens) << i;
    }
    EXPECT_GE(process.loop.n_restored_tokens(), turn == 0 ? 0 : 500);
  }
}

// `tools/serve_trial kill` does the same with the whole server, as often as wanted.
TEST_F(RestartTest, AKillAtAnyMomentNeverGivesAWrongToken) {
  const Answered right = Process(*model_, *this, {.stored = false}).run(request(prompt_));
  std::mt19937 random(11);
  int64_t most_restored = 0;
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Process process(*model_, *this, {.chunk_tokens = 64});
      while (true) process.run(request(prompt_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 150));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    Process again(*model_, *this, {});
    EXPECT_EQ(again.run(request(prompt_)).tokens, right.tokens) << round;
    most_restored = std::max(most_restored, again.loop.n_restored_tokens());
  }
  EXPECT_GT(most_restored, 0);
}

}  // namespace
}  // namespace levin::test
