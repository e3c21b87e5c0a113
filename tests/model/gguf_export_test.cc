// A model as GGUF: names, types, shapes and, where they are rearranged, values. What another program's reader makes of
// whole files is for tests/apps/gguf_test.py.
#include "model/gguf_export.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "arch/deepseek_v4/architecture.h"
#include "arch/load_config.h"
#include "base/check.h"
#include "base/numbers.h"
#include "model/weight_store.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

using io::GgufType;

ModelConfig config_of(const std::string& fixture) {
  return test::must(load_model_config(std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/" + fixture)).config;
}

struct Exported {
  ModelConfig config;
  TensorSource source;
  GgufExport gguf;
  std::map<std::string, const io::GgufTensor*> tensors;

  explicit Exported(const std::string& fixture, const GgufOptions& options = {})
      : config(config_of(fixture)),
        source(dummy_tensors(config)),
        gguf(test::must(export_gguf(config, source, options))) {
    for (const io::GgufTensor& tensor : gguf.file.tensors()) tensors[tensor.name] = &tensor;
  }
  Exported(const Exported&) = delete;

  const io::GgufTensor& at(const std::string& name) const {
    LEVIN_CHECK(tensors.contains(name), "no tensor {}", name);
    return *tensors.at(name);
  }
  std::string bytes(const std::string& name) const {
    std::string out;
    test::must(at(name).write([&](std::span<const std::byte> piece) -> Status {
      out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return {};
    }));
    return out;
  }
  // Of the checkpoint's tensor, as f32.
  std::vector<float> stored(const std::string& name) const {
    std::vector<float> out;
    for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
      if (row.name != name) continue;
      test::must(source.read(row, [&](const io::StoredTensor& tensor, const StoredScales* scales) -> Status {
        LEVIN_ASSIGN(out, dequantise(tensor, scales));
        return {};
      }));
    }
    return out;
  }
};

std::vector<float> as_bf16(const std::string& bytes) {
  std::vector<float> out;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t code;
    std::memcpy(&code, bytes.data() + i, 2);
    out.push_back(bf16_to_f32(code));
  }
  return out;
}

// Of every fixture, each value once: nothing is lost and nothing comes twice.
TEST(GgufExportTest, HoldsEveryParameterOfTheTrunk) {
  for (const char* fixture :
       {"v32-odd", "v32-fp8", "glm-shared", "glm-pattern", "glm-nvfp4", "v4-flash", "v4-fp4", "v4-dspark"}) {
    SCOPED_TRACE(fixture);
    const Exported e(fixture);
    int64_t n_expected = 0, n_found = 0;
    const bool v4 = e.config.family == &kDeepseekV4;
    for (const WeightRow& row : weight_table(e.config, nullptr, nullptr)) {
      if (!row.mtp || !v4) n_expected += n_elements(row);
    }
    for (const auto& [name, tensor] : e.tensors) {
      int64_t n = 1;
      for (const int64_t dim : tensor->shape) n *= dim;
      n_found += n;
    }
    EXPECT_EQ(n_found, n_expected);
    EXPECT_EQ(e.gguf.warnings.size(), v4 ? 1u : 0u);
  }
}

TEST(GgufExportTest, CutsTheUpProjectionAndTransposesItsKeys) {
  const Exported e("v32-odd");
  const ModelConfig& c = e.config;
  EXPECT_EQ(e.at("blk.1.attn_k_b.weight").shape, (std::vector<int64_t>{c.n_heads, c.d_latent, c.d_nope}));
  EXPECT_EQ(e.at("blk.1.attn_v_b.weight").shape, (std::vector<int64_t>{c.n_heads, c.d_value, c.d_latent}));
  const std::vector<float> up = e.stored("model.layers.1.self_attn.kv_b_proj.weight");
  const std::vector<float> keys = as_bf16(e.bytes("blk.1.attn_k_b.weight"));
  const std::vector<float> values = as_bf16(e.bytes("blk.1.attn_v_b.weight"));
  const int64_t n = c.d_nope + c.d_value;
  for (int64_t head = 0; head < c.n_heads; ++head) {
    for (int64_t col = 0; col < c.d_latent; ++col) {
      for (int64_t i = 0; i < c.d_nope; ++i) {
        ASSERT_EQ(keys[static_cast<size_t>((head * c.d_latent + col) * c.d_nope + i)],
                  up[static_cast<size_t>((head * n + i) * c.d_latent + col)]);
      }
      for (int64_t i = 0; i < c.d_value; ++i) {
        ASSERT_EQ(values[static_cast<size_t>((head * c.d_value + i) * c.d_latent + col)],
                  up[static_cast<size_t>((head * n + c.d_nope + i) * c.d_latent + col)]);
      }
    }
  }
}

