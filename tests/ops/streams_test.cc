#include "ops/streams.h"

#include <cmath>

#include "ops/support.h"

namespace levin::testing {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place, relative
constexpr float kEps = 1e-3f;      // large enough that one too many or too few is seen (mistake 12 of model_spec.md 9)

struct Weights {
  Tensor read, write, mix;
};

Weights weights_of(TestDevice& device, const View& projected, const Tensor& base, const Tensor& scale,
                   int64_t n_streams, int n_steps) {
  const int64_t n_rows = projected.dim(0);
  Weights w{.read = Tensor(DType::kF32, {n_rows, n_streams}),
            .write = Tensor(DType::kF32, {n_rows, n_streams}),
            .mix = Tensor(DType::kF32, {n_rows, n_streams, n_streams})};
  ops::stream_weights(device.ctx(), {.projected = projected,
                                     .base = base,
                                     .scale = scale,
                                     .n_sinkhorn_steps = n_steps,
                                     .eps = kEps,
                                     .read = w.read,
                                     .write = w.write,
                                     .mix = w.mix});
  return w;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// model_spec.md 6.2 line by line, in double.
std::vector<double> oracle_mix(const std::vector<double>& outputs, int64_t n, int n_steps) {
  std::vector<double> c(outputs.begin() + 2 * n, outputs.end());
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += c[j * n + k] = std::exp(c[j * n + k]);
    for (int64_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + double{kEps};
  }
  const auto columns = [&] {
    for (int64_t k = 0; k < n; ++k) {
      double sum = kEps;
      for (int64_t j = 0; j < n; ++j) sum += c[j * n + k];
      for (int64_t j = 0; j < n; ++j) c[j * n + k] /= sum;
    }
  };
  const auto rows = [&] {
    for (int64_t j = 0; j < n; ++j) {
      double sum = kEps;
      for (int64_t k = 0; k < n; ++k) sum += c[j * n + k];
      for (int64_t k = 0; k < n; ++k) c[j * n + k] /= sum;
    }
  };
  columns();
  for (int i = 1; i < n_steps; ++i) rows(), columns();
  return c;
}

class StreamsTest : public ::testing::TestWithParam<int64_t> {};

// All elements are positive, so roundings only add up: an output has one, exp multiplies its error by at most 1 and
// adds two units, a normalisation adds n + 2 roundings to each of its terms.
TEST_P(StreamsTest, WeightsAreNearTheOracle) {
  const int64_t n = GetParam(), n_rows = 5, n_outputs = 2 * n + n * n;
  const int n_steps = 20;
  Random random(n);
  const Tensor projected = random_tensor(random, {n_rows, n_outputs}, 2.0f);
  const Tensor base = random_tensor(random, {n_outputs}), scale = random_tensor(random, {3});
  const Weights w = weights_of(plain_device(), projected, base, scale, n, n_steps);
  for (int64_t t = 0; t < n_rows; ++t) {
    std::vector<double> outputs;
    double largest = 0;
    for (int64_t i = 0; i < n_outputs; ++i) {
      const double s = scale.at(i < n ? 0 : i < 2 * n ? 1 : 2);
      outputs.push_back(projected.at(t * n_outputs + i) * s + base.at(i));
      largest = std::max(largest, std::abs(outputs.back()));
    }
    const double relative = (2 * largest + 12 + (2 * n_steps + 1) * (static_cast<double>(n) + 3)) * kUnit;
    for (int64_t i = 0; i < n; ++i) {
      const double read = sigmoid(outputs[i]) + kEps, write = 2 * sigmoid(outputs[n + i]);
      ASSERT_NEAR(w.read.at(t * n + i), read, relative * read);
      ASSERT_NEAR(w.write.at(t * n + i), write, relative * write);
    }
    const std::vector<double> mix = oracle_mix(outputs, n, n_steps);
    for (int64_t i = 0; i < n * n; ++i)
      ASSERT_NEAR(w.mix.at(t * n * n + i), mix[i], relative * mix[i]) << t << ", " << i;
  }
}

TEST_P(StreamsTest, ReadsAndWritesAreNearTheOracle) {
  const int64_t n = GetParam(), n_rows = 3, d = 37;
  Random random(n + 100);
  const Tensor before = random_tensor(random, {n_rows, n, d}), y = random_tensor(random, {n_rows, d});
  const Tensor read = random_tensor(random, {n_rows, n}), write = random_tensor(random, {n_rows, n});
  const Tensor mix = random_tensor(random, {n_rows, n, n});
  Tensor x(DType::kF32, {n_rows, d}), streams = random_tensor(random, {n_rows, n, d});
  std::copy_n(before.view().data<float>(), n_rows * n * d, streams.view().data<float>());
  ops::read_streams(plain_device().ctx(), {.streams = before, .read = read, .out = x});
  ops::write_streams(plain_device().ctx(), {.streams = streams, .y = y, .write = write, .mix = mix});
  const double relative = (static_cast<double>(n) + 1) * kUnit;
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t i = 0; i < d; ++i) {
      double want = 0, size = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double term = double{read.at(t * n + j)} * before.at((t * n + j) * d + i);
        want += term, size += std::abs(term);
      }
      ASSERT_NEAR(x.at(t * d + i), want, relative * size);
      for (int64_t k = 0; k < n; ++k) {
        want = double{write.at(t * n + k)} * y.at(t * d + i), size = std::abs(want);
        for (int64_t j = 0; j < n; ++j) {
          const double term = double{mix.at((t * n + j) * n + k)} * before.at((t * n + j) * d + i);
          want += term, size += std::abs(term);
        }
        ASSERT_NEAR(streams.at((t * n + k) * d + i), want, relative * size) << t << ", " << k << ", " << i;
      }
    }
  }
}

