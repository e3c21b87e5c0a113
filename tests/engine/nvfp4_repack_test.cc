// Releases whose experts somebody stored again in NVFP4, next to matrices that stay as they were: what is stored how is read
// from the tensors, whatever the keys of the config say.
//
// DeepSeek-V4  a bit-exact cast of the trunk's MXFP4 experts, the rest in FP8 and `mtp.*` in MXFP4 as before: the fixture's
//              oracle is met
// DeepSeek-V3  the rest in BF16, and the second file alone says so: compared with the same weights in BF16, which holds an
//              E2M1 value times an E4M3 scale and a power of two exactly
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "arch/deepseek_v3/weights.h"
#include "arch/deepseek_v4/weights.h"
#include "base/numbers.h"
#include "engine/loaded_model.h"
#include "engine/oracle_trace.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::StoredDtype;

constexpr int64_t kNvGroup = 16;
constexpr int kFactorExponent = -9;  // of the matrix: scales by group are then normal E4M3 numbers

std::vector<std::byte> bytes_of(float x) {
  std::vector<std::byte> bytes(sizeof(x));
  std::memcpy(bytes.data(), &x, sizeof(x));
  return bytes;
}

// 2^exponent as E4M3.
std::byte e4m3_power(int exponent) {
  LEVIN_CHECK(exponent >= -6 && exponent <= 8, "2^{} is no normal E4M3 number", exponent);
  return static_cast<std::byte>((exponent + 7) << 3);
}

// A matrix of [N, K] E2M1 codes, two in a byte, under the names of ModelOpt; `scale` is that of row i's group g.
void add_nvfp4(TempCheckpoint& model, const std::string& base, DrawnTensor codes,
               const std::function<std::byte(int64_t i, int64_t g)>& scale) {
  const int64_t n = codes.shape[0], n_groups = codes.shape[1] * 2 / kNvGroup;
  codes.name = base + ".weight", codes.dtype = StoredDtype::kU8;
  DrawnTensor scales{
      .name = base + ".weight_scale", .dtype = StoredDtype::kF8_E4M3, .shape = {n, n_groups}, .bytes = {}};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t g = 0; g < n_groups; ++g) scales.bytes.push_back(scale(i, g));
  }
  model.remove_tensor(codes.name);
  model.add_tensor(std::move(codes));
  model.add_tensor(std::move(scales));
  model.add_tensor({.name = base + ".weight_scale_2",
                    .dtype = StoredDtype::kF32,
                    .shape = {},
                    .bytes = bytes_of(std::ldexp(1.0f, kFactorExponent))});
  model.add_tensor({.name = base + ".input_scale", .dtype = StoredDtype::kF32, .shape = {}, .bytes = bytes_of(0.25f)});
}

std::vector<std::string> matrices_of(const TempCheckpoint& model, const std::string& prefix, const std::string& part) {
  std::vector<std::string> bases;
  for (const std::string& name : model.tensor_names()) {
    if (!name.starts_with(prefix) || name.find(part) == std::string::npos || !name.ends_with(".weight")) continue;
    bases.push_back(name.substr(0, name.size() - std::string(".weight").size()));
  }
  return bases;
}

TraceResult trace_of(const Model& model, const TraceOptions& options) {
  Runner runner(model, runner_options(trace_cache_tokens(options)));
  return must(trace(runner, options));
}

// ---- DeepSeek-V4 -------------------------------------------------------------------------------------------------

// The trunk's experts: a group of 32 becomes two of 16 with its scale, 2^(byte - 127).
void cast_to_nvfp4(TempCheckpoint& model) {
  for (const std::string& base : matrices_of(model, "layers.", ".ffn.experts.")) {
    const DrawnTensor scales = model.tensor(base + ".scale"), codes = model.tensor(base + ".weight");
    model.remove_tensor(base + ".scale");
    add_nvfp4(model, base, codes, [&](int64_t i, int64_t g) {
      const auto e8m0 = static_cast<int>(scales.bytes[static_cast<size_t>(i * scales.shape[1] + g / 2)]);
      return e4m3_power(e8m0 - 127 - kFactorExponent);
    });
  }
}

