// The same tokens, always: answers do not depend on threads, chunking, speculation or company, at any temperature, in
// any numerics.
#include "engine/same_tokens.h"

#include <gtest/gtest.h>

#include "engine/loaded_model.h"

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

TEST_P(SameTokens, WhenTheDepthOfDraftsAdapts) {
  std::vector<Circumstance> circumstances;
  for (const double temperature : kTemperatures) {
    for (const bool in_company : {false, true}) {
      circumstances.push_back(
          {.temperature = temperature, .n_spec_steps = 3, .adapt_depth = true, .in_company = in_company});
    }
  }
  expect_none(broken_promises(circumstances, folder(), chat_prompts(folder()), 160));
}

TEST_P(SameTokens, OnALongPromptInEveryPairOfCircumstances) {
  expect_none(broken_promises(covering_circumstances(), folder(), {text_prompt(folder(), 3, 4000)}, 12));
}

INSTANTIATE_TEST_SUITE_P(Demo, SameTokens, testing::Values("demo-v32", "demo-glm"),
                         [](const auto& model) { return test_name(model.param); });

TEST(SameTokensOfFixtures, OfDeepseekV4InEveryPairOfCircumstances) {
  for (const char* fixture : {"v4-flash", "v4-fp4"}) {
    SCOPED_TRACE(fixture);
    const TempDir folder;
    must(materialise(fixture_folder(fixture), folder.path()));
    expect_none(
        broken_promises(covering_circumstances(), folder.path(), random_prompts(folder.path(), 3, {3, 50, 270}), 24));
  }
}

}  // namespace
}  // namespace levin::test
