#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <string>

#include "arch/deepseek_v3/architecture.h"
#include "arch/load_config.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "support/must.h"

namespace levin {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::JsonValue;

JsonObject released_config() {
  const std::string text =
      test::must(io::read_file(std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/deepseek-v3.2/config.json"));
  return *test::must(io::parse_json(text, "config.json")).as_object();
}

Result<ParsedConfig> parse(const JsonObject& config) {
  return parse_model_config(io::dump_json(config), "config.json");
}

JsonObject in_transformers_spelling() {
  JsonObject config = released_config();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config.set("rope_parameters", JsonObject{{"rope_type", "yarn"},
                                           {"rope_theta", 10000.0},
                                           {"factor", 40.0},
                                           {"original_max_position_embeddings", 4096},
                                           {"beta_fast", 32.0},
                                           {"beta_slow", 1.0},
                                           {"mscale", 1.0},
                                           {"mscale_all_dim", 1.0}});
  config.set("dtype", "bfloat16");
  config.set("qk_head_dim", 192);
  config.set("head_dim", 64);
  return config;
}

TEST(ConfigTest, ReadsTheReleasedConfigWithoutWarnings) {
  const ParsedConfig parsed = test::must(parse(released_config()));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig& c = parsed.config;
  EXPECT_EQ(c.architecture, "DeepseekV32ForCausalLM");
  EXPECT_EQ(c.n_vocab, 129280);
  EXPECT_EQ(c.d_model, 7168);
  EXPECT_EQ(c.n_layers, 61);
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.max_position, 163840);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.index_norm_eps, 1e-6f);
  EXPECT_EQ(c.n_heads, 128);
  EXPECT_EQ(c.d_q_lora, 1536);
  EXPECT_EQ(c.d_latent, 512);
  EXPECT_EQ(c.d_nope, 128);
  EXPECT_EQ(c.d_rope, 64);
  EXPECT_EQ(c.d_value, 128);
  EXPECT_EQ(c.n_index_heads, 64);
  EXPECT_EQ(c.d_index, 128);
  EXPECT_EQ(c.n_topk, 2048);
  EXPECT_EQ(c.n_dense_layers, 3);
  EXPECT_EQ(c.d_dense, 18432);
  EXPECT_EQ(c.n_experts, 256);
  EXPECT_EQ(c.n_active, 8);
  EXPECT_EQ(c.n_shared_experts, 1);
  EXPECT_EQ(c.d_expert, 2048);
  EXPECT_EQ(c.n_groups, 8);
  EXPECT_EQ(c.n_groups_kept, 4);
  EXPECT_TRUE(c.normalize_expert_weights);
  EXPECT_EQ(c.expert_factor, 2.5f);
  EXPECT_EQ(c.family, &kDeepseekV32);
  EXPECT_EQ(c.n_indexers(), 61);
  EXPECT_FALSE(c.share_topk_across_drafts);
  EXPECT_EQ(c.rope_pairing, ops::RopePairing::kInterleaved);
  EXPECT_EQ(c.index_rope_pairing, ops::RopePairing::kHalfSplit);
  EXPECT_TRUE(c.fp8_blocks);
  EXPECT_EQ(c.bos_token, 0);
  EXPECT_EQ(c.eos_tokens, std::vector<int32_t>{1});
  ASSERT_TRUE(c.yarn.has_value());
  EXPECT_EQ(c.yarn->factor, 40);
  EXPECT_EQ(c.yarn->original_max_position, 4096);
}

// No released file has the keys: they come with the users' wish to share.
TEST(ConfigTest, LayersAndDraftsMaySharePicks) {
  JsonObject config = released_config();
  config.set("index_topk_freq", 4);
  config.set("index_share_for_mtp_iteration", true);
  const ParsedConfig parsed = test::must(parse(config));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  std::vector<int> owners;
  for (int layer = 0; layer < parsed.config.n_layers; ++layer) {
    if (parsed.config.has_indexer(layer)) owners.push_back(layer);
  }
  EXPECT_EQ(owners, (std::vector<int>{0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57}));
  EXPECT_TRUE(parsed.config.has_indexer(61));  // the MTP layer's own, whatever the frequency says
  EXPECT_TRUE(parsed.config.share_topk_across_drafts);
  EXPECT_EQ(parsed.config.index_rope_pairing, ops::RopePairing::kHalfSplit);
}

TEST(ConfigTest, BothSpellingsGiveTheSameModel) {
  const ModelConfig official = test::must(parse(released_config())).config;
  const ParsedConfig other = test::must(parse(in_transformers_spelling()));
  EXPECT_EQ(other.warnings, std::vector<std::string>());
  EXPECT_EQ(other.config.rope_frequencies(), official.rope_frequencies());
  EXPECT_EQ(other.config.attention_scale(), official.attention_scale());
}

TEST(ConfigTest, BothSpellingsAtOnceMustAgree) {
  JsonObject config = in_transformers_spelling();
  config.set("rope_theta", 10000);
  config.set("rope_scaling", *released_config().find("rope_scaling"));
  EXPECT_TRUE(parse(config).ok());
  config.set("rope_theta", 20000);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("rope_theta is 10000, but another key of the config says 20000"),
            std::string::npos)
      << parsed.error().message;
}

