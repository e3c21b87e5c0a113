// DeepSeek-V4's tensors: every one in its place, in BF16, FP8 with E8M0 scales and MXFP4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/weights.h"
#include "arch/load_config.h"
#include "base/numbers.h"
#include "model/memory_plan.h"
#include "model/weight_table.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

using io::StoredDtype;
using test::must;
using test::TempCheckpoint;

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
  std::vector<std::string> warnings;
};

Result<Loaded> load(const std::filesystem::path& folder, NumericsMode mode = NumericsMode::kReference) {
  Loaded out;
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(folder.string()));
  out.config = std::move(parsed.config);
  LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(folder));
  ThreadPool pool(2);
  LEVIN_ASSIGN(out.weights,
               load_weights(out.config, must(make_numerics(mode, "auto")), checkpoint, pool, {}, &out.warnings));
  return out;
}

void expect_refused(TempCheckpoint& model, const std::vector<std::string>& parts) {
  const auto loaded = load(model.write());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kModelInvalid);
  for (const std::string& part : parts)
    EXPECT_NE(loaded.error().message.find(part), std::string::npos) << loaded.error().message;
}

template <class T>
T raw(const test::DrawnTensor& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::string scale_name(const std::string& name) { return name.substr(0, name.size() - 6) + "scale"; }

// Element [row, col] of a stored matrix, its scale applied; a vector is one row.
float checkpoint_value(TempCheckpoint& model, const std::string& name, int64_t row, int64_t col) {
  const test::DrawnTensor& t = model.tensor(name);
  const int64_t width = t.shape.back(), i = row * width + col;
  const auto scale = [&](int64_t r, int64_t c) {
    const test::DrawnTensor& scales = model.tensor(scale_name(name));
    return std::ldexp(1.0f, raw<uint8_t>(scales, r * scales.shape[1] + c) - 127);
  };
  switch (t.dtype) {
    case StoredDtype::kF32:
      return raw<float>(t, i);
    case StoredDtype::kBF16:
      return bf16_to_f32(raw<uint16_t>(t, i));
    case StoredDtype::kF8_E4M3:
      return e4m3_to_f32(raw<uint8_t>(t, i)) * scale(row / 128, col / 128);
    default: {  // MXFP4
      const auto pair = raw<uint8_t>(t, row * width + col / 2);
      return e2m1_to_f32(col % 2 == 0 ? pair & 0xF : pair >> 4) * scale(row, col / 32);
    }
  }
}

float packed_value(const Matrix& m, int64_t row, int64_t col) { return m.stored(row, col) * m.scale(row, col); }

// Matrix `m` is the stored rows from `first_row` on.
void expect_equal(TempCheckpoint& model, const std::string& name, const Matrix& m, int64_t first_row = 0) {
  ASSERT_FALSE(m.empty()) << name;
  for (int64_t row = 0; row < m.n(); ++row) {
    for (int64_t col = 0; col < m.k(); ++col) {
      ASSERT_EQ(packed_value(m, row, col), checkpoint_value(model, name, first_row + row, col))
          << name << " [" << first_row + row << ", " << col << "]";
    }
  }
}

void expect_equal(TempCheckpoint& model, const std::string& name, const Vector& v) {
  const std::vector<int64_t> shape = model.tensor(name).shape;
  ASSERT_EQ(v.view.rank(), static_cast<int>(shape.size())) << name;
  for (int64_t i = 0; i < v.view.n_elements(); ++i) {
    ASSERT_EQ(v.view.data<float>()[i], checkpoint_value(model, name, i / shape.back(), i % shape.back())) << name;
  }
}

void expect_equal(TempCheckpoint& model, const std::string& prefix, const CompressorWeights& c) {
  expect_equal(model, prefix + "wkv.weight", c.values.w);
  expect_equal(model, prefix + "wgate.weight", c.gate.w);
  expect_equal(model, prefix + "ape", c.position_bias);
  expect_equal(model, prefix + "norm.weight", c.norm);
}

void expect_equal(TempCheckpoint& model, const std::string& prefix, const ModelConfig& c, const V4AttentionWeights& a) {
  expect_equal(model, prefix + "wq_a.weight", a.q_down.w);
  expect_equal(model, prefix + "q_norm.weight", a.q_norm);
  expect_equal(model, prefix + "wq_b.weight", a.q_up.w);
  expect_equal(model, prefix + "wkv.weight", a.kv.w);
  expect_equal(model, prefix + "kv_norm.weight", a.kv_norm);
  expect_equal(model, prefix + "attn_sink", a.sink);
  expect_equal(model, prefix + "wo_b.weight", a.out_up.w);
  ASSERT_EQ(static_cast<int64_t>(a.out_down.size()), deepseek_v4::own(c).n_out_groups);
  for (int64_t g = 0; g < deepseek_v4::own(c).n_out_groups; ++g) {
    expect_equal(model, prefix + "wo_a.weight", a.out_down[static_cast<size_t>(g)], g * deepseek_v4::own(c).d_out_lora);
  }
  if (a.compressor) expect_equal(model, prefix + "compressor.", *a.compressor);
  if (!a.indexer) return;
  expect_equal(model, prefix + "indexer.wq_b.weight", a.indexer->q_up.w);
  expect_equal(model, prefix + "indexer.weights_proj.weight", a.indexer->head_weights.w);
  expect_equal(model, prefix + "indexer.compressor.", a.indexer->compressor);
}

void expect_equal(TempCheckpoint& model, const std::string& prefix, const ops::FfnWeights& w) {
  expect_equal(model, prefix + "w1.weight", w.gate);
  expect_equal(model, prefix + "w3.weight", w.up);
  expect_equal(model, prefix + "w2.weight", w.down);
}

void expect_equal(TempCheckpoint& model, const std::string& prefix, const StreamMixWeights& w) {
  expect_equal(model, prefix + "fn", w.fn.w);
  expect_equal(model, prefix + "base", w.base);
  expect_equal(model, prefix + "scale", w.scale);
}

void expect_equal(TempCheckpoint& model, const std::string& prefix, const StreamHeadWeights& w) {
  expect_equal(model, prefix + "fn", w.fn.w);
  expect_equal(model, prefix + "base", w.base);
  expect_equal(model, prefix + "scale", w.scale);
}

void expect_layer(TempCheckpoint& model, const ModelConfig& c, int i, const V4LayerWeights& layer) {
  const std::string prefix = layer_prefix(c, i);
  SCOPED_TRACE(prefix);
  expect_equal(model, prefix + "hc_attn_", layer.attention_streams);
  expect_equal(model, prefix + "hc_ffn_", layer.ffn_streams);
  expect_equal(model, prefix + "attn_norm.weight", layer.attention_norm);
  expect_equal(model, prefix + "ffn_norm.weight", layer.ffn_norm);
  const Compression kind = deepseek_v4::own(c).compression_of(i).kind;
  EXPECT_EQ(layer.attention.compressor.has_value(), kind != Compression::kNone);
  EXPECT_EQ(layer.attention.indexer.has_value(), kind == Compression::kIndexed);
  expect_equal(model, prefix + "attn.", c, layer.attention);
  expect_equal(model, prefix + "ffn.gate.weight", layer.moe.gate.w);
  for (const size_t e : {size_t{0}, layer.moe.experts.size() - 1}) {
    expect_equal(model, prefix + "ffn.experts." + std::to_string(e) + ".", layer.moe.experts[e]);
  }
  expect_equal(model, prefix + "ffn.shared_experts.", *layer.moe.shared);
  EXPECT_EQ(layer.moe.hash_experts.empty(), !deepseek_v4::own(c).is_hash_layer(i));
  if (!deepseek_v4::own(c).is_hash_layer(i)) return expect_equal(model, prefix + "ffn.gate.bias", layer.moe.bias);
  const test::DrawnTensor& ids = model.tensor(prefix + "ffn.gate.tid2eid");
  for (int64_t token = 0; token < c.n_vocab; ++token) {
    std::vector<int32_t> expected;
    for (int64_t a = 0; a < c.n_active; ++a)
      expected.push_back(static_cast<int32_t>(raw<int64_t>(ids, token * c.n_active + a)));
    std::sort(expected.begin(), expected.end());
    const int32_t* row = layer.moe.hash_experts.row<int32_t>(token);
    ASSERT_EQ(std::vector<int32_t>(row, row + c.n_active), expected) << token;
  }
}

class DeepseekV4LoadTest : public testing::TestWithParam<const char*> {};

TEST_P(DeepseekV4LoadTest, PutsEveryTensorInItsPlace) {
  TempCheckpoint model = TempCheckpoint::from_fixture(GetParam());
  const Loaded loaded = must(load(model.write()));
  const ModelConfig& c = loaded.config;
  const DeepseekV4Weights& w = deepseek_v4::own(loaded.weights);
  EXPECT_EQ(loaded.warnings, std::vector<std::string>());
  ASSERT_EQ(static_cast<int>(w.layers.size()), c.n_layers);
  for (int i = 0; i < c.n_layers; ++i) expect_layer(model, c, i, w.layers[static_cast<size_t>(i)]);
  ASSERT_TRUE(w.mtp.has_value());
  expect_layer(model, c, c.n_layers, w.mtp->layer);
  expect_equal(model, "mtp.0.e_proj.weight", w.mtp->e_proj.w);
  expect_equal(model, "mtp.0.h_proj.weight", w.mtp->h_proj.w);
  expect_equal(model, "mtp.0.enorm.weight", w.mtp->embed_norm);
  expect_equal(model, "mtp.0.hnorm.weight", w.mtp->hidden_norm);
  expect_equal(model, "mtp.0.norm.weight", w.mtp->head_norm);
  expect_equal(model, "mtp.0.hc_head_", w.mtp->head);
  expect_equal(model, "hc_head_", w.head);
  expect_equal(model, "norm.weight", loaded.weights.norm);
  expect_equal(model, "head.weight", loaded.weights.head.w);
  EXPECT_EQ(std::memcmp(loaded.weights.embed.bytes(), model.tensor("embed.weight").bytes.data(),
                        static_cast<size_t>(loaded.weights.embed_storage.n_bytes())),
            0);
}

TEST(DsparkLoadTest, PutsEveryTensorInItsPlace) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-dspark");
  const Loaded loaded = must(load(model.write()));
  const ModelConfig& c = loaded.config;
  EXPECT_EQ(loaded.warnings, std::vector<std::string>());
  EXPECT_FALSE(deepseek_v4::own(loaded.weights).mtp.has_value());
  ASSERT_TRUE(deepseek_v4::own(loaded.weights).dspark.has_value());
  const DsparkWeights& w = *deepseek_v4::own(loaded.weights).dspark;
  ASSERT_EQ(w.stages.size(), 3u);
  for (int s = 0; s < 3; ++s) expect_layer(model, c, c.n_layers + s, w.stages[static_cast<size_t>(s)]);
  expect_equal(model, "mtp.0.main_proj.weight", w.tap_join.w);
  expect_equal(model, "mtp.0.main_norm.weight", w.tap_norm);
  expect_equal(model, "mtp.2.hc_head_", w.head);
  expect_equal(model, "mtp.2.norm.weight", w.head_norm);
  expect_equal(model, "mtp.2.markov_head.markov_w2.weight", w.markov_head.w);
  expect_equal(model, "mtp.2.confidence_head.proj.weight", w.confidence.w);
  EXPECT_EQ(std::memcmp(w.markov_rows.view.bytes(), model.tensor("mtp.2.markov_head.markov_w1.weight").bytes.data(),
                        static_cast<size_t>(w.markov_rows.storage.n_bytes())),
            0);
}

