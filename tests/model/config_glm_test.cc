// GLM-5's part of a config: the quirks of its files and the schedule of its indexers.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "arch/glm/architecture.h"
#include "arch/load_config.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "support/must.h"

namespace levin {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::JsonValue;

JsonObject released_config(const char* name) {
  const std::string path = fmt::format("{}/tests/fixtures/{}/config.json", LEVIN_SOURCE_DIR, name);
  const std::string text = test::must(io::read_file(path));
  return *test::must(io::parse_json(text, "config.json")).as_object();
}

Result<ParsedConfig> parse(const JsonObject& config) {
  return parse_model_config(io::dump_json(config), "config.json");
}

std::vector<int> owners(const ModelConfig& config) {
  std::vector<int> out;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (config.has_indexer(layer)) out.push_back(layer);
  }
  return out;
}

// A model of `n_layers` with no word about its schedule.
JsonObject config_without_schedule(int n_layers) {
  JsonObject config = released_config("glm-5");
  config.set("num_hidden_layers", n_layers);
  config.set("first_k_dense_replace", 1);
  return config;
}

TEST(GlmConfigTest, ReadsTheReleasedConfigsWithoutWarnings) {
  for (const char* name : {"glm-5", "glm-5.1", "glm-5.2", "glm-5.3"}) {
    SCOPED_TRACE(name);
    const ParsedConfig parsed = test::must(parse(released_config(name)));
    EXPECT_EQ(parsed.warnings, std::vector<std::string>());
    const ModelConfig& c = parsed.config;
    EXPECT_EQ(c.family, &kGlmMoeDsa);
    EXPECT_EQ(c.d_rope, 64);
    EXPECT_EQ(c.d_head(), 256);
    EXPECT_EQ(c.d_value, 256);
    EXPECT_EQ(c.n_layers, 78);
    EXPECT_EQ(c.norm_eps, 1e-5f);
    EXPECT_EQ(c.index_norm_eps, 1e-6f);
    EXPECT_EQ(c.rope_pairing, ops::RopePairing::kInterleaved);
    EXPECT_EQ(c.index_rope_pairing, ops::RopePairing::kInterleaved);
    EXPECT_FALSE(c.yarn.has_value());
    EXPECT_EQ(c.bos_token, -1);
    EXPECT_EQ(c.eos_tokens, (std::vector<int32_t>{154820, 154827, 154829}));
    EXPECT_EQ(c.attention_scale(), 0.0625f);
    EXPECT_EQ(c.index_scale(), 0.015625f);
    EXPECT_TRUE(c.has_indexer(c.n_layers));  // the MTP layer's own
  }
}

// What nvidia/GLM-5.2-NVFP4 says in other words, or more of, makes no other model.
TEST(GlmConfigTest, ReadsTheNvfp4ReleaseAsTheModelItIs) {
  const ParsedConfig parsed = test::must(parse(released_config("glm-5.2-nvfp4")));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig fp8 = test::must(parse(released_config("glm-5.2"))).config;
  EXPECT_TRUE(parsed.config.nvfp4_experts);
  EXPECT_FALSE(parsed.config.fp8_blocks);
  EXPECT_EQ(parsed.config.bos_token, 0);
  EXPECT_EQ(parsed.config.eos_tokens, fp8.eos_tokens);
  EXPECT_EQ(parsed.config.n_experts, fp8.n_experts);
  EXPECT_EQ(owners(parsed.config), owners(fp8));
  EXPECT_TRUE(parsed.config.share_topk_across_drafts);
  JsonObject other = released_config("glm-5.2-nvfp4");
  other.set("num_experts", 257);
  const Result<ParsedConfig> refused = parse(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("num_experts is 257"), std::string::npos) << refused.error().message;
}

