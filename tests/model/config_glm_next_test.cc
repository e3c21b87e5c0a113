// GLM-5.3-Flash's part of a config: text_config, the kinds of layers, pools, and what is refused.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "arch/glm_next/architecture.h"
#include "arch/glm_next/config.h"
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
  const std::string path = fmt::format("{}/tests/fixtures/glm-5.3-flash/config.json", LEVIN_SOURCE_DIR);
  return *test::must(io::parse_json(test::must(io::read_file(path)), "config.json")).as_object();
}

Result<ParsedConfig> parse(const JsonObject& config, std::span<const ConfigOverride> overrides = {}) {
  return parse_model_config(io::dump_json(config), "config.json", Registry::built_in(), overrides);
}

TEST(GlmNextConfigTest, ReadsTheReleasedConfigWithoutWarnings) {
  const ParsedConfig parsed = test::must(parse(released_config()));
  EXPECT_EQ(parsed.warnings, std::vector<std::string>());
  const ModelConfig& c = parsed.config;
  EXPECT_EQ(c.family, &kGlmNext);
  EXPECT_EQ(c.architecture, "Glm5NextForConditionalGeneration");
  EXPECT_EQ(c.n_layers, 45);
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.n_indexers(), 11);
  for (int layer = 0; layer < c.n_layers; ++layer) EXPECT_EQ(c.has_indexer(layer), layer % 4 == 3) << layer;
  EXPECT_TRUE(c.has_indexer(45));
  EXPECT_TRUE(c.share_topk_across_drafts);
  EXPECT_EQ(c.d_rope, 0);
  EXPECT_EQ(c.d_head(), 256);
  EXPECT_EQ(c.attention_scale(), 0.0625f);
  EXPECT_EQ(c.n_dense_layers, 3);
  EXPECT_EQ(c.ffn_limit, 10);
  EXPECT_EQ(c.n_streams, 4);
  EXPECT_EQ(c.n_sinkhorn_steps, 20);
  EXPECT_EQ(c.stream_eps, 1e-6f);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.eos_tokens, (std::vector<int32_t>{154820, 154827, 154829}));
  EXPECT_TRUE(c.fp8_blocks);
  const GlmNextConfig& own = glm_next::own(c);
  EXPECT_EQ(own.n_linear_heads, 64);
  EXPECT_EQ(own.d_linear_head, 128);
  EXPECT_EQ(own.n_taps, 4);
  EXPECT_EQ(own.decay_lower, -5);
  EXPECT_EQ(own.n_pool, 4);
  EXPECT_EQ(own.n_pool_topk, 512);
  EXPECT_EQ(c.n_topk, 2051);
}

// Files of the text model alone have the keys at the top level.
TEST(GlmNextConfigTest, ReadsAFileWithoutTextConfig) {
  JsonObject config = released_config();
  const JsonObject text = *config.find("text_config")->as_object();
  config.erase("text_config");
  for (const io::JsonMember& member : text.members()) {
    if (member.key != "model_type") config.set(member.key, member.value);
  }
  const ModelConfig flat = test::must(parse(config)).config, nested = test::must(parse(released_config())).config;
  EXPECT_EQ(flat.owns_indexer, nested.owns_indexer);
  EXPECT_EQ(flat.d_model, nested.d_model);
}

TEST(GlmNextConfigTest, AnOverrideIsOfTheText) {
  const ConfigOverride fewer = test::must(parse_config_override("index_topk=1024"));
  EXPECT_EQ(test::must(parse(released_config(), {&fewer, 1})).config.n_topk, 1027);
}

struct Refused {
  const char* name;
  std::function<void(JsonObject& text)> change;
  const char* message;
};
void PrintTo(const Refused& row, std::ostream* out) { *out << row.name; }

std::function<void(JsonObject&)> set(const char* key, JsonValue value) {
  return [=](JsonObject& text) { text.set(key, value); };
}
std::function<void(JsonObject&)> set_linear(const char* key, JsonValue value) {
  return [=](JsonObject& text) { text.find("linear_attn_config")->as_object()->set(key, value); };
}
std::function<void(JsonObject&)> drop(const char* key) {
  return [=](JsonObject& text) { text.erase(key); };
}
std::function<void(JsonObject&)> every_layer(const char* type) {
  return [=](JsonObject& text) { text.set("layer_types", JsonArray(45, JsonValue(type))); };
}

class GlmNextRefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(GlmNextRefusedTest, ByKeyAndValue) {
  JsonObject config = released_config();
  GetParam().change(*config.find("text_config")->as_object());
  const Result<ParsedConfig> parsed = parse(config);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find(GetParam().message), std::string::npos) << parsed.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Configs, GlmNextRefusedTest,
    testing::Values(
        Refused{"Rope", set("qk_rope_head_dim", 64), "qk_rope_head_dim is 64"},
        Refused{"NoPool", drop("index_kpool"), "index_kpool is missing"},
        Refused{"PoolThatDoesNotDivide", set("index_kpool", 3), "index_topk is 2048"},
        Refused{"MeanOfKeys", set("index_kpool_compress", false), "index_kpool_compress is false"},
        Refused{"NoTail", set("index_kpool_always_select_tail", false), "index_kpool_always_select_tail is false"},
        Refused{"SharedPicks", set("indexer_types", JsonArray{"shared"}), "indexer_types is"},
        Refused{"Frequency", set("index_topk_freq", 4), "index_topk_freq is 4"},
        Refused{"NoLinear", drop("linear_attn_config"), "linear_attn_config is missing"},
        Refused{"LongConvolution", set_linear("short_conv_kernel_size", 17), "short_conv_kernel_size is 17"},
        Refused{"NoLowerBound", set_linear("gate_lower_bound", nullptr), "gate_lower_bound is null"},
        Refused{"UnboundedDecay", set_linear("safe_gate", false), "safe_gate is false"},
        Refused{"GrowingState", set_linear("gate_lower_bound", 1), "gate_lower_bound is 1"},
        Refused{"AllLinear", every_layer("linear_attention"), "layer_types is a list of 45, expected 45 entries"},
        Refused{"OtherKind", every_layer("sliding_attention"), "layer_types is a list of 45, expected \"linear"},
        Refused{"FewKinds", set("layer_types", JsonArray{"linear_attention"}), "layer_types is a list of 1"},
        Refused{"DenseLater", set("mlp_layer_types", JsonArray{"sparse", "dense"}), "mlp_layer_types is a list of 2"},
        Refused{"Groups", set("n_group", 8), "n_group is 8"}, Refused{"NoStreams", set("mhc", false), "mhc is false"},
        Refused{"FewExperts", set("num_experts_per_tok", 289), "num_experts_per_tok is 289"},
        Refused{"HeadDim", set("head_dim", 64), "head_dim is 64"},
        Refused{"KeyHeads", set("num_key_value_heads", 8), "num_key_value_heads is 8"}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace levin
