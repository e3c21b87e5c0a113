// DeepSeek-V4's part of a config: the published values, both spellings, and what is refused.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "arch/deepseek_v4/architecture.h"
#include "arch/deepseek_v4/config.h"
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
  return *test::must(io::parse_json(test::must(io::read_file(path)), "config.json")).as_object();
}

Result<ParsedConfig> parse(const JsonObject& config) {
  return parse_model_config(io::dump_json(config), "config.json");
}

int count(const ModelConfig& config, Compression kind) {
  int n = 0;
  for (int layer = 0; layer < config.n_layers; ++layer)
    n += deepseek_v4::own(config).compression[static_cast<size_t>(layer)].kind == kind;
  return n;
}

TEST(DeepseekV4ConfigTest, ReadsTheReleasedConfigOfFlashWithoutWarnings) {
  const ParsedConfig parsed = test::must(parse(released_config("deepseek-v4-flash")));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig& c = parsed.config;
  EXPECT_EQ(c.family, &kDeepseekV4);
  EXPECT_EQ(c.architecture, "DeepseekV4ForCausalLM");
  EXPECT_EQ(c.n_vocab, 129280);
  EXPECT_EQ(c.d_model, 4096);
  EXPECT_EQ(c.n_layers, 43);
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.max_position, 1048576);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.n_heads, 64);
  EXPECT_EQ(c.d_head(), 512);
  EXPECT_EQ(c.d_nope, 448);
  EXPECT_EQ(c.d_rope, 64);
  EXPECT_EQ(c.d_q_lora, 1024);
  EXPECT_EQ(deepseek_v4::own(c).n_out_groups, 8);
  EXPECT_EQ(deepseek_v4::own(c).d_out_lora, 1024);
  EXPECT_EQ(c.n_window, 128);
  EXPECT_EQ(c.n_index_heads, 64);
  EXPECT_EQ(c.d_index, 128);
  EXPECT_EQ(c.n_topk, 512);
  EXPECT_EQ(c.n_experts, 256);
  EXPECT_EQ(c.n_active, 6);
  EXPECT_EQ(c.n_shared_experts, 1);
  EXPECT_EQ(c.d_expert, 2048);
  EXPECT_EQ(c.n_dense_layers, 0);
  EXPECT_EQ(c.expert_factor, 1.5f);
  EXPECT_TRUE(c.normalize_expert_weights);
  EXPECT_EQ(c.ffn_limit, 10.0f);
  EXPECT_EQ(c.n_streams, 4);
  EXPECT_EQ(c.n_sinkhorn_steps, 20);
  EXPECT_EQ(c.stream_eps, 1e-6f);
  EXPECT_TRUE(deepseek_v4::own(c).is_hash_layer(2));
  EXPECT_FALSE(deepseek_v4::own(c).is_hash_layer(3));
  EXPECT_EQ(c.rope_pairing, ops::RopePairing::kInterleaved);
  EXPECT_EQ(c.index_rope_pairing, ops::RopePairing::kInterleaved);
  EXPECT_TRUE(c.fp8_blocks);
  EXPECT_TRUE(c.mxfp4_experts);
  EXPECT_EQ(count(c, Compression::kNone), 2);
  EXPECT_EQ(count(c, Compression::kIndexed), 21);
  EXPECT_EQ(count(c, Compression::kAll), 20);
  EXPECT_EQ(deepseek_v4::own(c).compression[2], (LayerCompression{Compression::kIndexed, 4}));
  EXPECT_EQ(deepseek_v4::own(c).compression[3], (LayerCompression{Compression::kAll, 128}));
  ASSERT_EQ(deepseek_v4::own(c).compression.size(), 44u);
  EXPECT_EQ(deepseek_v4::own(c).compression[43], LayerCompression{});  // the MTP layer
}

TEST(DeepseekV4ConfigTest, ReadsTheReleasedConfigOfProWithoutWarnings) {
  const ParsedConfig parsed = test::must(parse(released_config("deepseek-v4-pro")));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig& c = parsed.config;
  EXPECT_EQ(c.n_layers, 61);
  EXPECT_EQ(c.d_model, 7168);
  EXPECT_EQ(c.n_heads, 128);
  EXPECT_EQ(c.d_q_lora, 1536);
  EXPECT_EQ(deepseek_v4::own(c).n_out_groups, 16);
  EXPECT_EQ(c.n_topk, 1024);
  EXPECT_EQ(c.n_experts, 384);
  EXPECT_EQ(c.d_expert, 3072);
  EXPECT_EQ(c.expert_factor, 2.5f);
  EXPECT_EQ(count(c, Compression::kNone), 0);
  EXPECT_EQ(count(c, Compression::kIndexed), 30);
  EXPECT_EQ(count(c, Compression::kAll), 31);
}