TEST(GlmConfigTest, Glm5HasAnIndexerInEveryLayer) {
  const ModelConfig c = test::must(parse(released_config("glm-5"))).config;
  EXPECT_EQ(c.n_indexers(), 78);
  EXPECT_FALSE(c.share_topk_across_drafts);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.max_position, 202752);
  EXPECT_FALSE(c.fp8_blocks);
}

TEST(GlmConfigTest, Glm52And53SharePicks) {
  for (const char* name : {"glm-5.2", "glm-5.3"}) {
    SCOPED_TRACE(name);
    const ModelConfig c = test::must(parse(released_config(name))).config;
    EXPECT_EQ(owners(c),
              (std::vector<int>{0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74}));
    EXPECT_TRUE(c.share_topk_across_drafts);
    EXPECT_EQ(c.rope_theta, 8e6);
    EXPECT_TRUE(c.fp8_blocks);
  }
}

// ---- the schedule ------------------------------------------------------------------------------------------------

struct ScheduleCase {
  const char* name;
  int n_layers;
  std::function<void(JsonObject&)> say;
  std::vector<int> owners;
};

void PrintTo(const ScheduleCase& row, std::ostream* out) { *out << row.name; }

std::function<void(JsonObject&)> frequency(JsonValue freq, JsonValue offset) {
  return [=](JsonObject& c) { c.set("index_topk_freq", freq), c.set("index_skip_topk_offset", offset); };
}

const ScheduleCase kSchedules[] = {
    {"Nothing", 4, [](JsonObject&) {}, {0, 1, 2, 3}},
    {"Nulls", 3, frequency(nullptr, nullptr), {0, 1, 2}},
    {"FrequencyOne", 3, frequency(1, 3), {0, 1, 2}},
    {"FrequencyFourOffsetThree", 12, frequency(4, 3), {0, 1, 2, 6, 10}},
    {"FrequencyThreeOffsetTwo", 6, frequency(3, 2), {0, 1, 4}},
    {"FrequencyTwoOffsetOne", 5, frequency(2, 1), {0, 2, 4}},
    {"DefaultOffset", 6, [](JsonObject& c) { c.set("index_topk_freq", 3); }, {0, 1, 4}},
    {"OffsetBeyondTheLayers", 4, frequency(9, 40), {0, 1, 2, 3}},
    {"Pattern", 6, [](JsonObject& c) { c.set("index_topk_pattern", "FSFSSF"); }, {0, 2, 5}},
    {"PatternWithTheMtpLayer", 3, [](JsonObject& c) { c.set("index_topk_pattern", "FSSF"); }, {0}},
    {"PatternAsAList", 3, [](JsonObject& c) { c.set("index_topk_pattern", JsonArray{"F", "S", "S"}); }, {0}},
    {"Types", 3, [](JsonObject& c) { c.set("indexer_types", JsonArray{"full", "shared", "full"}); }, {0, 2}},
    {"TypesBesideTheDefaultFrequency",
     2,
     [](JsonObject& c) { c.set("indexer_types", JsonArray{"full", "shared"}), c.set("index_topk_freq", 1); },
     {0}},
    {"AllThree",
     4,
     [](JsonObject& c) {
       c.set("indexer_types", JsonArray{"full", "full", "shared", "full"});
       c.set("index_topk_pattern", "FFSF");
       frequency(2, 2)(c);
     },
     {0, 1, 3}},
};

class ScheduleTest : public testing::TestWithParam<ScheduleCase> {};

TEST_P(ScheduleTest, SaysWhichLayersPick) {
  JsonObject config = config_without_schedule(GetParam().n_layers);
  GetParam().say(config);
  EXPECT_EQ(owners(test::must(parse(config)).config), GetParam().owners);
}

INSTANTIATE_TEST_SUITE_P(Table, ScheduleTest, testing::ValuesIn(kSchedules),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- what is refused ---------------------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(JsonObject&)> spoil;
  const char* message;  // a part of it
};

void PrintTo(const Refusal& row, std::ostream* out) { *out << row.name; }

