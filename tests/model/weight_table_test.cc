#include "model/weight_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "arch/deepseek_v3/weights.h"
#include "arch/load_config.h"
#include "base/numbers.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

using io::StoredDtype;
using test::must;
using test::TempCheckpoint;

Numerics numerics_of(NumericsMode mode) { return must(make_numerics(mode, "auto")); }

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
  std::vector<std::string> warnings;
};

Result<Loaded> load(const std::filesystem::path& folder, NumericsMode mode = NumericsMode::kReference,
                    int n_threads = 2) {
  Loaded out;
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(folder.string()));
  out.config = std::move(parsed.config);
  LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(folder));
  ThreadPool pool(n_threads);
  LEVIN_ASSIGN(out.weights, load_weights(out.config, numerics_of(mode), checkpoint, pool, {}, &out.warnings));
  return out;
}

void expect_refused(TempCheckpoint& model, const std::vector<std::string>& parts) {
  const auto loaded = load(model.write());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kModelInvalid);
  for (const std::string& part : parts)
    EXPECT_NE(loaded.error().message.find(part), std::string::npos) << loaded.error().message;
}

float stored_value(const test::DrawnTensor& tensor, int64_t i) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, tensor.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  if (tensor.dtype == StoredDtype::kF32) return as(float{});
  if (tensor.dtype == StoredDtype::kBF16) return bf16_to_f32(as(uint16_t{}));
  return e4m3_to_f32(as(uint8_t{}));
}

// Names of DeepSeek-V3.2.
std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }
std::string scale_name_of(const std::string& name) { return name + "_scale_inv"; }

// The value a matrix of the checkpoint stands for, scale applied.
float checkpoint_value(TempCheckpoint& model, const std::string& name, int64_t row, int64_t col) {
  const test::DrawnTensor& tensor = model.tensor(name);
  const float value = stored_value(tensor, row * tensor.shape[1] + col);
  if (tensor.dtype != StoredDtype::kF8_E4M3) return value;
  const test::DrawnTensor& scales = model.tensor(scale_name_of(name));
  return value * stored_value(scales, row / 128 * scales.shape[1] + col / 128);
}

float packed_value(const Matrix& m, int64_t row, int64_t col) { return m.stored(row, col) * m.scale(row, col); }

void expect_equal(TempCheckpoint& model, const std::string& name, const Matrix& m) {
  const std::vector<int64_t> shape = model.tensor(name).shape;
  ASSERT_EQ(m.n(), shape[0]) << name;
  ASSERT_EQ(m.k(), shape[1]) << name;
  for (int64_t row = 0; row < m.n(); ++row) {
    for (int64_t col = 0; col < m.k(); ++col)
      ASSERT_EQ(packed_value(m, row, col), checkpoint_value(model, name, row, col)) << name;
  }
}

class LoadTest : public testing::TestWithParam<const char*> {};