TEST(DeepseekV4ConfigTest, ReadsTheReleasedConfigsWithABlockDrafterWithoutWarnings) {
  struct Release {
    const char* name;
    int n_layers;
    int64_t d_markov;
    std::vector<int> targets;
  };
  for (const Release& release : {Release{"deepseek-v4-flash-0731", 43, 256, {40, 41, 42}},
                                 Release{"deepseek-v4-pro-0813", 61, 512, {58, 59, 60}}}) {
    SCOPED_TRACE(release.name);
    const ParsedConfig parsed = test::must(parse(released_config(release.name)));
    EXPECT_EQ(parsed.warnings, std::vector<std::string>());
    const ModelConfig& c = parsed.config;
    EXPECT_EQ(c.n_layers, release.n_layers);
    EXPECT_EQ(c.n_mtp_layers, 3);  // not num_nextn_predict_layers, which is 1
    EXPECT_EQ(c.n_draft_block, 5);
    ASSERT_TRUE(deepseek_v4::own(c).dspark.has_value());
    EXPECT_EQ(deepseek_v4::own(c).dspark->d_markov, release.d_markov);
    EXPECT_EQ(deepseek_v4::own(c).dspark->noise_token, 128799);
    EXPECT_EQ(deepseek_v4::own(c).dspark->target_layers, release.targets);
    ASSERT_EQ(std::ssize(deepseek_v4::own(c).compression), release.n_layers + 3);
    for (int stage = 0; stage < 3; ++stage)
      EXPECT_EQ(deepseek_v4::own(c).compression_of(release.n_layers + stage), LayerCompression{}) << stage;
  }
}

// As transformers writes them: the drafter's entries are gone, and its keys are not.
TEST(DeepseekV4ConfigTest, RatiosOfTheTrunkAloneAreEnoughWithABlockDrafter) {
  JsonObject config = released_config("deepseek-v4-flash-0731");
  JsonArray ratios = *config.find("compress_ratios")->as_array();
  ratios.resize(43);
  config.set("compress_ratios", ratios);
  EXPECT_EQ(test::must(parse(config)).config.n_mtp_layers, 3);
}

TEST(DeepseekV4ConfigTest, AnyNumberOfMtpLayersMayStandWithABlockDrafter) {
  for (int n : {0, 3, 5}) {
    JsonObject config = released_config("deepseek-v4-flash-0731");
    config.set("num_nextn_predict_layers", n);
    EXPECT_EQ(test::must(parse(config)).config.n_mtp_layers, 3) << n;
  }
}

TEST(DeepseekV4ConfigTest, NullKeysOfABlockDrafterAreNone) {
  JsonObject config = released_config("deepseek-v4-flash");
  config.set("dspark_block_size", nullptr);
  const ModelConfig c = test::must(parse(config)).config;
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.n_draft_block, 0);
  EXPECT_FALSE(deepseek_v4::own(c).dspark.has_value());
}

// Mistakes 6, 10 and 29 of model_spec.md 9: YaRN's gains in the scale, YaRN or the other base on the wrong layers, and
// default values of a library in place of the file's.
TEST(DeepseekV4ConfigTest, LayersWithAndWithoutCompressionHaveTheirOwnRotations) {
  const ModelConfig c = test::must(parse(released_config("deepseek-v4-flash"))).config;
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(deepseek_v4::own(c).compressed_rope_theta, 160000);
  EXPECT_FALSE(c.yarn.has_value());
  const std::vector<float> plain = c.rope_frequencies(), compressed = compressed_rope_frequencies(c);
  ASSERT_EQ(plain.size(), 32u);
  ASSERT_EQ(compressed.size(), 32u);
  for (size_t j = 0; j < plain.size(); ++j) {
    const double exact = std::pow(10000.0, -static_cast<double>(j) / 32.0);
    EXPECT_NEAR(plain[j], exact, 3e-7 * exact) << j;
  }
  constexpr std::pair<size_t, double> kCompressed[] = {{0, 1.0},
                                                       {1, 6.876560219e-1},
                                                       {15, 3.635538584e-3},
                                                       {16, 2.265625000e-3},
                                                       {20, 2.969777783e-4},
                                                       {24, 1.953125000e-5},
                                                       {25, 5.372312671e-6},
                                                       {31, 5.680529037e-7}};
  for (const auto& [j, exact] : kCompressed) EXPECT_NEAR(compressed[j], exact, 3e-7 * exact) << j;
  EXPECT_EQ(c.attention_scale(), static_cast<float>(1 / std::sqrt(512.0)));
  EXPECT_NEAR(c.index_scale(), 0.0110485435, 1e-9);
}

