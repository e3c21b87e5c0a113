// Experts in NVFP4 as ModelOpt and compressed-tensors write them: what is read, what is refused, what configs say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "arch/deepseek_v3/weights.h"
#include "arch/load_config.h"
#include "model/memory_plan.h"
#include "model/weight_table.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

using io::StoredDtype;
using test::must;
using test::TempCheckpoint;

const std::string kExpert = "model.layers.2.mlp.experts.3.";

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
};

Result<Loaded> load(const std::filesystem::path& folder, NumericsMode mode = NumericsMode::kReference) {
  Loaded out;
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(folder.string()));
  out.config = std::move(parsed.config);
  LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(folder));
  ThreadPool pool(2);
  LEVIN_ASSIGN(out.weights, load_weights(out.config, must(make_numerics(mode, "auto")), checkpoint, pool, {}, nullptr));
  return out;
}

const ops::FfnWeights& expert(const Loaded& model) { return mla::own(model.weights).layers[2].moe->experts[3]; }

void set_scalar(TempCheckpoint& model, const std::string& name, float value) {
  std::memcpy(model.tensor(name).bytes.data(), &value, sizeof(value));
}

// Tensors of ModelOpt's container under the names and with the shapes of compressed-tensors, factors that are powers of
// two inverted.
void respell(TempCheckpoint& model) {
  for (const std::string& name : model.tensor_names()) {
    const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
    const std::string base = name.substr(0, name.rfind('.'));
    if (ends(".weight") && model.tensor(name).dtype == StoredDtype::kU8) {
      model.rename_tensor(name, base + ".weight_packed");
    } else if (ends(".weight_scale_2")) {
      set_scalar(model, name, 0x1p9f);
      model.set_shape(name, {1});
      model.rename_tensor(name, base + ".weight_global_scale");
    } else if (ends(".input_scale")) {
      model.set_shape(name, {1});
      model.rename_tensor(name, base + ".input_global_scale");
    }
  }
  model.erase_config("quantization_config");
  model.set_config("quantization_config.quant_method", "compressed-tensors");
  model.set_config("quantization_config.format", "nvfp4-pack-quantized");
}

TEST(Nvfp4Test, BothContainersHoldTheSameWeights) {
  TempCheckpoint by_modelopt = TempCheckpoint::from_fixture("glm-nvfp4");
  TempCheckpoint respelled = TempCheckpoint::from_fixture("glm-nvfp4");
  for (const std::string& name : by_modelopt.tensor_names()) {
    if (name.ends_with(".weight_scale_2")) set_scalar(by_modelopt, name, 0x1p-9f);
  }
  respell(respelled);
  const Loaded a = must(load(by_modelopt.write())), b = must(load(respelled.write()));
  for (const auto matrix : {&ops::FfnWeights::gate, &ops::FfnWeights::up, &ops::FfnWeights::down}) {
    const Matrix &one = expert(a).*matrix, &other = expert(b).*matrix;
    ASSERT_EQ(one.dtype(), DType::kNvfp4);
    ASSERT_EQ(other.dtype(), DType::kNvfp4);
    for (int64_t i = 0; i < one.n() * one.k(); ++i) {
      ASSERT_EQ(one.stored(i / one.k(), i % one.k()), other.stored(i / one.k(), i % one.k()));
      ASSERT_EQ(one.scale(i / one.k(), i % one.k()), other.scale(i / one.k(), i % one.k()));
    }
  }
}

TEST(Nvfp4Test, FactorsMayHaveTheShapeOfTheOtherContainer) {
  TempCheckpoint by_modelopt = TempCheckpoint::from_fixture("glm-nvfp4");
  TempCheckpoint respelled = TempCheckpoint::from_fixture("glm-nvfp4");
  respell(respelled);
  for (const std::string& name : by_modelopt.tensor_names()) {
    if (name.ends_with("_scale_2") || name.ends_with(".input_scale")) by_modelopt.set_shape(name, {1});
  }
  for (const std::string& name : respelled.tensor_names()) {
    if (name.ends_with("_global_scale")) respelled.set_shape(name, {});
  }
  for (TempCheckpoint* model : {&by_modelopt, &respelled}) {
    const auto loaded = load(model->write());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  }
}

TEST(Nvfp4Test, PlansCountWhatIsStored) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  const std::filesystem::path folder = model.write();
  const Loaded loaded = must(load(folder));
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder));
  const Numerics numerics = must(make_numerics(NumericsMode::kReference, "auto"));
  const MemoryPlan by_tensors = plan_memory(loaded.config, numerics, &checkpoint, {}),
                   by_config = plan_memory(loaded.config, numerics, nullptr, {});
  EXPECT_TRUE(loaded.config.nvfp4_experts);
  EXPECT_FALSE(loaded.config.fp8_blocks);
  EXPECT_EQ(by_tensors.weights_bytes, by_config.weights_bytes);
  const Matrix& gate = expert(loaded).gate;  // [48, 96]
  EXPECT_EQ(gate.n_bytes(), 3 * 16 * (96 / 2 + 96 / 16) + 4);
}

