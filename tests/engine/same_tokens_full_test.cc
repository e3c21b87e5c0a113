// The whole product of circumstances on prompts up to 512 tokens, and every pair of them at 4k and 12k tokens.
#include <gtest/gtest.h>

#include "engine/same_tokens.h"

namespace levin::test {
namespace {

void expect_none(const std::vector<std::string>& broken) {
  for (const std::string& line : broken) ADD_FAILURE() << line;
}

TEST(SameTokensFull, EveryCircumstanceUpTo512Tokens) {
  std::vector<std::vector<int32_t>> prompts = chat_prompts(demo_model_folder());
  prompts.push_back(text_prompt(demo_model_folder(), 4, 200));
  prompts.push_back(text_prompt(demo_model_folder(), 5, 512));
  expect_none(broken_promises(all_circumstances(), demo_model_folder(), prompts, 48));
}

TEST(SameTokensFull, EveryPairOfCircumstancesAt4kTokens) {
  expect_none(
      broken_promises(covering_circumstances(), demo_model_folder(), {text_prompt(demo_model_folder(), 6, 4096)}, 48));
}

TEST(SameTokensFull, EveryPairOfCircumstancesAt12kTokens) {
  expect_none(
      broken_promises(covering_circumstances(), demo_model_folder(), {text_prompt(demo_model_folder(), 7, 12000)}, 24));
}

}  // namespace
}  // namespace levin::test