// Of the stages' F32 tensors none is rounded, whatever the numerics.
TEST(DsparkLoadTest, WhatIsStoredInF32StaysSo) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-dspark");
  const Loaded loaded = must(load(model.write(), NumericsMode::kFast));
  const DsparkWeights& w = *deepseek_v4::own(loaded.weights).dspark;
  EXPECT_EQ(w.head.fn.w.dtype(), DType::kF32);
  EXPECT_EQ(w.markov_head.input, ops::Operand::kF32);
  EXPECT_EQ(w.confidence.input, ops::Operand::kF32);
  for (const V4LayerWeights& stage : w.stages) {
    EXPECT_EQ(stage.attention_streams.fn.w.dtype(), DType::kF32);
    EXPECT_EQ(stage.ffn_streams.fn.w.dtype(), DType::kF32);
    EXPECT_EQ(stage.moe.bias.view.dtype(), DType::kF32);
    EXPECT_EQ(stage.attention.sink.view.dtype(), DType::kF32);
  }
}

// Tensors as they are in the checkpoints.
struct StoredCounts {
  int64_t n_tensors = 0;
  int64_t n_bytes = 0;
  std::map<StoredDtype, int64_t> by_dtype;  // of the drafter
  int64_t n_drafter_bytes = 0;
};

