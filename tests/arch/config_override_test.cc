// Keys of config.json that the user gives next to the file.
#include "arch/config_override.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "arch/load_config.h"
#include "support/fixture.h"
#include "support/must.h"

namespace levin::test {
namespace {

std::vector<ConfigOverride> overrides_of(const std::vector<std::string>& texts) {
  std::vector<ConfigOverride> out;
  for (const std::string& text : texts) out.push_back(must(parse_config_override(text)));
  return out;
}

Result<ParsedConfig> load_with(const std::string& fixture, const std::vector<std::string>& texts) {
  return load_model_config(fixture_folder(fixture).string(), Registry::built_in(), overrides_of(texts));
}

TEST(ConfigOverride, IsAKeyAndAJsonValue) {
  const auto text_of = [](const char* text) { return override_text(must(parse_config_override(text))); };
  EXPECT_EQ(text_of("index_topk_freq=4"), "index_topk_freq=4");
  EXPECT_EQ(text_of("index_share_for_mtp_iteration=true"), "index_share_for_mtp_iteration=true");
  EXPECT_EQ(text_of("index_topk_pattern=FSS"), "index_topk_pattern=\"FSS\"");
  EXPECT_EQ(text_of("index_topk_pattern=\"FSS\""), "index_topk_pattern=\"FSS\"");
  EXPECT_EQ(text_of("indexer_types=[\"full\", \"shared\"]"), "indexer_types=[\"full\", \"shared\"]");
  EXPECT_EQ(text_of("rope_scaling=null"), "rope_scaling=null");
  EXPECT_EQ(text_of("a=b=c"), "a=\"b=c\"");
  EXPECT_EQ(overrides_text(overrides_of({"a=1", "b=x"})), "a=1, b=\"x\"");
  for (const char* text : {"index_topk_freq", "=4", ""}) {
    const auto refused = parse_config_override(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUsage);
    EXPECT_NE(refused.error().message.find("expected KEY=VALUE"), std::string::npos) << refused.error().message;
  }
}

TEST(ConfigOverride, ReplacesWhatTheFileSays) {
  EXPECT_EQ(must(load_with("v32-odd", {})).config.n_indexers(), 4);
  const ModelConfig c = must(load_with("v32-odd", {"index_topk_freq=3", "num_nextn_predict_layers=0"})).config;
  EXPECT_EQ(c.owns_indexer, (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(c.n_mtp_layers, 0);
}

TEST(ConfigOverride, NullTakesTheFilesKeyAway) {
  const ModelConfig c = must(load_with("glm-shared", {"index_topk_freq=null"})).config;
  EXPECT_EQ(c.n_indexers(), c.n_layers);
}

struct Refused {
  const char* fixture;
  std::vector<std::string> overrides;
  ErrorKind kind;
  const char* message;  // a part of it
};

const Refused kRefused[] = {
    {"v32-odd",
     {"index_topk_frq=4"},
     ErrorKind::kUsage,
     "--override index_topk_frq=4: config.json of this model has no key \"index_topk_frq\" that this version knows; "
     "did "
     "you mean \"index_topk_freq\"?"},
    {"v32-odd", {"moon_phase=1"}, ErrorKind::kUsage, "correct the key or omit it"},
    {"v32-odd", {"o_groups=8"}, ErrorKind::kModelInvalid, "--override o_groups=8: o_groups is 8"},
    {"v32-odd",
     {"index_topk_freq=often"},
     ErrorKind::kModelInvalid,
     "config.json with --override index_topk_freq=\"often\": index_topk_freq is \"often\" (a string), expected"},
    {"v32-odd", {"index_topk_freq=0"}, ErrorKind::kModelInvalid, "expected a whole number from 1"},
    {"v32-odd", {"index_topk_pattern=SFFF"}, ErrorKind::kModelInvalid, "index_topk_pattern makes layer 0 \"shared\""},
    {"v32-odd", {"scoring_func=softmax"}, ErrorKind::kModelInvalid, "scoring_func is \"softmax\""},
    {"v4-flash", {"index_topk_freq=4"}, ErrorKind::kModelInvalid, "index_topk_freq is 4, which this version does not"},
    {"v32-odd",
     {"index_topk_freq=2", "index_topk_pattern=FFFF"},
     ErrorKind::kModelInvalid,
     "config.json with --override index_topk_freq=2 --override index_topk_pattern=\"FFFF\": index_topk_pattern makes "
     "layer 2 \"full\""},
};

TEST(ConfigOverride, IsCheckedAsTheFileIs) {
  for (const Refused& row : kRefused) {
    const auto parsed = load_with(row.fixture, row.overrides);
    ASSERT_FALSE(parsed.ok()) << row.message;
    EXPECT_EQ(parsed.error().kind, row.kind) << row.message;
    EXPECT_NE(parsed.error().message.find(row.message), std::string::npos) << parsed.error().message;
  }
}

}  // namespace
}  // namespace levin::test
