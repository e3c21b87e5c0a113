// The same tokens, always: answers do not depend on threads, chunking, speculation or company, at any temperature, in
// any numerics.
#include "engine/same_tokens.h"

#include <gtest/gtest.h>

namespace levin::test {
namespace {

void expect_none(const std::vector<std::string>& broken) {
  for (const std::string& line : broken) ADD_FAILURE() << line;
}

TEST(SameTokens, OnShortPromptsInEveryPairOfCircumstances) {
  expect_none(broken_promises(covering_circumstances(), demo_model_folder(), chat_prompts(demo_model_folder()), 32));
}

TEST(SameTokens, OnALongPromptInEveryPairOfCircumstances) {
  expect_none(
      broken_promises(covering_circumstances(), demo_model_folder(), {text_prompt(demo_model_folder(), 3, 4000)}, 12));
}

}  // namespace
}  // namespace levin::test