TEST_P(LoadTest, PutsEveryTensorInItsPlace) {
  TempCheckpoint model = TempCheckpoint::from_fixture(GetParam());
  const Loaded loaded = must(load(model.write()));
  const ModelConfig& c = loaded.config;
  const ModelWeights& w = loaded.weights;
  const MlaWeights& own = mla::own(w);
  EXPECT_EQ(loaded.warnings, std::vector<std::string>());
  ASSERT_TRUE(own.mtp.has_value());
  ASSERT_EQ(own.layers.size(), static_cast<size_t>(c.n_layers));

  int last = c.n_layers - 1;
  while (!c.has_indexer(last)) --last;
  const std::string prefix = layer_prefix(last);
  const LayerWeights& layer = own.layers[static_cast<size_t>(last)];
  expect_equal(model, prefix + "self_attn.q_a_proj.weight", layer.attention.q_down.w);
  expect_equal(model, prefix + "self_attn.q_b_proj.weight", layer.attention.q_up.w);
  expect_equal(model, prefix + "self_attn.kv_a_proj_with_mqa.weight", layer.attention.kv_down.w);
  expect_equal(model, prefix + "self_attn.o_proj.weight", layer.attention.o.w);
  expect_equal(model, prefix + "self_attn.indexer.wq_b.weight", layer.indexer->q_up.w);
  expect_equal(model, prefix + "self_attn.indexer.wk.weight", layer.indexer->k.w);
  expect_equal(model, prefix + "self_attn.indexer.weights_proj.weight", layer.indexer->head_weights.w);
  ASSERT_TRUE(layer.moe.has_value());
  expect_equal(model, prefix + "mlp.gate.weight", layer.moe->gate.w);
  expect_equal(model, prefix + "mlp.experts.3.gate_proj.weight", layer.moe->experts[3].gate);
  expect_equal(model, prefix + "mlp.experts.3.up_proj.weight", layer.moe->experts[3].up);
  expect_equal(model, prefix + "mlp.experts.3.down_proj.weight", layer.moe->experts[3].down);
  expect_equal(model, prefix + "mlp.shared_experts.up_proj.weight", layer.moe->shared->up);
  expect_equal(model, "lm_head.weight", w.head.w);
  expect_equal(model, layer_prefix(c.n_layers) + "eh_proj.weight", own.mtp->eh_proj.w);
  for (int64_t i = 0; i < c.d_index; ++i) {
    EXPECT_EQ(layer.indexer->k_norm.view.data<float>()[i],
              stored_value(model.tensor(prefix + "self_attn.indexer.k_norm.weight"), i));
    EXPECT_EQ(layer.indexer->k_norm_bias.view.data<float>()[i],
              stored_value(model.tensor(prefix + "self_attn.indexer.k_norm.bias"), i));
  }
  EXPECT_EQ(w.embed.dim(0), c.n_vocab);
  EXPECT_EQ(std::memcmp(w.embed.bytes(), model.tensor("model.embed_tokens.weight").bytes.data(),
                        static_cast<size_t>(w.embed_storage.n_bytes())),
            0);
}

TEST_P(LoadTest, SplitsTheUpProjectionByHeads) {
  TempCheckpoint model = TempCheckpoint::from_fixture(GetParam());
  const Loaded loaded = must(load(model.write()));
  const ModelConfig& c = loaded.config;
  const std::string name = layer_prefix(0) + "self_attn.kv_b_proj.weight";
  const AttentionWeights& a = mla::own(loaded.weights).layers[0].attention;
  ASSERT_EQ(a.k_up.size(), static_cast<size_t>(c.n_heads));
  ASSERT_EQ(a.v_up.size(), static_cast<size_t>(c.n_heads));
  for (int64_t h = 0; h < c.n_heads; ++h) {
    const Matrix& k_up = a.k_up[static_cast<size_t>(h)];
    const Matrix& v_up = a.v_up[static_cast<size_t>(h)];
    const bool whole_blocks = c.d_nope % kWeightBlock == 0 && c.d_value % kWeightBlock == 0;
    const bool fp8 = whole_blocks && mla::own(loaded.weights).layers[0].attention.q_down.w.dtype() == DType::kF8E4M3;
    EXPECT_EQ(k_up.dtype(), fp8 ? DType::kF8E4M3 : DType::kBF16);  // which every value fits
    EXPECT_EQ(v_up.dtype(), k_up.dtype());
    const int64_t first = h * (c.d_nope + c.d_value);
    for (int64_t r = 0; r < c.d_latent; ++r) {
      for (int64_t j = 0; j < c.d_nope; ++j)
        ASSERT_EQ(packed_value(k_up, r, j), checkpoint_value(model, name, first + j, r));
      for (int64_t j = 0; j < c.d_value; ++j)
        ASSERT_EQ(packed_value(v_up, j, r), checkpoint_value(model, name, first + c.d_nope + j, r));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LoadTest, testing::Values("v32-odd", "v32-fp8", "v32-official", "glm-shared"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LoadWeightsTest, NumericsDecideTheInputsOfProducts) {
  using ops::Operand;
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-official");
  model.write();
  const Loaded official = must(load(model.path(), NumericsMode::kOfficial)),
               fast = must(load(model.path(), NumericsMode::kFast));
  const LayerWeights& o = mla::own(official.weights).layers[0];
  EXPECT_EQ(o.attention.q_down.input, Operand::kFp8);
  EXPECT_EQ(o.moe->experts[0].input, Operand::kFp8);
  EXPECT_EQ(o.moe->experts[0].hidden, Operand::kFp8);
  EXPECT_EQ(o.moe->gate.input, Operand::kF32);
  EXPECT_EQ(o.indexer->head_weights.input, Operand::kF32);
  EXPECT_EQ(official.weights.head.input, Operand::kF32);
  const LayerWeights& f = mla::own(fast.weights).layers[0];
  EXPECT_EQ(f.attention.q_down.input, Operand::kBF16);
  EXPECT_EQ(f.moe->gate.input, Operand::kF32);
  EXPECT_EQ(f.indexer->head_weights.input, Operand::kF32);
  EXPECT_EQ(fast.weights.head.input, Operand::kBF16);
}

TEST(LoadWeightsTest, TypesMayDiffer) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  const std::string name = layer_prefix(1) + "self_attn.indexer.weights_proj.weight";
  const std::vector<int64_t> shape = model.tensor(name).shape;
  test::DrawnTensor f32{.name = name, .dtype = StoredDtype::kF32, .shape = shape, .bytes = {}};
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    const float value = stored_value(model.tensor(name), i);
    f32.bytes.insert(f32.bytes.end(), reinterpret_cast<const std::byte*>(&value),
                     reinterpret_cast<const std::byte*>(&value + 1));
  }
  model.remove_tensor(name);
  model.add_tensor(f32);
  const Loaded loaded = must(load(model.write()));
  EXPECT_EQ(mla::own(loaded.weights).layers[1].indexer->head_weights.w.dtype(), DType::kF32);
  expect_equal(model, name, mla::own(loaded.weights).layers[1].indexer->head_weights.w);
}

TEST(LoadWeightsTest, ShardsAndThreadsDoNotMatter) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  const Loaded one = must(load(model.write(), NumericsMode::kReference, 1));
  const Loaded many = must(load(model.write(3), NumericsMode::kReference, 3));
  const Matrix &a = mla::own(one.weights).layers[0].attention.o.w, &b = mla::own(many.weights).layers[0].attention.o.w;
  ASSERT_EQ(a.n_bytes(), b.n_bytes());
  EXPECT_EQ(std::memcmp(a.panel(0), b.panel(0), static_cast<size_t>(a.n_panels() * a.panel_bytes())), 0);
}