int64_t n_stored(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

StoredCounts stored_counts(const char* release) {
  const ModelConfig config = must(load_model_config(test::fixture_folder(release).string())).config;
  StoredCounts counts;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    const bool stream_or_bias =
        row.name.find("hc_") != std::string::npos || row.name.ends_with("gate.bias") || row.name.ends_with("attn_sink");
    const StoredDtype dtype = stream_or_bias ? StoredDtype::kF32 : released_dtype(row, config);
    const int64_t n_scales = is_quantised(dtype) ? n_stored(scale_shape(row, dtype)) : 0;  // a byte each
    const int64_t n_values = n_elements(row) / (dtype == StoredDtype::kI8 ? 2 : 1);
    const int64_t n_bytes = n_values * static_cast<int64_t>(io::dtype_bytes(dtype)) + n_scales;
    counts.n_tensors += n_scales > 0 ? 2 : 1;
    counts.n_bytes += n_bytes;
    if (!row.mtp) continue;
    ++counts.by_dtype[dtype];
    if (n_scales > 0) ++counts.by_dtype[StoredDtype::kF8_E8M0];
    counts.n_drafter_bytes += n_bytes;
  }
  return counts;
}

// 72317 and 149782 tensors are in the published files, of 167 and 892.73 GB; of the drafter of Flash 4705, by type as
// counted there, of 10.863 GB.
TEST(DsparkLoadTest, TheReleasesHaveAsManyTensors) {
  const StoredCounts flash = stored_counts("deepseek-v4-flash-0731");
  EXPECT_EQ(flash.n_tensors, 72317);
  EXPECT_EQ(flash.by_dtype.at(StoredDtype::kI8), 2304);
  EXPECT_EQ(flash.by_dtype.at(StoredDtype::kF8_E8M0), 2329);
  EXPECT_EQ(flash.by_dtype.at(StoredDtype::kF8_E4M3), 25);
  EXPECT_EQ(flash.by_dtype.at(StoredDtype::kBF16), 20);
  EXPECT_EQ(flash.by_dtype.at(StoredDtype::kF32), 27);
  EXPECT_NEAR(static_cast<double>(flash.n_drafter_bytes), 10.863e9, 0.0005e9);
  EXPECT_NEAR(static_cast<double>(flash.n_bytes), 167e9, 0.5e9);
  const StoredCounts pro = stored_counts("deepseek-v4-pro-0813");
  EXPECT_EQ(pro.n_tensors, 149782);
  EXPECT_NEAR(static_cast<double>(pro.n_bytes), 892.73e9, 0.05e9);
}