TEST(GgufExportTest, ExpertsOfALayerAreOneTensor) {
  const Exported e("glm-shared");
  const io::GgufTensor& up = e.at("blk.3.ffn_up_exps.weight");
  EXPECT_EQ(up.shape, (std::vector<int64_t>{e.config.n_experts, e.config.d_expert, e.config.d_model}));
  std::vector<float> expected;
  for (int64_t expert = 0; expert < e.config.n_experts; ++expert) {
    const auto one = e.stored("model.layers.3.mlp.experts." + std::to_string(expert) + ".up_proj.weight");
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_EQ(as_bf16(e.bytes("blk.3.ffn_up_exps.weight")), expected);
  EXPECT_EQ(e.at("blk.3.ffn_gate_inp.weight").type, GgufType::kF32);
  EXPECT_EQ(e.at("blk.3.exp_probs_b.bias").type, GgufType::kF32);
}

TEST(GgufExportTest, LayersThatSharePicksHaveNoIndexer) {
  const Exported e("glm-pattern");  // FSFSSF
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(e.tensors.contains("blk." + std::to_string(layer) + ".indexer.attn_k.weight"),
              e.config.has_indexer(layer));
  }
  EXPECT_TRUE(e.tensors.contains("blk.6.indexer.attn_k.weight"));
  EXPECT_TRUE(e.tensors.contains("blk.6.nextn.eh_proj.weight"));
}

// Value i of a group next to value i + 16; the scale in front.
TEST(GgufExportTest, Mxfp4KeepsItsCodes) {
  const Exported e("v4-fp4");
  const ModelConfig& c = e.config;
  const io::GgufTensor& down = e.at("blk.2.ffn_down_exps.weight");
  EXPECT_EQ(down.type, GgufType::kMxfp4);
  EXPECT_EQ(down.shape, (std::vector<int64_t>{c.n_experts, c.d_model, c.d_expert}));
  const std::string bytes = e.bytes("blk.2.ffn_down_exps.weight");
  const int64_t n_groups = c.d_model * c.d_expert / 32;
  for (const WeightRow& row : weight_table(c, nullptr, nullptr)) {
    if (row.name != "layers.2.ffn.experts.1.w2.weight") continue;
    test::must(e.source.read(row, [&](const io::StoredTensor& tensor, const StoredScales* scales) -> Status {
      for (int64_t g = 0; g < n_groups; ++g) {
        const char* group = bytes.data() + (n_groups + g) * 17;
        EXPECT_EQ(static_cast<std::byte>(group[0]), scales->of_blocks->bytes[static_cast<size_t>(g)]);
        for (int64_t i = 0; i < 32; ++i) {
          const auto pair = static_cast<uint8_t>(tensor.bytes[static_cast<size_t>(g * 16 + i / 2)]);
          const auto found = static_cast<uint8_t>(group[1 + i % 16]);
          EXPECT_EQ(i < 16 ? found & 15 : found >> 4, i % 2 == 0 ? pair & 15 : pair >> 4);
        }
      }
      return {};
    }));
  }
  EXPECT_EQ(e.at("blk.0.ffn_gate_tid2eid.weight").type, GgufType::kI32);
  EXPECT_EQ(e.at("output_hc_fn.weight").type, GgufType::kF32);
}

TEST(GgufExportTest, CountsWhatATypeDoesNotHold) {
  const Exported f32("v32-odd", {.architecture = "", .matrices = GgufType::kF32});
  const Exported f16("v32-odd", {.architecture = "", .matrices = GgufType::kF16});
  f32.bytes("blk.0.attn_q_a.weight");
  f16.bytes("blk.0.attn_q_a.weight");
  EXPECT_EQ(f32.gguf.rounding->n_values, f32.config.d_q_lora * f32.config.d_model);
  EXPECT_EQ(f32.gguf.rounding->n_rounded, 0);
  EXPECT_LT(f16.gguf.rounding->n_rounded, f16.gguf.rounding->n_values / 100);  // bf16 values near zero
}