TEST(LoadWeightsTest, TellsHowFarItIs) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  const ModelConfig config = must(load_model_config(model.write().string())).config;
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(model.path()));
  ThreadPool pool(2);
  int64_t last = 0, total = 0;
  bool rising = true;
  const LoadProgress progress{.on_bytes = [&](int64_t done, int64_t all) {
    rising = rising && done >= last && done <= all;
    last = done;
    total = all;
  }};
  must(load_weights(config, numerics_of(NumericsMode::kFast), checkpoint, pool, progress, nullptr));
  EXPECT_TRUE(rising);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, checkpoint.total_bytes());
}

// ---- what does not fit -------------------------------------------------------------------------------------------

TEST(ValidationTest, MissingTensorsAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  model.remove_tensor("model.layers.0.self_attn.q_a_proj.weight");
  model.remove_tensor("model.layers.0.self_attn.q_a_proj.weight_scale_inv");
  expect_refused(
      model,
      {"the tensors do not fit config.json (1 fault):",
       "model.layers.0.self_attn.q_a_proj.weight: expected F8_E4M3, BF16, F32 or F16 [128, 256], found nothing"});
}

TEST(ValidationTest, MissingScalesAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  model.remove_tensor("model.layers.0.self_attn.q_a_proj.weight_scale_inv");
  expect_refused(model, {"model.layers.0.self_attn.q_a_proj.weight_scale_inv: expected F32 or F8_E8M0 [1, 2] with an "
                         "FP8 matrix, found nothing"});
}

TEST(ValidationTest, MisshapenAndWronglyTypedTensorsAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.set_shape("model.norm.weight", {95});
  model.set_dtype("lm_head.weight", StoredDtype::kI8);
  model.set_dtype("model.layers.1.mlp.gate.weight", StoredDtype::kF8_E4M3);
  expect_refused(model, {"3 faults", "model.norm.weight: expected BF16, F32 or F16 [96], found BF16 [95]",
                         "lm_head.weight: expected BF16, F32 or F16 [320, 96], found I8 [320, 96]",
                         "model.layers.1.mlp.gate.weight: expected BF16, F32 or F16 [8, 96], found F8_E4M3 [8, 96]"});
}