TEST_P(DeepseekV4LoadTest, TheTableListsItsTensorsAndNoOthers) {
  const ModelConfig config = must(load_model_config(test::fixture_folder(GetParam()).string())).config;
  std::set<std::string> names, scales;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    if (!row.scale_name.empty()) scales.insert(row.scale_name);
  }
  for (const std::string& name : TempCheckpoint::from_fixture(GetParam()).tensor_names()) {
    if (scales.contains(name)) continue;
    EXPECT_EQ(names.erase(name), 1u) << name;
  }
  EXPECT_TRUE(names.empty()) << *names.begin();
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DeepseekV4LoadTest, testing::Values("v4-flash", "v4-fp4"),
                         [](const auto& row) { return std::string(row.param) == "v4-flash" ? "bf16" : "fp4"; });

TEST(DeepseekV4NumericsTest, ModesDecideTheInputsOfProducts) {
  using ops::Operand;
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  model.write();
  const Loaded official = must(load(model.path(), NumericsMode::kOfficial));
  const V4LayerWeights& o = deepseek_v4::own(official.weights).layers[2];
  EXPECT_EQ(o.attention.q_down.input, Operand::kFp8);
  EXPECT_EQ(o.moe.experts[0].gate.dtype(), DType::kMxfp4);
  EXPECT_EQ(o.moe.experts[0].input, Operand::kFp8);
  EXPECT_EQ(o.moe.experts[0].hidden, Operand::kFp8);
  EXPECT_EQ(o.moe.shared->input, Operand::kFp8);
  EXPECT_EQ(o.moe.gate.input, Operand::kF32);
  EXPECT_EQ(o.attention.compressor->values.input, Operand::kF32);
  EXPECT_EQ(o.attention_streams.fn.input, Operand::kF32);
  const Loaded fast = must(load(model.path(), NumericsMode::kFast));
  const V4LayerWeights& f = deepseek_v4::own(fast.weights).layers[2];
  EXPECT_EQ(f.moe.experts[0].input, Operand::kBF16);
  EXPECT_EQ(f.attention.compressor->values.input, Operand::kBF16);
  EXPECT_EQ(f.attention.indexer->head_weights.input, Operand::kF32);
  EXPECT_EQ(f.attention_streams.fn.input, Operand::kF32);
}