// Four-bit weights alone: inputs are rounded as for weights that are not quantised.
TEST(Nvfp4Test, InputsAreNotRoundedToFp8) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  const std::filesystem::path folder = model.write();
  EXPECT_EQ(expert(must(load(folder, NumericsMode::kOfficial))).input, ops::Operand::kF32);
  EXPECT_EQ(expert(must(load(folder, NumericsMode::kFast))).input, ops::Operand::kBF16);
}

TEST(Nvfp4Test, AnotherFileMaySayIt) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  model.erase_config("quantization_config");
  const std::filesystem::path folder = model.write();
  EXPECT_FALSE(must(load_model_config(folder.string())).config.nvfp4_experts);
  model.write_text("hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})");
  EXPECT_TRUE(must(load_model_config(folder.string())).config.nvfp4_experts);
  model.write_text("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  const auto refused = load_model_config(folder.string());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("quant_algo is \"FP8\""), std::string::npos) << refused.error().message;
}

TEST(Nvfp4Test, AnotherFileThatCannotBeReadIsAnError) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-shared");
  const std::filesystem::path folder = model.write();
  std::filesystem::create_symlink("hf_quant_config.json", folder / "hf_quant_config.json");  // to itself
  const auto parsed = load_model_config(folder.string());
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(parsed.error().message.find("cannot open " + (folder / "hf_quant_config.json").string()), std::string::npos)
      << parsed.error().message;
}

TEST(Nvfp4Test, DummiesAreStoredAsTheConfigSays) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  const ModelConfig config = must(load_model_config(model.write().string())).config;
  ThreadPool pool(2);
  const Loaded dummy{.config = config,
                     .weights = must(dummy_weights(config, must(make_numerics(NumericsMode::kFast, "auto")), pool))};
  EXPECT_EQ(expert(dummy).down.dtype(), DType::kNvfp4);
  EXPECT_EQ(mla::own(dummy.weights).mtp->layer.moe->experts[0].down.dtype(), DType::kBF16);
}

// Releases of GLM as their headers have been counted: elements of each type, scales among them.
struct ReleasedElements {
  const char* folder;
  int64_t n_tensors;  // with a scale each or three
  std::map<StoredDtype, int64_t> elements;
  int64_t n_bytes;
  int64_t n_unread;  // input scales, an F32 for every matrix in NVFP4
};