JsonObject in_transformers_spelling(const char* name) {
  JsonObject config = released_config(name);
  JsonArray layer_types, mlp_layer_types;
  const JsonArray ratios = *config.find("compress_ratios")->as_array();
  for (size_t i = 0; i + 1 < ratios.size(); ++i) {
    const int64_t ratio = *ratios[i].to_int64();
    layer_types.push_back(ratio == 0   ? "sliding_attention"
                          : ratio == 4 ? "compressed_sparse_attention"
                                       : "heavily_compressed_attention");
    mlp_layer_types.push_back(i < 3 ? "hash_moe" : "moe");
  }
  for (const char* key : {"compress_ratios", "num_hash_layers", "rope_scaling", "topk_method"}) config.erase(key);
  config.set("layer_types", layer_types);
  config.set("mlp_layer_types", mlp_layer_types);
  config.set("compress_rates", JsonObject{{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}});
  config.set("partial_rotary_factor", 0.125);
  config.set("num_local_experts", *config.find("n_routed_experts"));
  config.set(
      "rope_parameters",
      JsonObject{
          {"main", JsonObject{{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.125}}},
          {"compress", JsonObject{{"rope_type", "yarn"},
                                  {"rope_theta", 160000.0},
                                  {"factor", 16.0},
                                  {"original_max_position_embeddings", 65536},
                                  {"beta_fast", 32.0},
                                  {"beta_slow", 1.0},
                                  {"attention_factor", 1.0},
                                  {"partial_rotary_factor", 0.125}}}});
  return config;
}

TEST(DeepseekV4ConfigTest, BothSpellingsGiveTheSameModel) {
  for (const char* name : {"deepseek-v4-flash", "deepseek-v4-pro"}) {
    const ModelConfig official = test::must(parse(released_config(name))).config;
    const ParsedConfig other = test::must(parse(in_transformers_spelling(name)));
    EXPECT_EQ(other.warnings, std::vector<std::string>());
    EXPECT_EQ(deepseek_v4::own(other.config).compression, deepseek_v4::own(official).compression);
    EXPECT_EQ(deepseek_v4::own(other.config).n_hash_layers, deepseek_v4::own(official).n_hash_layers);
    EXPECT_EQ(other.config.rope_frequencies(), official.rope_frequencies());
    EXPECT_EQ(compressed_rope_frequencies(other.config), compressed_rope_frequencies(official));
  }
}

TEST(DeepseekV4ConfigTest, OtherRatiosAndSchedulesAreRead) {
  JsonObject config = released_config("v4-flash");
  config.set("compress_ratios", JsonArray{16, 0, 4, 64, 4, 2, 0});
  const ModelConfig c = test::must(parse(config)).config;
  EXPECT_EQ(deepseek_v4::own(c).compression[0], (LayerCompression{Compression::kAll, 16}));
  EXPECT_EQ(deepseek_v4::own(c).compression[3], (LayerCompression{Compression::kAll, 64}));
  EXPECT_EQ(deepseek_v4::own(c).compression[5], (LayerCompression{Compression::kAll, 2}));

  // with compress_rates, the ratio that comes with an indexer is another
  config.set("compress_ratios", JsonArray{0, 8, 4, 64, 8, 2, 0});
  config.set("compress_rates", JsonObject{{"compressed_sparse_attention", 8}});
  const ModelConfig r = test::must(parse(config)).config;
  EXPECT_EQ(deepseek_v4::own(r).compression[0], LayerCompression{});
  EXPECT_EQ(deepseek_v4::own(r).compression[1], (LayerCompression{Compression::kIndexed, 8}));
  EXPECT_EQ(deepseek_v4::own(r).compression[2], (LayerCompression{Compression::kAll, 4}));

  JsonObject typed = in_transformers_spelling("deepseek-v4-flash");
  typed.set("compress_rates", JsonObject{{"compressed_sparse_attention", 8}});
  const ModelConfig t = test::must(parse(typed)).config;
  EXPECT_EQ(deepseek_v4::own(t).compression[2], (LayerCompression{Compression::kIndexed, 8}));
  EXPECT_EQ(deepseek_v4::own(t).compression[3], (LayerCompression{Compression::kAll, 128}));
}

