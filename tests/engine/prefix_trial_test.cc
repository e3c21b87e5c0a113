// Trials of prefix hits (prefix_trial.h) on models with pages alone, with windows and entries, and with recurrent state.
// LEVIN_TRIALS=N runs N of them on each, which differ from the usual ones.
#include "engine/prefix_trial.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "engine/fake_model.h"
#include "engine/loaded_model.h"

namespace levin::test {
namespace {

// Returns what the trials ran into.
TrialCounts expect_right_answers(const Model& model, const RunnerOptions& options, int64_t n_trials) {
  const char* asked = std::getenv("LEVIN_TRIALS");
  const uint64_t first_seed = asked != nullptr ? 1'000'000 : 0;
  if (asked != nullptr) n_trials = std::atoll(asked);
  PrefixTrials trials(model, options);
  for (int64_t i = 0; i < n_trials && !testing::Test::HasFailure(); ++i) {
    Decisions decisions(first_seed + static_cast<uint64_t>(i));
    EXPECT_EQ(trials.run(decisions), "") << "trial " << i;
  }
  EXPECT_GT(trials.counts().n_hit_tokens, 100 * n_trials);
  EXPECT_GT(trials.counts().n_drafts_accepted, 0);
  EXPECT_GT(trials.counts().n_preempted, 0);
  return trials.counts();
}

class PrefixTrialTest : public testing::TestWithParam<const char*> {};

TEST_P(PrefixTrialTest, EveryAnswerIsThatOfTheRequestAlone) {
  constexpr int64_t kTrials = 20;
  if (const std::string why = why_not_on_tested_device(fixture_folder(GetParam())); !why.empty()) GTEST_SKIP() << why;
  const std::unique_ptr<Model> model = load_fixture(GetParam(), {.numerics = NumericsMode::kFast});
  expect_right_answers(*model, runner_options(0, 1), kTrials);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PrefixTrialTest,
                         testing::Values("v32-odd", "v4-flash", "v4-dspark", "glm-next", "v41-flash"),
                         [](const auto& fixture) { return test_name(fixture.param); });

// The fake model is fast, so it sees many more.
TEST(FakePrefixTrialTest, EveryAnswerIsThatOfTheRequestAlone) {
  constexpr int64_t kTrials = 150;
  for (const int64_t n_window : {0, 40}) {
    for (const uint32_t wrong_every : {0U, 3U}) {
      SCOPED_TRACE(testing::Message() << "window " << n_window << ", wrong every " << wrong_every);
      const FakeModel model(wrong_every, Device::kCpu, n_window);
      expect_right_answers(model, {}, kTrials);
      EXPECT_EQ(model.n_stale_rows, 0);
    }
  }
}

}  // namespace
}  // namespace levin::test