TEST(ValidationTest, ScalesOfAnotherShapeOrTypeAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  model.set_shape("model.layers.0.self_attn.q_a_proj.weight_scale_inv", {2, 2});
  model.set_dtype("model.layers.0.self_attn.o_proj.weight_scale_inv", StoredDtype::kBF16);
  expect_refused(model, {"q_a_proj.weight_scale_inv: expected F32 or F8_E8M0 [1, 2], found F32 [2, 2]",
                         "o_proj.weight_scale_inv: expected F32 or F8_E8M0"});
}

TEST(ValidationTest, SurplusTensorsAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.add_tensor(
      {.name = "model.layers.0.self_attn.q_proj.weight", .dtype = StoredDtype::kBF16, .shape = {4, 4}, .bytes = {}});
  model.add_tensor({.name = "lm_head.weight_scale_inv", .dtype = StoredDtype::kF32, .shape = {3, 1}, .bytes = {}});
  expect_refused(model,
                 {"2 faults", "model.layers.0.self_attn.q_proj.weight: expected no such tensor, found BF16 [4, 4]",
                  "lm_head.weight_scale_inv"});
}

TEST(ValidationTest, LayersThatSharePicksNeedNoIndexer) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-shared");
  const Loaded loaded = must(load(model.write()));
  EXPECT_EQ(loaded.warnings, std::vector<std::string>());
  for (int layer = 0; layer < loaded.config.n_layers; ++layer) {
    EXPECT_EQ(mla::own(loaded.weights).layers[static_cast<size_t>(layer)].indexer.has_value(),
              loaded.config.has_indexer(layer));
  }
  EXPECT_TRUE(mla::own(loaded.weights).mtp->layer.indexer.has_value());
}

TEST(ValidationTest, IndexersOfLayersThatSharePicksAreNotUsed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-shared");
  const std::string from = layer_prefix(2) + "self_attn.indexer.", to = layer_prefix(3) + "self_attn.indexer.";
  for (const std::string& name : model.tensor_names()) {
    if (!name.starts_with(from)) continue;
    test::DrawnTensor copy = model.tensor(name);
    copy.name = to + name.substr(from.size());
    model.add_tensor(copy);
  }
  const Loaded loaded = must(load(model.write()));
  EXPECT_FALSE(mla::own(loaded.weights).layers[3].indexer.has_value());
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("5 indexer tensors are not used"), std::string::npos) << loaded.warnings[0];
}

// head_dim of GLM's files means nothing; were it taken for the rotated width, the shapes would tell.
TEST(ValidationTest, TheRotatedWidthIsCheckedAgainstTheShapes) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-shared");
  model.set_config("head_dim", 192);
  EXPECT_TRUE(load(model.write()).ok());
  model.set_config("qk_rope_head_dim", 32);
  model.set_config("qk_head_dim", 24 + 32);
  expect_refused(model, {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight: expected",
                         "model.layers.0.self_attn.q_b_proj.weight: expected"});
}

TEST(ValidationTest, TheFirstTenAreListed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  for (int e = 0; e < 8; ++e) {
    model.remove_tensor("model.layers.1.mlp.experts." + std::to_string(e) + ".down_proj.weight");
    model.remove_tensor("model.layers.2.mlp.experts." + std::to_string(e) + ".down_proj.weight");
  }
  expect_refused(model, {"16 faults", "and 6 more"});
}

TEST(ValidationTest, OneFeedForwardBlockIsStoredAlike) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  const std::string block =
      layer_prefix(must(load_model_config(test::fixture_folder("v32-fp8").string())).config.n_layers - 1) +
      "mlp.shared_experts.";
  const std::string gate = block + "gate_proj.weight", name = block + "up_proj.weight";
  model.set_dtype(name, StoredDtype::kBF16);
  model.remove_tensor(scale_name_of(name));
  expect_refused(model, {name + ": expected the storage of " + gate + ", F8_E4M3, found BF16"});
}

