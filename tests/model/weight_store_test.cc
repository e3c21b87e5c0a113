#include "model/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "arch/deepseek_v3/weights.h"
#include "arch/load_config.h"
#include "base/numbers.h"
#include "model/memory_plan.h"
#include "model/weight_table.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

using io::StoredDtype;
using io::StoredTensor;

// kv_b_proj in FP8 whose heads begin and end inside blocks, with its scales.
struct UpProjection {
  UpProjectionShape shape;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  int64_t n_rows() const { return shape.n_heads * (shape.d_nope + shape.d_value); }
  int64_t n_scale_cols() const { return (shape.d_latent + 127) / 128; }
  float value(int64_t row, int64_t col) const {
    return e4m3_to_f32(codes[static_cast<size_t>(row * shape.d_latent + col)]) *
           scales[static_cast<size_t>(row / 128 * n_scale_cols() + col / 128)];
  }
};

UpProjection up_projection(const UpProjectionShape& shape, float first_scale) {
  UpProjection p{.shape = shape, .codes = {}, .scales = {}};
  for (int64_t i = 0; i < p.n_rows() * shape.d_latent; ++i)
    p.codes.push_back(static_cast<uint8_t>(i * 37 % 127 + (i % 5 < 2 ? 128 : 0)));
  for (int64_t i = 0; i < (p.n_rows() + 127) / 128 * p.n_scale_cols(); ++i)
    p.scales.push_back(std::ldexp(first_scale, static_cast<int>(i * 3 % 7)));
  return p;
}

AttentionWeights stored(const UpProjection& p) {
  const StoredTensor tensor{.name = "kv_b_proj.weight",
                            .dtype = StoredDtype::kF8_E4M3,
                            .shape = {p.n_rows(), p.shape.d_latent},
                            .bytes = std::as_bytes(std::span(p.codes))};
  const StoredTensor scales{.name = "kv_b_proj.weight_scale_inv",
                            .dtype = StoredDtype::kF32,
                            .shape = {(p.n_rows() + 127) / 128, p.n_scale_cols()},
                            .bytes = std::as_bytes(std::span(p.scales))};
  const StoredScales stored{.of_blocks = &scales};
  AttentionWeights weights;
  test::must(store_up_projection(tensor, &stored, p.shape, MatrixForm::kPanels,
                                 {.k_up = &weights.k_up, .v_up = &weights.v_up}));
  return weights;
}

void expect_holds(const UpProjection& p, const AttentionWeights& weights, DType dtype) {
  ASSERT_EQ(weights.k_up.size(), static_cast<size_t>(p.shape.n_heads));
  ASSERT_EQ(weights.v_up.size(), static_cast<size_t>(p.shape.n_heads));
  for (int64_t head = 0; head < p.shape.n_heads; ++head) {
    const Matrix& k_up = weights.k_up[static_cast<size_t>(head)];
    const Matrix& v_up = weights.v_up[static_cast<size_t>(head)];
    const int64_t first = head * (p.shape.d_nope + p.shape.d_value);
    for (const Matrix* m : {&k_up, &v_up}) {
      EXPECT_EQ(m->dtype(), dtype) << "head " << head;
      EXPECT_FALSE(m->has_scales());
    }
    ASSERT_EQ(k_up.n(), p.shape.d_latent);
    ASSERT_EQ(k_up.k(), p.shape.d_nope);
    ASSERT_EQ(v_up.n(), p.shape.d_value);
    ASSERT_EQ(v_up.k(), p.shape.d_latent);
    for (int64_t col = 0; col < p.shape.d_latent; ++col) {
      for (int64_t i = 0; i < p.shape.d_nope; ++i)
        ASSERT_EQ(k_up.stored(col, i), p.value(first + i, col)) << "head " << head;
      for (int64_t i = 0; i < p.shape.d_value; ++i)
        ASSERT_EQ(v_up.stored(i, col), p.value(first + p.shape.d_nope + i, col)) << "head " << head;
    }
  }
}