// ---- what does not fit -------------------------------------------------------------------------------------------

const std::string kExpert = "layers.1.ffn.experts.2.w1.";

TEST(DeepseekV4ValidationTest, MissingAndMisshapenTensorsAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  model.remove_tensor("layers.2.attn.attn_sink");
  model.remove_tensor("layers.1.ffn.gate.bias");
  model.remove_tensor("layers.0.attn.wkv.scale");
  model.remove_tensor(kExpert + "scale");
  model.set_shape("layers.3.ffn.experts.0.w2.weight", {128, 64});
  model.set_shape("layers.3.ffn.experts.0.w3.scale", {64, 2});
  model.set_dtype("layers.0.ffn.gate.tid2eid", StoredDtype::kI32);
  expect_refused(
      model, {"7 faults", "layers.2.attn.attn_sink: expected BF16, F32 or F16 [8], found nothing",
              "layers.1.ffn.gate.bias: expected BF16, F32 or F16 [8], found nothing",
              "layers.0.attn.wkv.scale: expected F32 or F8_E8M0 [1, 1] with an FP8 matrix, found nothing",
              kExpert + "scale: expected F8_E8M0 [64, 4] with an MXFP4 matrix, found nothing",
              "layers.3.ffn.experts.0.w2.weight: expected I8 [128, 32] (MXFP4), F8_E4M3, BF16, F32 or F16 [128, 64], "
              "found I8 [128, 64]",
              "layers.3.ffn.experts.0.w3.scale: expected F8_E8M0 [64, 4], found F8_E8M0 [64, 2]",
              "layers.0.ffn.gate.tid2eid: expected I64 [320, 3], found I32 [320, 3]"});
}

