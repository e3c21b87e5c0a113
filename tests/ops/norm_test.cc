#include "ops/norm.h"

#include <cmath>

#include "ops/support.h"

namespace levin::testing {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place, relative

// A sum of D terms in 128 partial sums and a fold of 7 has at most D/128 + 8 roundings on its longest path, a product
// before them one more.
double sum_roundings(int64_t d) { return static_cast<double>(d) / 128 + 9; }

class NormTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(NormTest, RmsNormIsNearTheOracle) {
  const int64_t d = GetParam(), n_rows = 3;
  Random random(d);
  const Tensor x = random_tensor(random, {n_rows, d}, 3.0f), weight = random_tensor(random, {d});
  Tensor out(DType::kF32, {n_rows, d});
  ops::rms_norm(plain_device().ctx(), {.x = x, .weight = weight, .eps = 1e-6f, .out = out});
  for (int64_t t = 0; t < n_rows; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) squares += double{x.at(t * d + i)} * x.at(t * d + i);
    for (int64_t i = 0; i < d; ++i) {
      const double want = weight.at(i) * x.at(t * d + i) / std::sqrt(squares / static_cast<double>(d) + 1e-6f);
      // The root halves the sum's relative error; division by D, eps, root, quotient and two products add six
      // roundings.
      ASSERT_NEAR(out.at(t * d + i), want, (sum_roundings(d) / 2 + 6) * kUnit * std::abs(want)) << t << ", " << i;
    }
  }
}

TEST_P(NormTest, LayerNormIsNearTheOracle) {
  const int64_t d = GetParam(), n_rows = 3;
  Random random(d + 1);
  const Tensor x = random_tensor(random, {n_rows, d}, 3.0f), weight = random_tensor(random, {d});
  const Tensor bias = random_tensor(random, {d});
  Tensor out(DType::kF32, {n_rows, d});
  ops::layer_norm(plain_device().ctx(), {.x = x, .weight = weight, .bias = bias, .eps = 1e-6f, .out = out});
  for (int64_t t = 0; t < n_rows; ++t) {
    double mean = 0, size = 0, variance = 0;
    for (int64_t i = 0; i < d; ++i) mean += x.at(t * d + i), size += std::abs(x.at(t * d + i));
    mean /= static_cast<double>(d), size /= static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) variance += std::pow(x.at(t * d + i) - mean, 2);
    const double inverse = 1 / std::sqrt(variance / static_cast<double>(d) + 1e-6f);
    for (int64_t i = 0; i < d; ++i) {
      const double centred = x.at(t * d + i) - mean, want = weight.at(i) * centred * inverse + bias.at(i);
      // The mean's error, relative to the mean absolute value, shifts every element and (squared) the variance.
      const double shift = (sum_roundings(d) + 1) * kUnit * size;
      const double relative = (sum_roundings(d) + 8) * kUnit + shift * inverse;
      const double error = std::abs(weight.at(i)) * inverse * (shift + (std::abs(centred) + shift) * relative);
      ASSERT_NEAR(out.at(t * d + i), want, error + kUnit * std::abs(want)) << t << ", " << i;
    }
  }
}

// Every kernel set and thread count, rows together, alone and in place.
TEST_P(NormTest, BitsDependOnNothingElse) {
  const int64_t d = GetParam(), n_rows = 5;
  Random random(d + 2);
  const Tensor x = random_tensor(random, {n_rows, d}, 3.0f), weight = random_tensor(random, {d});
  const Tensor bias = random_tensor(random, {d});
  Tensor rms(DType::kF32, {n_rows, d}), layer(DType::kF32, {n_rows, d});
  ops::rms_norm(plain_device().ctx(), {.x = x, .weight = weight, .eps = 1e-6f, .out = rms});
  ops::layer_norm(plain_device().ctx(), {.x = x, .weight = weight, .bias = bias, .eps = 1e-6f, .out = layer});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {n_rows, d}), in_place = Tensor::of(std::vector<float>(n_rows * d), {n_rows, d});
    ops::rms_norm(device->ctx(), {.x = x, .weight = weight, .eps = 1e-6f, .out = out});
    ASSERT_TRUE(same_bits(out, rms)) << device->name();
    std::copy_n(x.view().data<float>(), n_rows * d, in_place.view().data<float>());
    ops::layer_norm(device->ctx(), {.x = in_place, .weight = weight, .bias = bias, .eps = 1e-6f, .out = in_place});
    ASSERT_TRUE(same_bits(in_place, layer)) << device->name();
    for (int64_t t = 0; t < n_rows; ++t) {
      Tensor alone(DType::kF32, {1, d});
      ops::rms_norm(device->ctx(), {.x = x.view().slice_first(t, 1), .weight = weight, .eps = 1e-6f, .out = alone});
      ASSERT_TRUE(same_bits(alone, rms.view().slice_first(t, 1))) << device->name();
    }
  }
}