TEST(ConfigTest, NamesUnknownKeysInWarnings) {
  JsonObject config = released_config();
  config.set("moon_phase", "full");
  const ParsedConfig parsed = test::must(parse(config));
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_EQ(parsed.warnings[0], "config.json: moon_phase is not known to this version and was ignored");
}

TEST(ConfigTest, WarnsWhenTheYarnFactorDisagreesWithThePositions) {
  JsonObject config = released_config();
  config.set("max_position_embeddings", 131072);
  const ParsedConfig parsed = test::must(parse(config));
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_NE(parsed.warnings[0].find("is not max_position_embeddings 131072; the factor is used"), std::string::npos);
  EXPECT_EQ(parsed.config.yarn->factor, 40);
}

TEST(ConfigTest, EndTokensMayBeAList) {
  JsonObject config = released_config();
  config.set("eos_token_id", JsonArray{1, 7});
  EXPECT_EQ(test::must(parse(config)).config.eos_tokens, (std::vector<int32_t>{1, 7}));
}

// ---- rotary frequencies and scales -------------------------------------------------------------------------------

// Values in double precision; every f32 step on the way may lose half an ulp, so 4 ulps are allowed.
void expect_close(float value, double expected) { EXPECT_NEAR(value, expected, 4 * 0x1p-24 * expected); }

TEST(RopeFrequenciesTest, MatchTheReleasedModel) {
  const std::vector<float> f = test::must(parse(released_config())).config.rope_frequencies();
  ASSERT_EQ(f.size(), 32u);
  expect_close(f[0], 1.0);
  expect_close(f[1], 7.498942093e-1);
  expect_close(f[10], 5.623413252e-2);
  expect_close(f[11], 3.900692657e-2);
  expect_close(f[16], 5.5e-3);
  expect_close(f[22], 1.778279410e-4);
  expect_close(f[23], 3.333803580e-5);
  expect_close(f[31], 3.333803580e-6);
}

// base 160000, factor 16 from 65536 positions: another ramp (15 to 25).
TEST(RopeFrequenciesTest, MatchAnotherModel) {
  JsonObject config = released_config();
  config.set("rope_theta", 160000);
  config.set("max_position_embeddings", 1048576);
  config.set("rope_scaling", JsonObject{{"type", "yarn"},
                                        {"factor", 16},
                                        {"original_max_position_embeddings", 65536},
                                        {"beta_fast", 32},
                                        {"beta_slow", 1},
                                        {"mscale", 1.0},
                                        {"mscale_all_dim", 1.0}});
  const std::vector<float> f = test::must(parse(config)).config.rope_frequencies();
  expect_close(f[1], 6.876560219e-1);
  expect_close(f[15], 3.635538584e-3);
  expect_close(f[16], 2.265625e-3);
  expect_close(f[20], 2.969777783e-4);
  expect_close(f[24], 1.953125e-5);
  expect_close(f[25], 5.372312671e-6);
  expect_close(f[31], 5.680529037e-7);
}

TEST(RopeFrequenciesTest, AreAPlainPowerWithoutScaling) {
  JsonObject config = released_config();
  config.set("rope_scaling", nullptr);
  const ModelConfig c = test::must(parse(config)).config;
  EXPECT_FALSE(c.yarn.has_value());
  const std::vector<float> f = c.rope_frequencies();
  for (size_t j = 0; j < f.size(); ++j) expect_close(f[j], std::pow(10000.0, -static_cast<double>(j) / 32));
}

TEST(ScaleTest, AttentionCarriesTheYarnGainTwiceAndTheIndexerNot) {
  ModelConfig c = test::must(parse(released_config())).config;
  EXPECT_NEAR(c.attention_scale(), 0.1352337788, 1e-8);  // ten digits, and f32
  EXPECT_NEAR(c.index_scale(), 0.0110485435, 1e-9);
  c.yarn.reset();
  EXPECT_EQ(c.attention_scale(), static_cast<float>(1 / std::sqrt(192.0)));
}

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