std::function<void(JsonObject&)> put(const char* key, JsonValue value) {
  return [=](JsonObject& config) { config.set(key, value); };
}

// Of a model of six layers.
const Refusal kRefusals[] = {
    {"OffsetZero", frequency(4, 0), "index_skip_topk_offset is 0 (a number), expected a whole number from 1"},
    {"OffsetNegative", frequency(4, -1), "layer 0 has no layer below whose top-k indices it could share"},
    {"OffsetZeroAtFrequencyOne", frequency(1, 0), "index_skip_topk_offset is 0"},
    {"FrequencyZero", frequency(0, 2), "index_topk_freq is 0 (a number), expected a whole number from 1"},
    {"FirstTypeShared", put("indexer_types", JsonArray{"shared", "full", "full", "full", "full", "full"}),
     "indexer_types makes layer 0 \"shared\", and there is no layer below whose top-k indices it could share"},
    {"FirstLetterShared", put("index_topk_pattern", "SFFFFF"), "index_topk_pattern makes layer 0 \"shared\""},
    {"TooFewTypes", put("indexer_types", JsonArray{"full", "shared"}),
     "expected one entry for each of the 6 layers (num_hidden_layers), and at most one more for the MTP layer, not 2"},
    {"TooManyLetters", put("index_topk_pattern", "FFFFFFFF"),
     "the 6 layers (num_hidden_layers), and at most one more for the MTP layer, not 8"},
    {"OneLetterMoreWithoutMtp",
     [](JsonObject& c) { c.set("index_topk_pattern", "FFFFFFF"), c.set("num_nextn_predict_layers", 0); },
     "the 6 layers (num_hidden_layers), not 7"},
    {"MtpShared", put("index_topk_pattern", "FFFFFFS"),
     "index_topk_pattern makes the MTP layer, its last entry, \"shared\", but that layer always has its own indexer"},
    {"NoTypes", put("indexer_types", JsonArray{}), "not 0"},
    {"OddType", put("indexer_types", JsonArray{"full", "half", "full", "full", "full", "full"}),
     "indexer_types[1] is \"half\", expected \"full\" or \"shared\""},
    {"OddLetter", put("index_topk_pattern", "FXFFFF"), "expected letters F (full) and S (shared)"},
    {"TypesAgainstFrequency",
     [](JsonObject& c) {
       c.set("indexer_types", JsonArray{"full", "full", "shared", "full", "shared", "full"});
       frequency(3, 2)(c);
     },
     "indexer_types makes layer 3 \"full\", and index_topk_freq makes it \"shared\""},
    {"TypesAgainstPattern",
     [](JsonObject& c) {
       c.set("indexer_types", JsonArray{"full", "full", "shared", "full", "shared", "full"});
       c.set("index_topk_pattern", "FFSFSS");
     },
     "indexer_types makes layer 5 \"full\", and index_topk_pattern makes it \"shared\""},
    {"SharingAcrossDraftsAsNumber", put("index_share_for_mtp_iteration", 1), "index_share_for_mtp_iteration is 1"},
    {"HalfSplitIndexer", put("indexer_rope_interleave", false),
     "indexer_rope_interleave is false, which this version does not implement"},
    {"HalfSplitAttention", put("rope_interleave", false), "rope_interleave is false"},
    {"NoTheta", [](JsonObject& c) { c.erase("rope_parameters"); }, "rope_theta is missing, also from rope_parameters"},
    {"PooledIndexer", put("index_kpool", 4), "index_kpool is 4"},
    {"HeadWidth", put("qk_head_dim", 192),
     "qk_head_dim is 192 (a number), expected 256 (qk_nope_head_dim + qk_rope_head_dim)"},
};

class GlmRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(GlmRefusalTest, NamesTheKeyAndTheValue) {
  JsonObject config = config_without_schedule(6);
  GetParam().spoil(config);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
}

INSTANTIATE_TEST_SUITE_P(Table, GlmRefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace levin