// ---- the MTP layer -----------------------------------------------------------------------------------------------

void remove_mtp(TempCheckpoint& model, int n_layers) {
  for (const std::string& name : model.tensor_names()) {
    if (name.starts_with(layer_prefix(n_layers))) model.remove_tensor(name);
  }
}

TEST(MtpTest, AbsentAltogetherIsOneWarning) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  remove_mtp(model, 4);
  const Loaded loaded = must(load(model.write()));
  EXPECT_FALSE(mla::own(loaded.weights).mtp.has_value());
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("no MTP layer (model.layers.4.*)"), std::string::npos);
}

TEST(MtpTest, PartlyAbsentIsAnError) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.remove_tensor("model.layers.4.enorm.weight");
  expect_refused(model, {"model.layers.4.enorm.weight: expected BF16, F32 or F16 [96], found nothing"});
}

TEST(MtpTest, TensorsWithoutAConfigEntryAreSurplus) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.set_config("num_nextn_predict_layers", 0);
  expect_refused(
      model,
      {"model.layers.4.eh_proj.weight: expected no such tensor (num_nextn_predict_layers is 0), found BF16 [96, 192]"});
}

TEST(MtpTest, CopiesOfTheTrunkAreToleratedByName) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  for (const char* name : {"model.layers.4.embed_tokens.weight", "model.layers.4.shared_head.head.weight"}) {
    model.add_tensor({.name = name, .dtype = StoredDtype::kBF16, .shape = {320, 96}, .bytes = {}});
  }
  model.add_tensor(
      {.name = "model.layers.0.self_attn.rotary_emb.inv_freq", .dtype = StoredDtype::kF32, .shape = {8}, .bytes = {}});
  const Loaded loaded = must(load(model.write()));
  ASSERT_EQ(loaded.warnings.size(), 3u);
  EXPECT_NE(loaded.warnings[0].find("model.layers.4.embed_tokens.weight is not used"), std::string::npos);
  model.set_shape("model.layers.4.embed_tokens.weight", {320, 95});
  expect_refused(model, {"model.layers.4.embed_tokens.weight: expected [320, 96], found BF16 [320, 95]"});
}

// ---- values ------------------------------------------------------------------------------------------------------

template <class T>
void put_value(TempCheckpoint& model, const std::string& name, int64_t i, T value) {
  std::memcpy(model.tensor(name).bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

TEST(ValuesTest, Fp8NaNIsNamedWithItsPosition) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  const std::string name = "model.layers.0.self_attn.q_a_proj.weight";  // [128, 256]
  put_value<uint8_t>(model, name, 3 * 256 + 7, 0xFF);
  expect_refused(model, {name + "[3, 7] is NaN (F8_E4M3)"});
}

TEST(ValuesTest, InfinitiesAndNaNAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  put_value<uint16_t>(model, "model.norm.weight", 5, 0x7F80);
  put_value<uint16_t>(model, "model.embed_tokens.weight", 96, 0xFFC0);
  put_value<float>(model, "model.layers.2.mlp.gate.e_score_correction_bias", 1,
                   std::numeric_limits<float>::quiet_NaN());
  put_value<uint16_t>(model, "model.layers.0.self_attn.kv_b_proj.weight", 0, 0xFF80);
  expect_refused(model, {"tensors have invalid values (4 faults):", "model.norm.weight[5] is infinite (BF16)",
                         "model.embed_tokens.weight[1, 0] is", "e_score_correction_bias[1] is NaN (F32)",
                         "kv_b_proj.weight[0, 0] is minus infinite"});
}

TEST(ValuesTest, ScalesMustBePositive) {
  for (const float bad :
       {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
    put_value<float>(model, "model.layers.0.self_attn.q_a_proj.weight_scale_inv", 1, bad);
    expect_refused(
        model, {"model.layers.0.self_attn.q_a_proj.weight_scale_inv[0, 1] is", "scales must be finite and above 0"});
  }
}

TEST(ValuesTest, ScalesThatAreNoPowersOfTwoStayExact) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  const std::string name = "model.layers.0.self_attn.kv_b_proj.weight";
  put_value<float>(model, scale_name_of(name), 0, 0.3f / 448);
  const Loaded loaded = must(load(model.write()));
  EXPECT_EQ(mla::own(loaded.weights).layers[0].attention.k_up[0].dtype(), DType::kF8E4M3);
  EXPECT_EQ(packed_value(mla::own(loaded.weights).layers[0].attention.k_up[0], 1, 2),
            checkpoint_value(model, name, 2, 1));
}

// ---- table, names alone, dummies ---------------------------------------------------------------------------------

TEST(WeightTableTest, ListsTheTensorsOfTheFixturesAndNoOthers) {
  for (const char* fixture : {"v32-odd", "v32-fp8", "v32-official", "glm-shared", "glm-pattern"}) {
    const ModelConfig config = must(load_model_config(test::fixture_folder(fixture).string())).config;
    std::set<std::string> names;
    for (const WeightRow& row : weight_table(config, nullptr, nullptr))
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
    for (const std::string& name : TempCheckpoint::from_fixture(fixture).tensor_names()) {
      if (name.ends_with("_scale_inv")) continue;
      EXPECT_EQ(names.erase(name), 1u) << name;
    }
    EXPECT_TRUE(names.empty()) << *names.begin();
  }
}

TEST(WeightTableTest, AnIndexAloneIsCheckedByName) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-fp8");
  model.write(2);
  for (int i = 0; i < 2; ++i) model.remove_file(TempCheckpoint::shard_name(i, 2));
  const ModelConfig config = must(load_model_config(model.path().string())).config;
  const io::Checkpoint names = must(io::Checkpoint::open(model.path(), io::CheckpointMode::kNames));
  const WeightReport report = validate_weights(config, names);
  EXPECT_EQ(report.errors, std::vector<std::string>());
  EXPECT_TRUE(report.has_mtp);
}