std::function<void(JsonObject&)> drop(const char* key) {
  return [=](JsonObject& config) { config.erase(key); };
}

std::function<void(JsonObject&)> put_in(const char* object, const char* key, JsonValue value) {
  return [=](JsonObject& config) { config.find(object)->as_object()->set(key, value); };
}

const Refusal kRefusals[] = {
    {"NoModelType", drop("model_type"), "model_type is missing"},
    {"Glm53Flash", put("model_type", "glm5_next"),
     "architectures is a list of 1, expected [\"Glm5NextForConditionalGeneration\"]"},
    {"GlmArchitecture", put("model_type", "glm_moe_dsa"),
     "architectures is a list of 1, expected [\"GlmMoeDsaForCausalLM\"]"},
    {"V41", put("model_type", "deepseek_v41"), "architectures is a list of 1, expected [\"DeepseekV41ForCausalLM\"]"},
    {"V3", put("model_type", "deepseek_v3"), "DeepSeek-V3, which has no lightning indexer"},
    {"OtherType", put("model_type", "llama"),
     "is \"llama\", a model this program does not know; this version runs \"deepseek_v32\" (DeepSeek-V3.2 and "
     "V3.2-Exp), "},
    {"Dspark", put("dspark_block_size", 5), "dspark_block_size: a DSpark block drafter"},
    {"Architecture", put("architectures", JsonArray{"LlamaForCausalLM"}),
     "architectures is a list of 1, expected [\"DeepseekV32ForCausalLM\"]"},
    {"NoHidden", drop("hidden_size"), "hidden_size is missing, expected"},
    {"HiddenText", put("hidden_size", "7168"), "hidden_size is \"7168\" (a string)"},
    {"HiddenZero", put("hidden_size", 0), "hidden_size is 0 (a number), expected a whole number from 1"},
    {"HiddenHuge", put("hidden_size", int64_t{1} << 40), "hidden_size is 1099511627776"},
    {"LayersFraction", put("num_hidden_layers", 61.5), "num_hidden_layers is 61.5"},
    {"NoPicks", put("index_topk", 0), "index_topk is 0"},
    {"TwoMtp", put("num_nextn_predict_layers", 2), "num_nextn_predict_layers is 2 (a number), expected 0 or 1"},
    {"KvHeads", put("num_key_value_heads", 64),
     "num_key_value_heads is 64 (a number), expected 128 (num_attention_heads)"},
    {"HeadDim", put("qk_head_dim", 128),
     "qk_head_dim is 128 (a number), expected 192 (qk_nope_head_dim + qk_rope_head_dim)"},
    {"MlpTypes", put("mlp_layer_types", JsonArray{"dense"}), "mlp_layer_types is a list of 1, expected 61 entries"},
    {"DenseBeyond", put("first_k_dense_replace", 62), "first_k_dense_replace is 62 (a number), expected at most 61"},
    {"GroupsDoNotDivide", put("n_group", 7), "n_group is 7 (a number), expected a divisor of 256"},
    {"GroupsOfOne", put("n_group", 256), "expected groups of at least 2 of the 256 experts"},
    {"KeptBeyond", put("topk_group", 9), "topk_group is 9 (a number), expected at most 8"},
    {"TooFewKept", [](JsonObject& c) { c.set("num_experts_per_tok", 40), c.set("topk_group", 1); },
     "expected at most 32: topk_group 1 groups of 32"},
    {"ActiveBeyond", put("num_experts_per_tok", 300), "num_experts_per_tok is 300 (a number), expected at most 256"},
    {"OddRope", put("qk_rope_head_dim", 63), "qk_rope_head_dim is 63 (a number), expected an even number"},
    {"RopeBeyondIndex", put("qk_rope_head_dim", 192), "expected at most 128 (index_head_dim)"},
    {"Activation", put("hidden_act", "gelu"),
     "hidden_act is \"gelu\", which this version does not implement; implemented: \"silu\""},
    {"TiedEmbeddings", put("tie_word_embeddings", true),
     "tie_word_embeddings is true, which this version does not implement"},
    {"AttentionBias", put("attention_bias", true), "attention_bias is true"},
    {"Scoring", put("scoring_func", "softmax"),
     "scoring_func is \"softmax\", which this version does not implement; implemented: \"sigmoid\""},
    {"TopkMethod", put("topk_method", "greedy"), "topk_method is \"greedy\""},
    {"MoeFrequency", put("moe_layer_freq", 2), "moe_layer_freq is 2"},
    {"RopeInterleave", put("rope_interleave", false), "rope_interleave is false"},
    {"IndexInterleave", put("indexer_rope_interleave", true), "indexer_rope_interleave is true"},
    {"TooFewIndexTypes", put("indexer_types", JsonArray{"full", "shared"}),
     "expected one entry for each of the 61 layers (num_hidden_layers), and at most one more for the MTP layer, not 2"},
    {"IndexFrequencyZero", put("index_topk_freq", 0),
     "index_topk_freq is 0 (a number), expected a whole number from 1"},
    {"IndexFrequencyText", put("index_topk_freq", "4"), "index_topk_freq is \"4\" (a string)"},
    {"IndexOffsetZero", put("index_skip_topk_offset", 0),
     "layer 0 has no layer below whose top-k indices it could share"},
    {"IndexPatternList", put("index_topk_pattern", 4), "index_topk_pattern is 4 (a number)"},
    {"SharingAcrossDraftsAsNumber", put("index_share_for_mtp_iteration", 1), "index_share_for_mtp_iteration is 1"},
    {"V4Keys", put("compress_ratios", JsonArray{0, 4}), "compress_ratios is [0, 4]"},
    {"Eps", put("rms_norm_eps", -1e-6), "rms_norm_eps is -1e-06"},
    {"ExpertFactor", put("routed_scaling_factor", 0), "routed_scaling_factor is 0"},
    {"NormTopk", put("norm_topk_prob", "yes"), "norm_topk_prob is \"yes\" (a string)"},
    {"EosBeyond", put("eos_token_id", 129280),
     "eos_token_id is 129280 (a number), expected token ids from 0 to 129279"},
    {"BosNegative", put("bos_token_id", -1), "bos_token_id is -1"},
    {"NoTheta", drop("rope_theta"), "rope_theta is missing"},
    {"ThetaOne", put("rope_theta", 1), "rope_theta is 1, expected a number above 1"},
    {"RopeType", put_in("rope_scaling", "type", "longrope"),
     "rope type is 'longrope', which this version does not implement; implemented: yarn, default"},
    {"RopeTypesDiffer", put_in("rope_scaling", "rope_type", "default"), "but another key of the config says"},
    {"NoRopeType", [](JsonObject& c) { c.find("rope_scaling")->as_object()->erase("type"); },
     "rope type is '(not given)'"},
    {"NoYarnFactor", [](JsonObject& c) { c.find("rope_scaling")->as_object()->erase("factor"); },
     "rope type yarn needs factor"},
    {"YarnFactor", put_in("rope_scaling", "factor", 0.5), "yarn factor is 0.5, expected a number from 1 to 1e6"},
    {"Mscale", put_in("rope_scaling", "mscale_all_dim", 0.5),
     "yarn mscale is 1 and mscale_all_dim 0.5; this version implements equal values only"},
    {"AttentionFactor", put_in("rope_scaling", "attention_factor", 1.2), "rope_scaling.attention_factor is 1.2"},
    {"UnknownRopeKey", put_in("rope_scaling", "wobble", 2),
     "rope_scaling.wobble is not known to this version, and keys of a rope setting change"},
    {"RopeScalingText", put("rope_scaling", "yarn"), "rope_scaling is \"yarn\" (a string), expected an object"},
    {"Quantiser", put_in("quantization_config", "quant_method", "awq"),
     "quantization_config.quant_method is \"awq\", which this version does not implement"},
    {"QuantiserWithoutBlocks",
     [](JsonObject& c) {
       JsonObject awq;
       awq.set("quant_method", "awq");
       c.set("quantization_config", awq);
     },
     "quantization_config.quant_method is \"awq\", which this version does not implement"},
    {"BlockSize", put_in("quantization_config", "weight_block_size", JsonArray{64, 64}),
     "weight_block_size is [64, 64]"},
    {"StaticActivations", put_in("quantization_config", "activation_scheme", "static"),
     "activation_scheme is \"static\""},
    {"NoBlockSize", [](JsonObject& c) { c.find("quantization_config")->as_object()->erase("weight_block_size"); },
     "weight_block_size is missing"},
};

class RefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesTheKeyAndTheValue) {
  JsonObject config = released_config();
  GetParam().spoil(config);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
  EXPECT_EQ(parsed.error().message.rfind("config.json: ", 0), 0u) << parsed.error().message;
}

INSTANTIATE_TEST_SUITE_P(Table, RefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ConfigTest, TextThatIsNoConfig) {
  for (const char* text : {"", "[]", "{", "null", "{\"model_type\": 1}", "{\"a\": 1, \"a\": 2}"}) {
    const auto parsed = parse_model_config(text, "config.json");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  }
}

}  // namespace
}  // namespace levin