// The tree of ops/norm.h, written out: 128 partial sums, folded 64, 32, ..., 1.
float sum_in_tree(const std::vector<float>& x, bool squares) {
  std::vector<float> sum(128, 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    float& partial = sum[i % 128];
    partial = squares ? std::fma(x[i], x[i], partial) : partial + x[i];
  }
  for (size_t half = 64; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}

TEST_P(NormTest, SumsHaveTheirTree) {
  const int64_t d = GetParam();
  Random random(d + 4);
  const Tensor x = random_tensor(random, {1, d}, 3.0f), weight = random_tensor(random, {d});
  const Tensor bias = random_tensor(random, {d});
  constexpr float kEps = 1e-6f;
  const auto inverse_root = [&](float sum) { return 1.0f / std::sqrt(sum / static_cast<float>(d) + kEps); };
  std::vector<float> values(x.view().data<float>(), x.view().data<float>() + d), rms, layer;
  const float rms_inverse = inverse_root(sum_in_tree(values, true));
  for (int64_t i = 0; i < d; ++i) rms.push_back(weight.at(i) * (values[i] * rms_inverse));
  const float mean = sum_in_tree(values, false) / static_cast<float>(d);
  for (float& v : values) v -= mean;
  const float layer_inverse = inverse_root(sum_in_tree(values, true));
  for (int64_t i = 0; i < d; ++i) layer.push_back(std::fma(weight.at(i), values[i] * layer_inverse, bias.at(i)));
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {1, d});
    ops::rms_norm(device->ctx(), {.x = x, .weight = weight, .eps = kEps, .out = out});
    ASSERT_TRUE(same_bits(out, Tensor::of(rms, {1, d}))) << device->name();
    ops::layer_norm(device->ctx(), {.x = x, .weight = weight, .bias = bias, .eps = kEps, .out = out});
    ASSERT_TRUE(same_bits(out, Tensor::of(layer, {1, d}))) << device->name();
  }
}

// No weight is a weight of ones, of which a product with one is exact.
TEST_P(NormTest, RmsNormWithoutAWeightIsOneOfOnes) {
  const int64_t d = GetParam(), n_rows = 3;
  Random random(d + 3);
  const Tensor x = random_tensor(random, {n_rows, d}, 3.0f);
  const Tensor ones = Tensor::of(std::vector<float>(static_cast<size_t>(d), 1.0f), {d});
  Tensor want(DType::kF32, {n_rows, d}), out(DType::kF32, {n_rows, d});
  for (const auto& device : devices_under_test()) {
    ops::rms_norm(device->ctx(), {.x = x, .weight = ones, .eps = 1e-6f, .out = want});
    ops::rms_norm(device->ctx(), {.x = x, .eps = 1e-6f, .out = out});
    ASSERT_TRUE(same_bits(out, want)) << device->name();
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, NormTest,
                         ::testing::Values(1, 15, 16, 17, 40, 127, 128, 129, 143, 145, 512, 1536, 7168, 28672));

TEST(AddIntoTest, AddsRowsOfStridedViews) {
  for (const auto& device : devices_under_test()) {
    Random random(7);
    Tensor wide = random_tensor(random, {4, 50});
    const Tensor y = random_tensor(random, {4, 37});
    std::vector<float> want;
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t i = 0; i < 50; ++i) {
        want.push_back(i >= 5 && i < 42 ? wide.at(t * 50 + i) + y.at(t * 37 + i - 5) : wide.at(t * 50 + i));
      }
    }
    ops::add_into(device->ctx(), {.x = wide.view().slice_last(5, 37), .y = y});
    ASSERT_TRUE(same_bits(wide, Tensor::of(want, {4, 50}))) << device->name();
  }
}

TEST(NormDeathTest, NamesTheArgument) {
  Tensor x(DType::kF32, {2, 8}), weight(DType::kF32, {7}), out(DType::kF32, {2, 8});
  EXPECT_DEATH(ops::rms_norm(plain_device().ctx(), {.x = x, .weight = weight, .eps = 0, .out = out}),
               "rms_norm: weight is f32 \\[7\\], expected f32 \\[8\\]");
}

}  // namespace
}  // namespace levin::testing