TEST(GgufExportTest, ArchitecturesAreOfTheFamily) {
  EXPECT_EQ(Exported("v32-odd", {.architecture = "glm-dsa"}).gguf.warnings.size(), 1u);
  const ModelConfig glm = config_of("glm-shared");
  const auto wrong = export_gguf(glm, dummy_tensors(glm), {.architecture = "deepseek32"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().kind, ErrorKind::kUsage);
  EXPECT_EQ(wrong.error().message, "architecture 'deepseek32': GLM-5 can be written as glm-dsa");
}

// deepseek32 has no schedule of indexers; glm-dsa has.
TEST(GgufExportTest, LayersThatSharePicksNeedAnArchitectureThatSaysSo) {
  const ModelConfig shared = config_of("v32-shared");
  const auto refused = export_gguf(shared, dummy_tensors(shared), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUsage);
  EXPECT_NE(refused.error().message.find("3 of 6 layers share the top-k indices of others; write it as glm-dsa"),
            std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(export_gguf(shared, dummy_tensors(shared), {.architecture = "glm-dsa"}).ok());
}

TEST(GgufExportTest, RefusesWhatGgufCannotHold) {
  ModelConfig c = config_of("v4-fp4");
  c.d_expert = 80;
  const auto ragged = export_gguf(c, dummy_tensors(c), {});
  ASSERT_FALSE(ragged.ok());
  EXPECT_NE(ragged.error().message.find("w2.weight is MXFP4 with 80 columns"), std::string::npos)
      << ragged.error().message;

  test::TempCheckpoint model = test::TempCheckpoint::from_fixture("v4-fp4");
  model.tensor("layers.0.ffn.experts.0.w1.scale").bytes[3] = std::byte{0xFF};
  const io::Checkpoint checkpoint = test::must(io::Checkpoint::open(model.write()));
  const ModelConfig whole = config_of("v4-fp4");
  const GgufExport gguf = test::must(export_gguf(whole, checkpoint_tensors(checkpoint, true), {}));
  const Status status = gguf.file.write(model.path() / "x.gguf");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "layers.0.ffn.experts.0.w1.scale has a scale that is NaN");
}

// The experts of a layer are one tensor with one type, which is not that of the first where another is stored otherwise.
TEST(GgufExportTest, RefusesExpertsOfWhichOnlySomeAreMxfp4) {
  const ModelConfig c = config_of("v4-fp4");
  for (const char* other : {"layers.1.ffn.experts.0.w2.", "layers.1.ffn.experts.1.w2."}) {
    test::TempCheckpoint model = test::TempCheckpoint::from_fixture("v4-fp4");
    const std::string name = other;
    model.set_dtype(name + "weight", io::StoredDtype::kBF16);
    model.set_shape(name + "weight", {c.d_model, c.d_expert});
    model.remove_tensor(name + "scale");
    const io::Checkpoint checkpoint = test::must(io::Checkpoint::open(model.write()));
    test::must(check_weights(c, checkpoint));  // the model runs
    const auto refused = export_gguf(c, checkpoint_tensors(checkpoint, true), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::kModelInvalid);
    EXPECT_EQ(
        refused.error().message,
        fmt::format("layers.1.ffn.experts.1.w2.weight is {}, layers.1.ffn.experts.0.w2.weight {}; the experts of a "
                    "layer are one tensor in GGUF: store all as MXFP4, or none",
                    name.find("experts.1") != std::string::npos ? "BF16" : "I8",
                    name.find("experts.1") != std::string::npos ? "I8" : "BF16"));
  }
}

TEST(GgufExportTest, RefusesF16ThatWouldBeInfinite) {
  for (const char* name : {"model.layers.1.self_attn.q_a_proj.weight", "model.layers.1.self_attn.kv_b_proj.weight"}) {
    test::TempCheckpoint model = test::TempCheckpoint::from_fixture("v32-odd");
    const uint16_t large = f32_to_bf16(65536.0f);
    std::memcpy(model.tensor(name).bytes.data() + 6, &large, sizeof(large));
    const io::Checkpoint checkpoint = test::must(io::Checkpoint::open(model.write()));
    const ModelConfig c = config_of("v32-odd");
    const GgufOptions f16{.architecture = "", .matrices = GgufType::kF16};
    const GgufExport gguf = test::must(export_gguf(c, checkpoint_tensors(checkpoint, true), f16));
    const Status status = gguf.file.write(model.path() / "x.gguf");
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().message,
              std::string(name) + " has values beyond 65504, the largest of f16; write bf16 or f32 instead");
  }
}

}  // namespace
}  // namespace levin