const ReleasedElements kReleasedElements[] = {
    {"glm-5.3",
     118'629,
     {{StoredDtype::kF8_E4M3, 751'226'191'872}, {StoredDtype::kBF16, 2'103'729'152}, {StoredDtype::kF32, 45'872'560}},
     755'617'140'416,
     0},
    {"glm-5.2-nvfp4",
     // as many matrices and vectors as in FP8, where 59,044 have a scale; 57,600 have three here
     118'629 - 59'044 + 3 * 57'600,
     {{StoredDtype::kU8, 362'387'865'600},
      {StoredDtype::kF8_E4M3, 45'298'483'200},
      {StoredDtype::kBF16, 28'554'189'824},
      {StoredDtype::kF32, 134'656}},
     464'795'267'072,
     57'600},
};

TEST(Nvfp4Test, TheReleasesHaveAsManyElements) {
  for (const ReleasedElements& release : kReleasedElements) {
    SCOPED_TRACE(release.folder);
    const ModelConfig config = must(load_model_config(test::fixture_folder(release.folder).string())).config;
    std::map<StoredDtype, int64_t> elements = {{StoredDtype::kF32, release.n_unread}};
    int64_t n_tensors = release.n_unread, n_weights = 0, n_bytes = 0;
    for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
      const bool bias = row.name.ends_with("e_score_correction_bias");
      const StoredDtype dtype = bias ? StoredDtype::kF32 : released_dtype(row, config);
      const bool nvfp4 = dtype == StoredDtype::kU8;
      n_weights += bias ? 0 : n_elements(row);
      elements[dtype] += n_elements(row) / (nvfp4 ? 2 : 1);
      ++n_tensors;
      if (!is_quantised(dtype)) continue;
      const std::vector<int64_t> scales = scale_shape(row, dtype);
      elements[nvfp4 ? StoredDtype::kF8_E4M3 : StoredDtype::kF32] += scales[0] * scales[1];
      elements[StoredDtype::kF32] += nvfp4 ? 1 : 0;
      n_tensors += nvfp4 ? 2 : 1;
    }
    for (const auto& [dtype, n] : elements) n_bytes += n * static_cast<int64_t>(io::dtype_bytes(dtype));
    EXPECT_EQ(n_weights, 753'329'921'024);
    EXPECT_EQ(n_tensors, release.n_tensors);
    EXPECT_TRUE(elements == release.elements);
    EXPECT_EQ(n_bytes, release.n_bytes);
  }
}

struct Spoiled {
  const char* name;
  std::function<void(TempCheckpoint&)> spoil;
  const char* message;
};
void PrintTo(const Spoiled& row, std::ostream* out) { *out << row.name; }

const Spoiled kSpoiled[] = {
    {"NoGroupScales", [](TempCheckpoint& m) { m.remove_tensor(kExpert + "up_proj.weight_scale"); },
     "experts.3.up_proj.weight_scale: expected F8_E4M3 [48, 6] with an NVFP4 matrix, found nothing"},
    {"NoFactor", [](TempCheckpoint& m) { m.remove_tensor(kExpert + "up_proj.weight_scale_2"); },
     "experts.3.up_proj.weight_scale_2: expected F32 [] with an NVFP4 matrix, found nothing"},
    {"MisshapenGroupScales", [](TempCheckpoint& m) { m.set_shape(kExpert + "up_proj.weight_scale", {48, 3}); },
     "experts.3.up_proj.weight_scale: expected F8_E4M3 [48, 6], found F8_E4M3 [48, 3]"},
    {"FactorOfAnotherType",
     [](TempCheckpoint& m) { m.set_dtype(kExpert + "up_proj.weight_scale_2", StoredDtype::kBF16); },
     "experts.3.up_proj.weight_scale_2: expected F32 [], found BF16 []"},
    {"TwoFactors",
     [](TempCheckpoint& m) {
       const std::string name = kExpert + "up_proj.weight_scale_2";
       m.tensor(name).bytes.resize(2 * sizeof(float));
       m.set_shape(name, {2});
     },
     "experts.3.up_proj.weight_scale_2: expected F32 [], found F32 [2]"},
    {"NoReciprocal",
     [](TempCheckpoint& m) {
       respell(m);
       m.remove_tensor(kExpert + "up_proj.weight_global_scale");
     },
     "experts.3.up_proj.weight_global_scale: expected F32 [1] with an NVFP4 matrix, found nothing"},
    {"FactorsOfBothContainers",
     [](TempCheckpoint& m) {
       m.add_tensor({.name = kExpert + "up_proj.weight_global_scale", .dtype = StoredDtype::kF32});
     },
     "experts.3.up_proj.weight_global_scale: expected no such tensor, found F32 []"},
    {"NegativeGroupScale",
     [](TempCheckpoint& m) { m.tensor(kExpert + "gate_proj.weight_scale").bytes[7] = std::byte{0xA0}; },
     "experts.3.gate_proj.weight_scale[1, 1] is -"},
    {"NanGroupScale",
     [](TempCheckpoint& m) { m.tensor(kExpert + "gate_proj.weight_scale").bytes[0] = std::byte{0x7F}; },
     "scales of NVFP4 groups must be finite and not negative"},
    {"NanFactor",
     [](TempCheckpoint& m) {
       set_scalar(m, kExpert + "gate_proj.weight_scale_2", std::numeric_limits<float>::quiet_NaN());
     },
     "experts.3.gate_proj.weight: the scale of the whole NVFP4 matrix, or its reciprocal, is nan"},
    {"ZeroReciprocal",
     [](TempCheckpoint& m) {
       respell(m);
       set_scalar(m, kExpert + "gate_proj.weight_global_scale", 0);
     },
     "or its reciprocal, is inf; it must be finite and above 0"},
    {"Router",
     [](TempCheckpoint& m) {
       m.set_dtype("model.layers.2.mlp.gate.weight", StoredDtype::kU8);
       m.set_shape("model.layers.2.mlp.gate.weight", {8, 48});
     },
     "model.layers.2.mlp.gate.weight: expected BF16, F32 or F16 [8, 96], found U8 [8, 48]"},
    {"GroupsOf32", [](TempCheckpoint& m) { m.set_config("quantization_config.group_size", 32); },
     "quantization_config.group_size is 32"},
    {"RotatedInputs",
     [](TempCheckpoint& m) { m.set_config("quantization_config.transform_config.config_groups.R4.type", "hadamard"); },
     "quantization_config.transform_config is {"},
    {"AnotherAlgorithm", [](TempCheckpoint& m) { m.set_config("quantization_config.quant_algo", "FP8"); },
     "quantization_config.quant_algo is \"FP8\""},
};

class Nvfp4RefusedTest : public testing::TestWithParam<Spoiled> {};

TEST_P(Nvfp4RefusedTest, IsNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  GetParam().spoil(model);
  const auto loaded = load(model.write());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(loaded.error().message.find(GetParam().message), std::string::npos) << loaded.error().message;
}

INSTANTIATE_TEST_SUITE_P(Nvfp4, Nvfp4RefusedTest, testing::ValuesIn(kSpoiled),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace levin