TEST(DeepseekV4ValidationTest, OnlyExpertsMayBeMxfp4) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  model.set_dtype("layers.0.attn.wq_a.weight", StoredDtype::kI8);
  model.set_shape("layers.0.attn.wq_a.weight", {64, 64});
  expect_refused(model, {"layers.0.attn.wq_a.weight: expected F8_E4M3, BF16, F32 or F16 [64, 128], found I8 [64, 64]"});
}

TEST(DeepseekV4ValidationTest, SurplusTensorsAreNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  model.add_tensor({.name = "layers.0.ffn.gate.bias", .dtype = StoredDtype::kF32, .shape = {8}, .bytes = {}});
  model.add_tensor({.name = "mtp.1.norm.weight", .dtype = StoredDtype::kF32, .shape = {128}, .bytes = {}});
  expect_refused(model, {"2 faults", "layers.0.ffn.gate.bias: expected no such tensor",
                         "mtp.1.norm.weight: expected no such tensor"});
}

TEST(DsparkValidationTest, EveryTensorOfTheDrafterIsNeededOnceOneIsThere) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-dspark");
  model.remove_tensor("mtp.0.main_proj.scale");
  model.remove_tensor("mtp.1.ffn.shared_experts.w1.weight");
  model.remove_tensor("mtp.2.markov_head.markov_w1.weight");
  model.set_shape("mtp.2.confidence_head.proj.weight", {1, 96});
  model.add_tensor({.name = "mtp.1.hc_head_base", .dtype = StoredDtype::kF32, .shape = {4}, .bytes = {}});
  model.add_tensor({.name = "mtp.0.e_proj.weight", .dtype = StoredDtype::kBF16, .shape = {96, 96}, .bytes = {}});
  expect_refused(model,
                 {"mtp.0.main_proj.scale: expected F32 or F8_E8M0 [1, 3] with an FP8 matrix, found nothing",
                  "mtp.1.ffn.shared_experts.w1.weight: expected",
                  "mtp.2.markov_head.markov_w1.weight: expected BF16, F32 or F16 [256, 88], found nothing",
                  "mtp.2.confidence_head.proj.weight: expected BF16, F32 or F16 [1, 184], found BF16 [1, 96]",
                  "mtp.1.hc_head_base: expected no such tensor", "mtp.0.e_proj.weight: expected no such tensor"});
}

TEST(DsparkValidationTest, TheDrafterMayBeAbsentAltogether) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-dspark");
  for (const std::string& name : model.tensor_names()) {
    if (name.starts_with("mtp.")) model.remove_tensor(name);
  }
  const Loaded loaded = must(load(model.write()));
  EXPECT_FALSE(deepseek_v4::own(loaded.weights).has_mtp());
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("no block drafter (mtp.0.*)"), std::string::npos) << loaded.warnings[0];
}

TEST(DeepseekV4ValidationTest, TheMtpLayerMayBeAbsentAltogether) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  for (const std::string& name : model.tensor_names()) {
    if (name.starts_with("mtp.0.")) model.remove_tensor(name);
  }
  const Loaded loaded = must(load(model.write()));
  EXPECT_FALSE(deepseek_v4::own(loaded.weights).mtp.has_value());
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("no MTP layer (mtp.0.*)"), std::string::npos) << loaded.warnings[0];
}