TEST(DummyWeightsTest, AreTheSameEveryTimeAndOfTheStoredTypes) {
  const ModelConfig config = must(load_model_config(test::fixture_folder("v32-official").string())).config;
  ThreadPool alone(1), three(3);
  const ModelWeights a = must(dummy_weights(config, numerics_of(NumericsMode::kOfficial), alone));
  const ModelWeights b = must(dummy_weights(config, numerics_of(NumericsMode::kOfficial), three));
  const Matrix &x = mla::own(a).layers[0].attention.o.w, &y = mla::own(b).layers[0].attention.o.w;
  EXPECT_EQ(x.dtype(), DType::kF8E4M3);
  EXPECT_EQ(std::memcmp(x.panel(0), y.panel(0), static_cast<size_t>(x.n_panels() * x.panel_bytes())), 0);
  EXPECT_NE(std::memcmp(mla::own(a).layers[0].moe->experts[0].gate.panel(0),
                        mla::own(a).layers[0].moe->experts[1].gate.panel(0), 64),
            0);
  EXPECT_EQ(a.head.w.dtype(), DType::kBF16);
  EXPECT_TRUE(mla::own(a).mtp.has_value());
  // of the size that keeps products as large as their input: uniform with variance 1 / K
  double sum = 0;
  for (int64_t i = 0; i < x.n(); ++i) {
    for (int64_t j = 0; j < x.k(); ++j) sum += static_cast<double>(packed_value(x, i, j)) * packed_value(x, i, j);
  }
  const double variance = sum / static_cast<double>(x.n() * x.k()) * static_cast<double>(x.k());
  EXPECT_GT(variance, 0.3);
  EXPECT_LT(variance, 5);
}

TEST(NumericsCheckTest, FP8IndexKeysNeedAPowerOfTwo) {
  ModelConfig config = must(load_model_config(test::fixture_folder("v32-odd").string())).config;
  EXPECT_TRUE(check_numerics(config, numerics_of(NumericsMode::kOfficial)).ok());
  config.d_index = 48;
  EXPECT_TRUE(check_numerics(config, numerics_of(NumericsMode::kReference)).ok());
  const Status status = check_numerics(config, numerics_of(NumericsMode::kOfficial));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kUsage);
  EXPECT_NE(status.error().message.find("the model has 48"), std::string::npos);
}

}  // namespace
}  // namespace levin