// As the repacks of DeepSeek-V4 have them, in addition to those of the original.
void set_repack_keys(TempCheckpoint& model) {
  model.set_config("quantization_config.moe_quant_algo", "NVFP4");
  model.set_config("quantization_config.quant_algo", "MIXED_PRECISION");
  model.set_config("quantization_config.group_size", 16);
  model.set_config("quantization_config.ignore", JsonArray{"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"});
  JsonObject layers = *model.config().find("quantization_config")->as_object();
  layers.set("quantized_layers",
             JsonObject{{"layers.0.ffn.experts", JsonObject{{"quant_algo", "NVFP4"}, {"group_size", 16}}}});
  model.set_config("quantization_config", layers);
}

class V4RepackTest : public ::testing::TestWithParam<const char*> {};

void expect_experts(const ModelWeights& w, DType of_trunk) {
  const DeepseekV4Weights& own = deepseek_v4::own(w);
  for (const V4LayerWeights& layer : own.layers) EXPECT_EQ(layer.moe.experts[0].gate.dtype(), of_trunk);
  if (own.mtp) {
    EXPECT_EQ(own.mtp->layer.moe.experts[0].gate.dtype(), DType::kMxfp4);
  }
  if (!own.dspark) return;
  for (const V4LayerWeights& stage : own.dspark->stages) EXPECT_EQ(stage.moe.experts[0].gate.dtype(), DType::kMxfp4);
}

// With the keys of a repack and without, and for keys that say NVFP4 of a file without it.
TEST_P(V4RepackTest, MeetsTheOracleWithItsDraftersInMxfp4) {
  const Oracle oracle(GetParam());
  for (const auto& [casts, says_so] : {std::pair{true, true}, {true, false}, {false, true}}) {
    SCOPED_TRACE(fmt::format("{} {}", casts, says_so));
    TempCheckpoint repack = TempCheckpoint::from_fixture(GetParam());
    if (casts) cast_to_nvfp4(repack);
    if (says_so) set_repack_keys(repack);
    const std::filesystem::path folder = repack.write();
    const ParsedConfig parsed = must(load_model_config(folder));
    EXPECT_EQ(parsed.warnings, std::vector<std::string>());
    EXPECT_EQ(parsed.config.nvfp4_experts, says_so);
    const DType of_trunk = casts ? DType::kNvfp4 : DType::kMxfp4;
    const std::unique_ptr<Model> model =
        load_model(folder, {.change_weights = [of_trunk](ModelWeights& w) { expect_experts(w, of_trunk); }});
    expect_reference(trace_of(*model, oracle_options(oracle, 0)), oracle, model->config());
  }
}

// A loader that goes by the keys alone takes the drafter's matrices for NVFP4, and few drafts are accepted.
TEST_P(V4RepackTest, ADrafterReadAsNvfp4IsNamed) {
  TempCheckpoint repack = TempCheckpoint::from_fixture(GetParam());
  cast_to_nvfp4(repack);
  set_repack_keys(repack);
  const std::string matrix = "mtp.0.ffn.experts.1.w2.weight";
  repack.set_dtype(matrix, StoredDtype::kU8);
  const std::filesystem::path folder = repack.write();
  const ModelConfig config = must(load_model_config(folder)).config;
  const Status status = check_weights(config, must(io::Checkpoint::open(folder)));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("mtp.0.ffn.experts.1.w2.weight_scale: expected F8_E4M3"), std::string::npos)
      << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, V4RepackTest, ::testing::Values("v4-fp4", "v4-dspark"),
                         [](const auto& fixture) { return test_name(fixture.param); });