// 1/M is rounded, unless M is a power of two, and so is every product and sum.
TEST_P(StreamsTest, TheMeanIsNearTheOracleAndTheSameBitsEverywhere) {
  const int64_t n = GetParam(), n_rows = 5, d = 37;
  Random random(n + 300);
  const Tensor streams = random_tensor(random, {n_rows, n, d});
  Tensor want(DType::kF32, {n_rows, d});
  ops::mean_streams(plain_device().ctx(), {.streams = streams, .out = want});
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t i = 0; i < d; ++i) {
      double sum = 0, size = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double x = streams.at((t * n + j) * d + i);
        sum += x, size += std::abs(x);
      }
      const auto m = static_cast<double>(n);
      ASSERT_NEAR(want.at(t * d + i), sum / m, (m + 1) * kUnit * size / m) << t << ", " << i;
    }
  }
  for (const auto& device : devices_under_test()) {
    Tensor all(DType::kF32, {n_rows, d});
    ops::mean_streams(device->ctx(), {.streams = streams, .out = all});
    EXPECT_TRUE(same_bits(all, want)) << device->name();
    Tensor one(DType::kF32, {1, d});
    ops::mean_streams(device->ctx(), {.streams = streams.view().slice_first(2, 1), .out = one});
    EXPECT_TRUE(same_bits(one, want.view().slice_first(2, 1))) << device->name();
  }
}

// On every kernel set and any threads, rows together and alone.
TEST_P(StreamsTest, BitsDependOnTheRowAlone) {
  const int64_t n = GetParam(), n_rows = 5, d = 70, n_outputs = 2 * n + n * n;
  Random random(n + 200);
  const Tensor projected = random_tensor(random, {n_rows, n_outputs}, 2.0f);
  const Tensor base = random_tensor(random, {n_outputs}), scale = random_tensor(random, {3});
  const Tensor before = random_tensor(random, {n_rows, n, d}), y = random_tensor(random, {n_rows, d});
  struct Result {
    Weights w;
    Tensor x, streams;
  };
  const auto run = [&](TestDevice& device, int64_t begin, int64_t count) {
    Result r{.w = weights_of(device, projected.view().slice_first(begin, count), base, scale, n, 20),
             .x = Tensor(DType::kF32, {count, d}),
             .streams = Tensor(DType::kF32, {count, n, d})};
    std::copy_n(before.view().row<float>(begin), count * n * d, r.streams.view().data<float>());
    ops::read_streams(device.ctx(), {.streams = r.streams, .read = r.w.read, .out = r.x});
    ops::write_streams(
        device.ctx(),
        {.streams = r.streams, .y = y.view().slice_first(begin, count), .write = r.w.write, .mix = r.w.mix});
    return r;
  };
  const Result want = run(plain_device(), 0, n_rows);
  for (const auto& device : devices_under_test()) {
    const Result all = run(*device, 0, n_rows);
    ASSERT_TRUE(same_bits(all.w.mix, want.w.mix)) << device->name();
    ASSERT_TRUE(same_bits(all.x, want.x)) << device->name();
    ASSERT_TRUE(same_bits(all.streams, want.streams)) << device->name();
    for (const int64_t t : rows_alone(n_rows)) {
      const Result alone = run(*device, t, 1);
      ASSERT_TRUE(same_bits(alone.x, want.x.view().slice_first(t, 1))) << device->name() << " row " << t;
      ASSERT_TRUE(same_bits(alone.streams, want.streams.view().slice_first(t, 1))) << device->name() << " row " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, StreamsTest, ::testing::Values(1, 2, 4, 8));

// The head takes read weights alone, from as many outputs.
TEST(StreamWeights, OfTheHeadAreReadWeightsAlone) {
  Random random(9);
  const Tensor projected = random_tensor(random, {3, 4}), base = random_tensor(random, {4});
  const Tensor scale = random_tensor(random, {1});
  Tensor read(DType::kF32, {3, 4});
  ops::stream_weights(plain_device().ctx(),
                      {.projected = projected, .base = base, .scale = scale, .eps = kEps, .read = read});
  for (int64_t i = 0; i < 12; ++i) {
    const double want = sigmoid(double{projected.at(i)} * scale.at(0) + base.at(i % 4)) + kEps;
    EXPECT_NEAR(read.at(i), want, 12 * kUnit * want);
  }
}

TEST(StreamsDeathTest, NamesTheArgument) {
  const Tensor streams(DType::kF32, {2, 17, 4}), read(DType::kF32, {2, 17}), out(DType::kF32, {2, 4});
  EXPECT_DEATH(ops::read_streams(plain_device().ctx(), {.streams = streams, .read = read, .out = out}),
               "read_streams: 17 streams, at most 16");
}

}  // namespace
}  // namespace levin::testing