constexpr UpProjectionShape kInsideABlock{.n_heads = 2, .d_nope = 24, .d_value = 32, .d_latent = 48};
constexpr UpProjectionShape kAcrossBlocks{.n_heads = 3, .d_nope = 40, .d_value = 56, .d_latent = 160};

TEST(StoreUpProjectionTest, Fp8OfHeadsThatAreNoBlocksBecomesBf16WherePowersOfTwoScale) {
  for (const UpProjectionShape& shape : {kInsideABlock, kAcrossBlocks}) {
    const UpProjection p = up_projection(shape, 0x1p-5f);
    expect_holds(p, stored(p), DType::kBF16);
  }
}

TEST(StoreUpProjectionTest, OtherwiseF32) {
  for (const UpProjectionShape& shape : {kInsideABlock, kAcrossBlocks}) {
    const UpProjection p = up_projection(shape, 0.3f / 448);
    expect_holds(p, stored(p), DType::kF32);
  }
}

// GLM-5 has 192 rows of keys a head: that those of values are whole blocks does not help.
TEST(StoreUpProjectionTest, BothPartsMustBeBlocks) {
  const UpProjection p = up_projection({.n_heads = 1, .d_nope = 192, .d_value = 128, .d_latent = 16}, 1.0f);
  expect_holds(p, stored(p), DType::kBF16);
}

int64_t bytes_of(const AttentionWeights& weights) {
  int64_t n = 0;
  for (const Matrix& m : weights.k_up) n += m.n_bytes();
  for (const Matrix& m : weights.v_up) n += m.n_bytes();
  return n;
}

int64_t planned_bytes(const std::filesystem::path& folder) {
  const ModelConfig config = test::must(load_model_config(folder.string())).config;
  const Numerics numerics = test::must(make_numerics(NumericsMode::kFast, "auto"));
  const io::Checkpoint checkpoint = test::must(io::Checkpoint::open(folder));
  return plan_memory(config, numerics, &checkpoint, {.n_step_tokens = 1}).weights_bytes;
}

// The plan sees to it which of the two it will be: a model with one such tensor in FP8 against the same in BF16.
TEST(StoreUpProjectionTest, ThePlanCountsWhatIsStored) {
  test::TempCheckpoint model = test::TempCheckpoint::from_fixture("glm-shared");
  const std::string name = "model.layers.0.self_attn.kv_b_proj.weight";
  const ModelConfig config = test::must(load_model_config(model.write().string())).config;
  const int64_t in_bf16 = planned_bytes(model.path());
  const UpProjectionShape shape{
      .n_heads = config.n_heads, .d_nope = config.d_nope, .d_value = config.d_value, .d_latent = config.d_latent};
  for (const float scale : {0x1p-5f, 0.3f / 448}) {
    const UpProjection p = up_projection(shape, scale);
    model.set_dtype(name, StoredDtype::kF8_E4M3);
    std::memcpy(model.tensor(name).bytes.data(), p.codes.data(), p.codes.size());
    test::DrawnTensor scales{.name = name + "_scale_inv",
                             .dtype = StoredDtype::kF32,
                             .shape = {(p.n_rows() + 127) / 128, p.n_scale_cols()},
                             .bytes = {}};
    scales.bytes.resize(p.scales.size() * sizeof(float));
    std::memcpy(scales.bytes.data(), p.scales.data(), scales.bytes.size());
    model.add_tensor(std::move(scales));
    const int64_t difference = planned_bytes(model.write()) - in_bf16;
    const AttentionWeights weights = stored(p);
    EXPECT_EQ(difference, bytes_of(weights) - bytes_of(stored(up_projection(shape, 1.0f)))) << scale;
    model.remove_tensor(name + "_scale_inv");
  }
}

}  // namespace
}  // namespace levin
