// The whole product of circumstances on prompts up to 512 tokens, and every pair of them at 4k and 12k tokens; in parts
// that each end within minutes. DeepSeek-V4, of which there is no demonstration model, on its fixtures.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "engine/same_tokens.h"

namespace levin::test {
namespace {

constexpr const char* kModels[] = {"demo-v32", "demo-glm"};

void expect_same(const std::filesystem::path& folder, const std::vector<Circumstance>& circumstances,
                 const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens) {
  ASSERT_FALSE(circumstances.empty());
  for (const std::string& line : broken_promises(circumstances, folder, prompts, max_tokens)) ADD_FAILURE() << line;
}

// "demo_glm_fast_at_0_8_with_12000": model, mode, temperature, and what else the part is of.
template <class Row>
std::string part_name(const Row& row) {
  const auto [name, mode, temperature, last] = row.param;
  return fmt::format("{}_{}_at_{}_with_{}", test_name(name), numerics_mode_name(mode), temperature == 0 ? "0" : "0_8",
                     last);
}

std::vector<Circumstance> product_of(NumericsMode mode, double temperature, int n_spec_steps) {
  std::vector<Circumstance> circumstances = all_circumstances();
  std::erase_if(circumstances, [&](const Circumstance& c) {
    return c.numerics != mode || c.temperature != temperature || c.n_spec_steps != n_spec_steps;
  });
  return circumstances;
}

// Model, mode, temperature, number of drafts.
class WholeProduct : public testing::TestWithParam<std::tuple<const char*, NumericsMode, double, int>> {};

TEST_P(WholeProduct, UpTo512Tokens) {
  const auto [name, mode, temperature, n_spec_steps] = GetParam();
  const std::filesystem::path folder = demo_model_folder(name);
  std::vector<std::vector<int32_t>> prompts = chat_prompts(folder);
  prompts.push_back(text_prompt(folder, 4, 200));
  prompts.push_back(text_prompt(folder, 5, 512));
  expect_same(folder, product_of(mode, temperature, n_spec_steps), prompts, 48);
}

INSTANTIATE_TEST_SUITE_P(SameTokensFull, WholeProduct,
                         testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(kAllNumerics),
                                          testing::ValuesIn(kTemperatures), testing::Range(0, kMaxDrafts + 1)),
                         [](const auto& row) { return part_name(row); });

// Model, mode, temperature, length of the prompt.
class EveryPair : public testing::TestWithParam<std::tuple<const char*, NumericsMode, double, int64_t>> {};

TEST_P(EveryPair, AtLength) {
  const auto [name, mode, temperature, n_tokens] = GetParam();
  const std::filesystem::path folder = demo_model_folder(name);
  std::vector<Circumstance> circumstances = covering_circumstances();
  std::erase_if(circumstances,
                [&](const Circumstance& c) { return c.numerics != mode || c.temperature != temperature; });
  expect_same(folder, circumstances, {text_prompt(folder, 6, static_cast<size_t>(n_tokens))}, 24);
}

INSTANTIATE_TEST_SUITE_P(SameTokensFull, EveryPair,
                         testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(kAllNumerics),
                                          testing::ValuesIn(kTemperatures),
                                          testing::Values(int64_t{4096}, int64_t{12000})),
                         [](const auto& row) { return part_name(row); });

// Fixture, mode, temperature, number of drafts.
class WholeProductOfFixture : public testing::TestWithParam<std::tuple<const char*, NumericsMode, double, int>> {
 protected:
  void SetUp() override {
    const std::string why_not = why_not_on_tested_device(fixture_folder(std::get<0>(GetParam())));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
};

TEST_P(WholeProductOfFixture, UpTo512Tokens) {
  const auto [name, mode, temperature, n_spec_steps] = GetParam();
  const TempDir folder;
  must(materialise(fixture_folder(name), folder.path()));
  expect_same(folder.path(), product_of(mode, temperature, n_spec_steps),
              random_prompts(folder.path(), 8, {3, 50, 270, 512}), 48);
}

INSTANTIATE_TEST_SUITE_P(SameTokensFull, WholeProductOfFixture,
                         testing::Combine(testing::Values("v4-flash", "v4-fp4", "v4-dspark", "glm-next", "v41-flash"),
                                          testing::ValuesIn(kAllNumerics), testing::ValuesIn(kTemperatures),
                                          testing::Range(0, kMaxDrafts + 1)),
                         [](const auto& row) { return part_name(row); });

}  // namespace
}  // namespace levin::test