// ---- DeepSeek-V3.2 -----------------------------------------------------------------------------------------------

// Row i's scale of group g, from 2^0 to 15 * 2^2 by many mantissas.
std::byte drawn_scale(int64_t i, int64_t g) { return static_cast<std::byte>(0x38 + (i * 7 + g * 5) % 24); }

uint8_t code_of(const DrawnTensor& codes, int64_t i, int64_t column) {
  const auto pair = static_cast<uint8_t>(codes.bytes[static_cast<size_t>(i * codes.shape[1] + column / 2)]);
  return column % 2 == 0 ? pair & 0xF : pair >> 4;
}

// The weights that NVFP4 tensors stand for, as BF16.
DrawnTensor widened(const DrawnTensor& codes, const std::string& name) {
  const int64_t n = codes.shape[0], k = 2 * codes.shape[1];
  DrawnTensor out{.name = name, .dtype = StoredDtype::kBF16, .shape = {n, k}, .bytes = {}};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t column = 0; column < k; ++column) {
      const float scale = e4m3_to_f32(static_cast<uint8_t>(drawn_scale(i, column / kNvGroup)));
      const float value = e2m1_to_f32(code_of(codes, i, column)) * scale * std::ldexp(1.0f, kFactorExponent);
      const uint16_t bits = f32_to_bf16(value);
      LEVIN_CHECK(bf16_to_f32(bits) == value, "{} is not exact in BF16", value);
      out.bytes.push_back(static_cast<std::byte>(bits & 0xFF));
      out.bytes.push_back(static_cast<std::byte>(bits >> 8));
    }
  }
  return out;
}

TEST(V32RepackTest, IsTheModelOfItsWidenedExperts) {
  TempCheckpoint repack = TempCheckpoint::from_fixture("v32-shared"), wide = TempCheckpoint::from_fixture("v32-shared");
  const ModelConfig config = must(load_model_config(fixture_folder("v32-shared"))).config;
  const std::string mtp = fmt::format("model.layers.{}.", config.n_layers);
  for (const std::string& base : matrices_of(repack, "model.layers.", ".mlp.experts.")) {
    if (base.starts_with(mtp)) continue;
    DrawnTensor codes = repack.tensor(base + ".weight");  // the low bytes of its BF16 values, as codes
    codes.shape.back() /= 2;
    for (size_t i = 0; i < codes.bytes.size() / 4; ++i) codes.bytes[i] = codes.bytes[4 * i] ^ codes.bytes[4 * i + 2];
    codes.bytes.resize(codes.bytes.size() / 4);
    wide.remove_tensor(base + ".weight");
    wide.add_tensor(widened(codes, base + ".weight"));
    add_nvfp4(repack, base, codes, drawn_scale);
  }
  const std::filesystem::path folder = repack.write();
  repack.write_text("hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})");
  EXPECT_TRUE(must(load_model_config(folder)).config.nvfp4_experts);
  const std::unique_ptr<Model> model =
      load_model(folder, {.change_weights = [](ModelWeights& w) {
                   MlaWeights& own = mla::own(w);
                   EXPECT_EQ(own.layers.back().moe->experts[0].up.dtype(), DType::kNvfp4);
                   EXPECT_EQ(own.mtp->layer.moe->experts[0].up.dtype(), DType::kBF16);
                 }});
  const TraceOptions options = oracle_options(Oracle("v32-shared"), 0);
  const TraceResult found = trace_of(*model, options), expected = trace_of(*load_model(wide.write()), options);
  EXPECT_LE(relative_error(found.logits, expected.logits), kOracleTolerance);
  EXPECT_LE(relative_error(found.draft_logits, expected.draft_logits), kOracleTolerance);
  EXPECT_EQ(found.greedy_ids, expected.greedy_ids);
  EXPECT_EQ(found.draft_tokens, expected.draft_tokens);
}

}  // namespace
}  // namespace levin::test
