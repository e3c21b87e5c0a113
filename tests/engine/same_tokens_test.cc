// The same tokens, always: answers do not depend on threads, chunking, speculation or company, at any temperature, in
// any numerics; in f32 nor do they depend on the kernel set.
#include "engine/same_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "engine/loaded_model.h"
#include "engine/trace.h"

namespace levin::test {
namespace {

void expect_none(const std::vector<std::string>& broken) {
  for (const std::string& line : broken) ADD_FAILURE() << line;
}

class SameTokens : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return demo_model_folder(GetParam()); }
};

TEST_P(SameTokens, OnShortPromptsInEveryPairOfCircumstances) {
  expect_none(broken_promises(covering_circumstances(), folder(), chat_prompts(folder()), 32));
}

std::vector<Circumstance> with_depths_up_to(int n_spec_steps) {
  std::vector<Circumstance> circumstances;
  for (const double temperature : kTemperatures) {
    for (const bool in_company : {false, true}) {
      circumstances.push_back(
          {.temperature = temperature, .n_spec_steps = n_spec_steps, .adapt_depth = true, .in_company = in_company});
    }
  }
  return circumstances;
}

TEST_P(SameTokens, WhenTheDepthOfDraftsAdapts) {
  expect_none(broken_promises(with_depths_up_to(3), folder(), chat_prompts(folder()), 160));
}

// Six times what the indexer selects, and more than the largest chunk; same_tokens_full_test.cc has longer ones.
TEST_P(SameTokens, OnALongPromptInEveryPairOfCircumstances) {
  expect_none(broken_promises(covering_circumstances(), folder(), {text_prompt(folder(), 3, 1500)}, 12));
}

INSTANTIATE_TEST_SUITE_P(Demo, SameTokens, testing::Values("demo-v32", "demo-glm"),
                         [](const auto& model) { return test_name(model.param); });

class SameTokensOfModelsWithState : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string why_not = why_not_on_tested_device(fixture_folder(GetParam()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
};

TEST_P(SameTokensOfModelsWithState, InEveryPairOfCircumstances) {
  const TempDir folder;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  expect_none(
      broken_promises(covering_circumstances(), folder.path(), random_prompts(folder.path(), 3, {3, 50, 270}), 24));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SameTokensOfModelsWithState,
                         testing::Values("v4-flash", "v4-fp4", "v4-dspark", "glm-next", "v41-flash"),
                         [](const auto& fixture) { return test_name(fixture.param); });

TEST(SameTokensOfFixtures, OfABlockDrafterWhenTheDepthOfDraftsAdapts) {
  const TempDir folder;
  must(materialise(fixture_folder("v4-dspark"), folder.path()));
  expect_none(broken_promises(with_depths_up_to(5), folder.path(), random_prompts(folder.path(), 9, {40, 200}), 160));
}

// Whole models, so that no op may choose a kernel of another tree: more tokens than the indexer selects, a chunk that
// does not divide them, decoding and drafts.
class SameLogits : public testing::TestWithParam<Isa> {
 protected:
  static TraceResult traced(Isa isa) {
    const std::unique_ptr<Model> model = load_model(demo_model_folder(), {.numerics = NumericsMode::kReference});
    const TraceOptions options{
        .ids = text_prompt(demo_model_folder(), 3, 300), .n_greedy = 4, .n_drafts = 3, .n_chunk_tokens = 128};
    RunnerOptions runner = runner_options(trace_cache_tokens(options));
    runner.isa = isa;
    Runner run(*model, runner);
    return must(trace(run, options));
  }
};

TEST_P(SameLogits, InF32OnEveryKernelSet) {
  if (!is_usable(GetParam())) GTEST_SKIP() << "this build or processor has no " << isa_name(GetParam());
  const TraceResult a = traced(Isa::kAvx2), b = traced(GetParam());
  const auto same_bits = [](const std::vector<float>& x, const std::vector<float>& y) {
    return !x.empty() && std::ranges::equal(std::as_bytes(std::span(x)), std::as_bytes(std::span(y)));
  };
  EXPECT_TRUE(same_bits(a.logits, b.logits));
  EXPECT_TRUE(same_bits(a.hidden_tail, b.hidden_tail));
  EXPECT_TRUE(same_bits(a.draft_logits, b.draft_logits));
  EXPECT_EQ(a.topk, b.topk);
  EXPECT_EQ(a.greedy_ids, b.greedy_ids);
}

INSTANTIATE_TEST_SUITE_P(Isas, SameLogits, testing::Values(Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16),
                         [](const auto& isa) { return test_name(std::string(isa_name(isa.param))); });

}  // namespace
}  // namespace levin::test
