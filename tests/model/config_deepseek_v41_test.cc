// DeepSeek-V4.1's part of a config: text_config, shared entries and selections, the n-gram memory, and what is refused.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "arch/deepseek_v41/architecture.h"
#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/engram_hash.h"
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
  const std::string path = fmt::format("{}/tests/fixtures/deepseek-v4.1-flash/config.json", LEVIN_SOURCE_DIR);
  return *test::must(io::parse_json(test::must(io::read_file(path)), "config.json")).as_object();
}

Result<ParsedConfig> parse(const JsonObject& config) {
  return parse_model_config(io::dump_json(config), "config.json", Registry::built_in());
}

TEST(DeepseekV41ConfigTest, ReadsTheReleasedConfigWithoutWarnings) {
  const ParsedConfig parsed = test::must(parse(released_config()));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig& c = parsed.config;
  EXPECT_EQ(c.family, &kDeepseekV41);
  EXPECT_EQ(c.n_layers, 40);
  EXPECT_EQ(c.n_mtp_layers, 3);
  EXPECT_EQ(c.n_draft_block, 5);
  EXPECT_EQ(c.norm_eps, 1e-20f);
  EXPECT_EQ(c.d_nope, 448);
  EXPECT_EQ(c.d_rope, 64);
  EXPECT_EQ(c.n_window, 128);
  EXPECT_EQ(c.n_topk, 512);
  EXPECT_TRUE(c.fp8_blocks);
  EXPECT_EQ(c.fp8_block, 32);
  EXPECT_TRUE(c.mxfp4_experts);
  EXPECT_EQ(c.bos_token, 0);
  EXPECT_EQ(c.eos_tokens, std::vector<int32_t>{1});
  const DeepseekV41Config& own = deepseek_v41::own(c);
  const auto expect_entries = [&](int layer, int64_t ratio, int source) {
    EXPECT_EQ(own.entries_of(layer).ratio, ratio) << layer;
    EXPECT_EQ(own.entries_of(layer).source, source) << layer;
  };
  expect_entries(1, 0, -1);
  expect_entries(2, 2, 2);
  expect_entries(7, 2, 2);
  expect_entries(8, 2, 8);
  expect_entries(19, 2, 14);
  expect_entries(20, 1, 20);
  expect_entries(39, 1, 20);
  std::vector<int> indexers;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (c.has_indexer(layer)) indexers.push_back(layer);
  }
  EXPECT_EQ(indexers, (std::vector<int>{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(own.candidates.source, 20);
  EXPECT_EQ(own.candidates.n_blocks, 2048);
  EXPECT_EQ(own.candidates.block_size, 8);
  EXPECT_EQ(own.engram->layers, (std::vector<int>{1, 14}));
  EXPECT_EQ(own.engram->pad_token, 2);
  EXPECT_EQ(own.dspark->target_layers, (std::vector<int>{37, 38, 39}));
  EXPECT_EQ(own.dspark->n_experts, 128);
  EXPECT_EQ(own.dspark->n_active, 3);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(own.compressed_rope_theta, 160000);
  EXPECT_EQ(own.compressed_yarn->factor, 16);
}

// As numpy and sympy give them for the release: the tables have exactly the rows of engram_num_embeddings.
TEST(DeepseekV41ConfigTest, HashesAreTheReleases) {
  const ModelConfig c = test::must(parse(released_config())).config;
  const auto hashes = deepseek_v41::engram_hashes(*deepseek_v41::own(c).engram);
  ASSERT_EQ(hashes.size(), 2);
  EXPECT_EQ(hashes[0].multipliers,
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(hashes[1].multipliers,
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ(hashes[0].primes.size(), 24);
  EXPECT_EQ(hashes[0].primes.front(), 16000057);
  EXPECT_EQ(hashes[0].primes.back(), 16000463);
  EXPECT_EQ(hashes[1].primes.front(), 16000477);
  EXPECT_EQ(hashes[1].primes.back(), 16000889);
  EXPECT_EQ(hashes[0].n_rows(), 384006168);
  EXPECT_EQ(hashes[1].n_rows(), 384016682);
}

// numpy.random.default_rng(seed).integers(0, 2**40 + 3, 4, dtype=numpy.int64)
TEST(NumpyRandomTest, DrawsTheNumbersOfNumpy) {
  deepseek_v41::NumpyRandom random(12345);
  std::vector<uint64_t> drawn;
  for (int i = 0; i < 4; ++i) drawn.push_back(random.below((uint64_t{1} << 40) + 3));
  EXPECT_EQ(drawn, (std::vector<uint64_t>{249958600115, 348279477706, 876712591926, 743549873830}));
}

JsonObject& text_of(JsonObject& config) { return *config.find("text_config")->as_object(); }

std::function<void(JsonObject&)> put(const char* key, JsonValue value) {
  return [=](JsonObject& config) { text_of(config).set(key, value); };
}
std::function<void(JsonObject&)> put_quantization(const char* key, JsonValue value) {
  return [=](JsonObject& config) { config.find("quantization_config")->as_object()->set(key, value); };
}

// Files of the text model alone have the keys at the top level; without the keys of memory and drafter it has neither.
TEST(DeepseekV41ConfigTest, MemoryDrafterAndCandidatesMayBeAbsent) {
  JsonObject config = released_config();
  for (const char* key : {"engram_layer_ids", "dspark_block_size", "candidate_source_layer_id"})
    text_of(config).erase(key);
  text_of(config).set("compress_ratios", [] {
    JsonArray ratios;
    for (int i = 0; i < 40; ++i) ratios.emplace_back(i < 2 ? 0 : i < 20 ? 2 : 1);
    return ratios;
  }());
  const ModelConfig c = test::must(parse(config)).config;
  EXPECT_EQ(c.n_mtp_layers, 0);
  EXPECT_EQ(c.n_draft_block, 0);
  EXPECT_FALSE(deepseek_v41::own(c).engram.has_value());
  EXPECT_FALSE(deepseek_v41::own(c).dspark.has_value());
  EXPECT_EQ(deepseek_v41::own(c).candidates.source, -1);
  EXPECT_EQ(deepseek_v41::class_layer(c), -1);

  text_of(config).set("engram_layer_ids", JsonArray());
  text_of(config).set("dspark_block_size", 0);
  const ModelConfig same = test::must(parse(config)).config;
  EXPECT_FALSE(deepseek_v41::own(same).engram.has_value());
  EXPECT_FALSE(deepseek_v41::own(same).dspark.has_value());
}

struct Refused {
  const char* name;
  std::function<void(JsonObject&)> spoil;
  const char* message;  // a part of it
};
void PrintTo(const Refused& row, std::ostream* out) { *out << row.name; }

const Refused kRefused[] = {
    {"Blocks", put_quantization("weight_block_size", JsonArray{128, 128}),
     "weight_block_size is [128, 128], which this version does not implement; implemented: [32, 32]"},
    {"ExpertDtype", put_quantization("expert_dtype", "int4"), "expert_dtype is \"int4\" (a string), expected \"fp4\""},
    {"RatiosWithoutACommonMultiple",
     [](JsonObject& config) {
       JsonArray ratios = *text_of(config).find("compress_ratios")->as_array();
       ratios[2] = 61, ratios[3] = 59, ratios[4] = 53, ratios[5] = 47;  // primes
       text_of(config).set("compress_ratios", ratios);
     },
     "ratios with a least common multiple of at most 1048576"},
    {"Ratios", put("compress_ratios", JsonArray{0, 0, 2}),
     "compress_ratios is a list of 3, expected 40 entries (num_hidden_layers), and 3 more"},
    {"NoSource", put("kv_source_layer_ids", JsonArray{8, 14, 20}),
     "for layer 2, of ratio 2, one of that ratio as the nearest at or below it"},
    {"SourceOfOtherRatio", put("kv_source_layer_ids", JsonArray{2, 8, 14}), "for layer 20, of ratio 1"},
    {"SourceWithoutRatio", put("kv_source_layer_ids", JsonArray{1, 2, 8, 14, 20}), "for layer 1, of ratio 0"},
    {"SourcesNotAscending", put("kv_source_layer_ids", JsonArray{8, 2, 14, 20}),
     "different layers from 0 to 39 (num_hidden_layers - 1), ascending"},
    {"SourceThatSelectsNothing", put("index_source_layer_ids", JsonArray{2, 8, 20, 24, 28, 32, 36}),
     "index_source_layer_ids"},
    {"WindowThatSelects", put("index_source_layer_ids", JsonArray{1, 2, 8, 14, 20}), "layer 1 does not fit"},
    {"CandidatesOfAReader", put("candidate_source_layer_id", 21), "-1 or a layer of index_source_layer_ids"},
    {"CandidatesOfOtherEntries", put("candidate_source_layer_id", 14),
     "a layer after which all select among its entries; layer 20 does not"},
    {"FewCandidates", put("candidate_topk_blocks", 64), "blocks with room for 512 entries (index_topk), not 505"},
    {"TableRows", put("engram_num_embeddings", JsonArray{384006168, 384016683}),
     "expected [384006168, 384016682], the sums of the primes"},
    {"TableCount", put("engram_num_embeddings", JsonArray{384006168}), "expected 2 entries (engram_layer_ids)"},
    {"HugeTable", put("engram_vocab_size", 1 << 27), "engram_vocab_size is 134217728"},
    {"MemoryFirstAtASource", put("engram_layer_ids", JsonArray{2, 14}),
     "first a layer that is not one of kv_source_layer_ids"},
    {"DrafterExperts", put("dspark_num_experts_per_tok", 129), "at most 128 (dspark_n_routed_experts)"},
    {"Target", put("dspark_target_layer_ids", JsonArray{38, 39, 40}), "dspark_target_layer_ids"},
    {"Noise", put("dspark_noise_token_id", 129280), "dspark_noise_token_id is 129280"},
    {"HashLayers", put("num_hash_layers", 3), "num_hash_layers is 3"},
    {"Scoring", put("scoring_func", "sigmoid"), "scoring_func is \"sigmoid\""},
    {"Groups", put("o_groups", 7), "o_groups is 7 (a number), expected a divisor of 64"},
    {"ManyStages", put("num_nextn_predict_layers", 65), "num_nextn_predict_layers is 65 (a number), expected 0 to 64"},
};

class DeepseekV41RefusalTest : public testing::TestWithParam<Refused> {};

TEST_P(DeepseekV41RefusalTest, NamesTheKeyAndTheValue) {
  JsonObject config = released_config();
  GetParam().spoil(config);
  const auto parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
}

INSTANTIATE_TEST_SUITE_P(Table, DeepseekV41RefusalTest, testing::ValuesIn(kRefused),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace levin