TEST(DeepseekV4ConfigTest, WhatTheExpertsAreStoredAsIsAGuessForPlans) {
  JsonObject config = released_config("deepseek-v4-pro");
  EXPECT_TRUE(test::must(parse(config)).config.mxfp4_experts);
  config.set("expert_dtype", "fp8");
  EXPECT_FALSE(test::must(parse(config)).config.mxfp4_experts);
  EXPECT_FALSE(test::must(parse(released_config("v4-flash"))).config.mxfp4_experts);  // BF16 throughout
  EXPECT_TRUE(test::must(parse(released_config("v4-fp4"))).config.mxfp4_experts);
}

struct Refused {
  const char* name;
  std::function<void(JsonObject&)> spoil;
  const char* message;
};
void PrintTo(const Refused& row, std::ostream* out) { *out << row.name; }

class DeepseekV4RefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(DeepseekV4RefusedTest, NamesKeyAndValue) {
  JsonObject config = released_config("deepseek-v4-flash");
  GetParam().spoil(config);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
}

std::function<void(JsonObject&)> set(const char* key, const JsonValue& value) {
  return [=](JsonObject& config) { config.set(key, value); };
}

INSTANTIATE_TEST_SUITE_P(
    Configs, DeepseekV4RefusedTest,
    testing::Values(
        Refused{"DsparkInPart", set("dspark_block_size", 5), "dspark_markov_rank is missing"},
        Refused{"DsparkOfV41", set("dspark_n_routed_experts", 128), "dspark_n_routed_experts is 128"},
        Refused{"DsparkUnknown", set("dspark_depth", 2), "dspark_depth: a DSpark block drafter"},
        Refused{"Engram", set("engram_n_heads", 8), "engram_n_heads: the n-gram memory of DeepSeek-V4.1"},
        Refused{"V41", set("model_type", "deepseek_v41"), "expected [\"DeepseekV41ForCausalLM\"]"},
        Refused{"Glm53", set("model_type", "glm5_next"), "expected [\"Glm5NextForConditionalGeneration\"]"},
        Refused{"SharedKeys", set("kv_source_layer_ids", JsonArray{2, 8}), "kv_source_layer_ids is [2, 8]"},
        Refused{"SharedPicks", set("index_topk_freq", 4), "index_topk_freq is 4"},
        Refused{"TwoMtpLayers", set("num_nextn_predict_layers", 2),
                "num_nextn_predict_layers is 2 (a number), expected 0 or 1"},
        Refused{"TwoKeyHeads", set("num_key_value_heads", 2), "num_key_value_heads is 2"},
        Refused{"Groups", set("n_group", 8), "n_group is 8"},
        Refused{"Scoring", set("scoring_func", "sigmoid"), "scoring_func is \"sigmoid\""},
        Refused{"OutGroups", set("o_groups", 7), "o_groups is 7"},
        Refused{"TooManyPicked", set("num_experts_per_tok", 300), "num_experts_per_tok is 300"},
        Refused{"OddRope", set("qk_rope_head_dim", 63), "qk_rope_head_dim is 63"},
        Refused{"RopeBeyondIndexer", set("qk_rope_head_dim", 256), "the indexer rotates as many of its 128 columns"},
        Refused{"RotatedShare", set("partial_rotary_factor", 0.25), "partial_rotary_factor is 0.25"},
        Refused{"NoLimit", set("swiglu_limit", 0.0), "swiglu_limit is 0"},
        Refused{"NoRatios", [](JsonObject& c) { c.erase("compress_ratios"); }, "compress_ratios is missing"},
        Refused{"FewRatios", set("compress_ratios", JsonArray{0, 4}), "43 entries (num_hidden_layers)"},
        Refused{"MtpCompression",
                [](JsonObject& c) {
                  JsonArray ratios = *c.find("compress_ratios")->as_array();
                  ratios.back() = 4;
                  c.set("compress_ratios", ratios);
                },
                "0 for the MTP layer"},
        Refused{"NegativeRatio",
                [](JsonObject& c) {
                  JsonArray ratios = *c.find("compress_ratios")->as_array();
                  ratios[5] = -4;
                  c.set("compress_ratios", ratios);
                },
                "ratios from 0 to 65536, not -4"},
        Refused{"RatiosWithoutACommonMultiple",
                [](JsonObject& c) {
                  JsonArray ratios = *c.find("compress_ratios")->as_array();
                  ratios[5] = 65521, ratios[6] = 65519, ratios[7] = 65497, ratios[8] = 65479;  // primes
                  c.set("compress_ratios", ratios);
                },
                "ratios with a least common multiple of at most 1048576"},
        Refused{"RatesWithoutACommonMultiple",
                [](JsonObject& c) {
                  c.erase("compress_ratios");
                  c.set("layer_types", *in_transformers_spelling("deepseek-v4-flash").find("layer_types"));
                  c.set("compress_rates", JsonObject{{"compressed_sparse_attention", 65521}});
                },
                "ratios with a least common multiple of at most 1048576"},
        Refused{"RatiosAgainstTypes",
                [](JsonObject& c) {
                  c.set("layer_types", *in_transformers_spelling("deepseek-v4-flash").find("layer_types"));
                  c.set("compress_rates", JsonObject{{"compressed_sparse_attention", 8}});
                },
                "gives layer 2 the ratio 4, and layer_types with compress_rates 8"},
        Refused{"LayerType",
                [](JsonObject& c) {
                  JsonArray types = *in_transformers_spelling("deepseek-v4-flash").find("layer_types")->as_array();
                  types[1] = "full_attention";
                  c.set("layer_types", types);
                },
                "\"sliding_attention\", \"compressed_sparse_attention\""},
        Refused{"CompressRate", set("compress_rate_csa", 8), "compress_rate_csa is 8"},
        Refused{"HashLayers", set("num_hash_layers", 44), "num_hash_layers is 44"},
        Refused{"HashLayersDisagree",
                [](JsonObject& c) {
                  c.set("mlp_layer_types", *in_transformers_spelling("deepseek-v4-flash").find("mlp_layer_types"));
                  c.set("num_hash_layers", 4);
                },
                "num_hash_layers is 4 (a number), expected 3 (mlp_layer_types)"},
        Refused{"HashLayersScattered",
                [](JsonObject& c) {
                  JsonArray types(43, "moe");
                  types[7] = "hash_moe";
                  c.set("mlp_layer_types", types);
                },
                "\"hash_moe\" first"},
        Refused{"ExpertDtype", set("expert_dtype", "nvfp4"), "expert_dtype is \"nvfp4\""},
        Refused{"NoCompressedTheta", [](JsonObject& c) { c.erase("compress_rope_theta"); },
                "compress_rope_theta is missing"},
        Refused{"BlockSize",
                [](JsonObject& c) {
                  JsonObject q = *c.find("quantization_config")->as_object();
                  q.set("weight_block_size", JsonArray{32, 32});
                  c.set("quantization_config", q);
                },
                "weight_block_size is [32, 32]"}),
    [](const auto& row) { return row.param.name; });

class DsparkRefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(DsparkRefusedTest, NamesKeyAndValue) {
  JsonObject config = released_config("deepseek-v4-flash-0731");
  GetParam().spoil(config);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
}

std::function<void(JsonObject&)> with_ratios(const std::function<void(JsonArray&)>& change) {
  return [=](JsonObject& config) {
    JsonArray ratios = *config.find("compress_ratios")->as_array();
    change(ratios);
    config.set("compress_ratios", ratios);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Configs, DsparkRefusedTest,
    testing::Values(
        Refused{"NoBlock", [](JsonObject& c) { c.erase("dspark_block_size"); }, "dspark_block_size is missing"},
        Refused{"NoTargets", [](JsonObject& c) { c.erase("dspark_target_layer_ids"); },
                "dspark_target_layer_ids is missing"},
        Refused{"EmptyTargets", set("dspark_target_layer_ids", JsonArray{}), "different layers from 0 to 42"},
        Refused{"TargetBeyond", set("dspark_target_layer_ids", JsonArray{41, 42, 43}), "different layers from 0 to 42"},
        Refused{"TargetTwice", set("dspark_target_layer_ids", JsonArray{41, 42, 42}), "different layers from 0 to 42"},
        Refused{"StagesAgainstRatios", set("dspark_target_layer_ids", JsonArray{41, 42}),
                "43 entries (num_hidden_layers), or 2 more for the stages of the drafter (as many as "
                "dspark_target_layer_ids has), not 46"},
        Refused{"OneRatioMore", with_ratios([](JsonArray& r) { r.resize(44); }), "or 3 more for the stages"},
        Refused{"StageCompressed", with_ratios([](JsonArray& r) { r.back() = 4; }),
                "0 for the drafter's stages, the last 3"},
        Refused{"BlockZero", set("dspark_block_size", 0), "dspark_block_size is 0"},
        Refused{"BlockBeyondAPage", set("dspark_block_size", 65), "a whole number from 1 to 64"},
        Refused{"RankZero", set("dspark_markov_rank", 0), "dspark_markov_rank is 0"},
        Refused{"NoiseBeyond", set("dspark_noise_token_id", 129280), "a whole number from 0 to 129279"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace levin
