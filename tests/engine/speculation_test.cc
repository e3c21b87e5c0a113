// What the MTP layer brings: tokens kept per verify pass with three drafts, pooled over the passes of all answers to a
// set of prompts (prompts.jsonl), greedy. The models' READMEs have 3.32, 2.92 and 2.01 (demo-v32) and 2.71, 3.13 and
// 1.99 (demo-glm) for the three sets, measured by other programs in float32 and with every draft made. Drafts that are
// not made for doubt cost a few percent of that.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/loaded_model.h"
#include "engine/prompt_sets.h"
#include "engine/step_loop.h"

namespace levin::test {
namespace {

constexpr int64_t kMostTokens = 96;

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SpeculationStats> each;
  SpeculationStats total;
};

// The standard error of the mean acceptance length, had the prompts been drawn from many: that of a ratio of sums.
double standard_error(const Answers& answers) {
  double squares = 0;
  for (const SpeculationStats& s : answers.each) {
    const double passes = static_cast<double>(s.n_verify_passes);
    const double excess = passes * (s.mean_accept_length() - answers.total.mean_accept_length());
    squares += excess * excess;
  }
  const double n = static_cast<double>(answers.each.size());
  return std::sqrt(n / (n - 1) * squares) / static_cast<double>(answers.total.n_verify_passes);
}

Answers answer(const std::string& name, const std::string& set, NumericsMode numerics, double min_confidence) {
  const std::filesystem::path folder = demo_model_folder(name);
  const std::unique_ptr<Model> model = load_model(folder, {.numerics = numerics});
  constexpr int64_t kContext = 1024;
  Runner runner(*model, runner_options(kContext + 1));
  StepLoop loop(runner, {.n_spec_steps = 3, .min_confidence = min_confidence, .max_context_tokens = kContext});
  Answers answers;
  for (const std::vector<int32_t>& prompt : prompt_set(set, folder)) {
    GenerateRequest request{.prompt = prompt, .max_tokens = kMostTokens};
    request.sampling = {.temperature = 0, .stop_tokens = model->config().eos_tokens};
    const RequestId id = must(loop.submit(std::move(request)));
    while (loop.step()) continue;
    const std::unique_ptr<Generation> done = loop.take(id);
    std::vector<int32_t>& tokens = answers.tokens.emplace_back();
    for (const TokenEvent& event : done->tokens) tokens.push_back(event.token);
    answers.each.push_back(done->speculation);
    answers.total.n_kept += done->speculation.n_kept;
    answers.total.n_drafted += done->speculation.n_drafted;
    answers.total.n_verify_passes += done->speculation.n_verify_passes;
  }
  fmt::print("{}, {}, {}, drafts after {}: mean acceptance length {:.2f}, standard error {:.2f}\n", name, set,
             numerics_mode_name(numerics), min_confidence, answers.total.mean_accept_length(), standard_error(answers));
  return answers;
}

// The least that is accepted. Where no other program measured: what was measured here, less 0.05.
struct Bar {
  const char* model;
  const char* set;
  double reference;
  double official;
  double official_all;  // every draft made
  double tuned;         // official on a GPU's tuned kernels, which round at other places (expect_kept_in_official)
  double tuned_all;
  double fast;
  double fast_all;
};

class Speculation : public testing::TestWithParam<Bar> {};

// Why not, where the tested kernels round as another mode does.
std::string why_not(NumericsMode mode) {
  if (tested_numerics(mode) == mode) return "";
  return fmt::format("the tuned kernels run {} as official, which has tests of its own", numerics_mode_name(mode));
}

void expect_kept(const Bar& bar, NumericsMode numerics, double min_confidence, double least) {
  EXPECT_GE(answer(bar.model, bar.set, numerics, min_confidence).total.mean_accept_length(), least);
}

// Where tuned kernels round otherwise, greedy answers part from the CPU's at some token, and go through other text from there.
// What they keep is then another sample of what the CPU's answers keep: with answers to few prompts it may be below by chance, by
// two standard errors in one case of forty.
void expect_kept_in_official(const Bar& bar, double min_confidence, double on_cpu, double tuned) {
  if (!tests_tuned_kernels()) return expect_kept(bar, NumericsMode::kOfficial, min_confidence, on_cpu);
  const Answers answers = answer(bar.model, bar.set, NumericsMode::kOfficial, min_confidence);
  EXPECT_GE(answers.total.mean_accept_length(), tuned);
  EXPECT_GE(answers.total.mean_accept_length(), on_cpu - 2 * standard_error(answers));
}

TEST_P(Speculation, KeepsTokensInReference) {
  if (const std::string why = why_not(NumericsMode::kReference); !why.empty()) GTEST_SKIP() << why;
  expect_kept(GetParam(), NumericsMode::kReference, kDefaultMinConfidence, GetParam().reference);
}

TEST_P(Speculation, KeepsTokensInOfficial) {
  expect_kept_in_official(GetParam(), kDefaultMinConfidence, GetParam().official, GetParam().tuned);
}

TEST_P(Speculation, KeepsTokensInOfficialWhenEveryDraftIsMade) {
  expect_kept_in_official(GetParam(), 0, GetParam().official_all, GetParam().tuned_all);
}

TEST_P(Speculation, KeepsTokensInFast) {
  if (const std::string why = why_not(NumericsMode::kFast); !why.empty()) GTEST_SKIP() << why;
  expect_kept(GetParam(), NumericsMode::kFast, kDefaultMinConfidence, GetParam().fast);
}

TEST_P(Speculation, KeepsTokensInFastWhenEveryDraftIsMade) {
  if (const std::string why = why_not(NumericsMode::kFast); !why.empty()) GTEST_SKIP() << why;
  expect_kept(GetParam(), NumericsMode::kFast, 0, GetParam().fast_all);
}

INSTANTIATE_TEST_SUITE_P(Demo, Speculation,
                         testing::Values(Bar{"demo-v32", "twelve", 3.1, 3.16, 3.41, 3.18, 3.32, 3.1, 3.27},
                                         Bar{"demo-v32", "eighty", 2.7, 3.0, 3.08, 2.96, 3.05, 2.7, 2.87},
                                         Bar{"demo-v32", "code", 1.8, 1.78, 1.85, 1.9, 1.99, 1.8, 1.94},
                                         Bar{"demo-glm", "twelve", 2.5, 2.53, 2.61, 2.46, 2.58, 2.4, 2.58},
                                         Bar{"demo-glm", "eighty", 2.8, 2.79, 2.96, 2.81, 2.95, 2.9, 3.07},
                                         Bar{"demo-glm", "code", 1.8, 1.79, 1.94, 1.7, 1.83, 1.8, 1.9}),
                         [](const auto& row) {
                           return test_name(fmt::format("{}_{}", row.param.model, row.param.set));
                         });

// The more it asks for, the fewer drafts are made: at 1, as no logits are that sure, one a pass. No token changes.
TEST(MinConfidence, DecidesWhetherDraftsGetMoreBehindThem) {
  const Answers all = answer("demo-v32", "twelve", NumericsMode::kFast, 0);
  const Answers sure = answer("demo-v32", "twelve", NumericsMode::kFast, kDefaultMinConfidence);
  const Answers one = answer("demo-v32", "twelve", NumericsMode::kFast, 1);
  EXPECT_EQ(sure.tokens, all.tokens);
  EXPECT_EQ(one.tokens, all.tokens);
  const auto per_pass = [](const Answers& a) {
    return static_cast<double>(a.total.n_drafted) / static_cast<double>(a.total.n_verify_passes);
  };
  EXPECT_GT(per_pass(all), per_pass(sure));
  EXPECT_GT(per_pass(sure), 1);
  EXPECT_LE(per_pass(one), 1);
}

}  // namespace
}  // namespace levin::test