template <class T>
void put(TempCheckpoint& model, const std::string& name, int64_t i, T value) {
  std::memcpy(model.tensor(name).bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

TEST(DeepseekV4ValuesTest, ScalesOfGroupsMustKeepTheirValuesNormal) {
  for (const auto& [code, text] :
       {std::pair{uint8_t{0xFF}, "NaN"}, {uint8_t{253}, "2^126"}, {uint8_t{1}, "2^-126"}, {uint8_t{0}, "2^-127"}}) {
    TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
    put(model, kExpert + "scale", 6, code);
    expect_refused(model,
                   {kExpert + "scale[1, 2] is " + text + "; scales of MXFP4 groups must be from 2^-125 to 2^125"});
  }
}

TEST(DeepseekV4ValuesTest, AGroupOfZerosMayHaveAnyScale) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  for (int64_t i = 0; i < 16; ++i) put(model, kExpert + "weight", i, static_cast<uint8_t>(i % 2 == 0 ? 0x80 : 0x08));
  put(model, kExpert + "scale", 0, uint8_t{0});
  const Loaded loaded = must(load(model.write()));
  const Matrix& gate = deepseek_v4::own(loaded.weights).layers[1].moe.experts[2].gate;
  for (int64_t k = 0; k < 32; ++k) EXPECT_EQ(packed_value(gate, 0, k), 0.0f);
}

TEST(DeepseekV4ValuesTest, ScalesOfBlocksMustBeNumbers) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  put(model, "layers.0.attn.wq_b.scale", 3, uint8_t{0xFF});
  expect_refused(model, {"layers.0.attn.wq_b.scale[3, 0] is nan; scales must be finite and above 0"});
}

TEST(DeepseekV4ValuesTest, ExpertIdsMustBeThoseOfExpertsAndDiffer) {
  for (const auto& [id, text] : {std::pair{int64_t{8}, "layers.0.ffn.gate.tid2eid[2, 1] is 8; expert ids are 0 to 7"},
                                 {int64_t{-1}, "tid2eid[2, 1] is -1"}}) {
    TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
    put(model, "layers.0.ffn.gate.tid2eid", 7, id);
    expect_refused(model, {text});
  }
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-fp4");
  put(model, "layers.0.ffn.gate.tid2eid", 7, raw<int64_t>(model.tensor("layers.0.ffn.gate.tid2eid"), 6));
  expect_refused(model, {"layers.0.ffn.gate.tid2eid: row 2 names expert", "twice"});
}

// ---- dummies -----------------------------------------------------------------------------------------------------

TEST(DeepseekV4DummyTest, HasABlockDrafterWhereTheConfigHasOne) {
  const ModelConfig config = must(load_model_config(test::fixture_folder("v4-dspark").string())).config;
  ThreadPool pool(2);
  const ModelWeights weights = must(dummy_weights(config, must(make_numerics(NumericsMode::kOfficial, "auto")), pool));
  ASSERT_TRUE(deepseek_v4::own(weights).dspark.has_value());
  EXPECT_EQ(deepseek_v4::own(weights).dspark->markov_rows.view.dim(1), 88);
  EXPECT_EQ(deepseek_v4::own(weights).dspark->tap_join.w.dtype(), DType::kF8E4M3);
}

TEST(DeepseekV4DummyTest, HasTheStoredTypesAndTheSizesOfTheirInputs) {
  const ModelConfig config = must(load_model_config(test::fixture_folder("v4-fp4").string())).config;
  ThreadPool pool(2);
  const ModelWeights weights = must(dummy_weights(config, must(make_numerics(NumericsMode::kOfficial, "auto")), pool));
  const V4LayerWeights& layer = deepseek_v4::own(weights).layers[2];
  EXPECT_EQ(layer.moe.experts[0].gate.dtype(), DType::kMxfp4);
  EXPECT_EQ(layer.moe.shared->gate.dtype(), DType::kF8E4M3);
  EXPECT_EQ(layer.attention.out_down[0].dtype(), DType::kBF16);
  EXPECT_EQ(layer.attention_streams.fn.w.dtype(), DType::kF32);
  EXPECT_FALSE(deepseek_v4::own(weights).layers[0].moe.hash_experts.empty());
  const Matrix& gate = layer.moe.experts[0].gate;
  double sum = 0;
  for (int64_t i = 0; i < gate.n() * gate.k(); ++i) sum += std::pow(packed_value(gate, i / gate.k(), i % gate.k()), 2);
  const double variance = sum / static_cast<double>(gate.n());  // of a product with inputs of variance 1
  EXPECT_GT(variance, 0.3);
  EXPECT_LT(variance, 5);
}

}  // namespace
}  // namespace levin
