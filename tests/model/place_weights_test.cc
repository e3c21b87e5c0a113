// Weights on their way to a device, which here is memory of the host that says it is not.
#include "model/place_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "arch/load_config.h"
#include "base/numbers.h"
#include "model/weight_table.h"
#include "ops/cuda_backend.h"
#include "support/fixture.h"
#include "support/must.h"
#include "support/pretended_device.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

// The values of all weights, in the order of a visit, as f32 before scales.
class Values final : public WeightVisitor {
 public:
  void matrices(std::span<Matrix* const> together) override {
    for (const Matrix* w : together) {
      const bool rows = w->device() == Device::kCuda;
      for (int64_t n = 0; n < w->n(); ++n) {
        for (int64_t k = 0; k < w->k(); ++k) values.push_back(rows ? row_value(*w, n, k) : w->stored(n, k));
      }
    }
  }
  void tensor(Buffer& storage, View& view) override {
    const auto* bytes = reinterpret_cast<const uint8_t*>(storage.data());
    EXPECT_EQ(storage.data(), view.bytes());
    for (int64_t i = 0; i < view.n_elements() * dtype_bytes(view.dtype()); ++i) values.push_back(bytes[i]);
  }

  std::vector<float> values;

 private:
  static float row_value(const Matrix& w, int64_t n, int64_t k) {
    const int64_t i = n * w.k() + k;
    switch (w.dtype()) {
      case DType::kF32:
        return reinterpret_cast<const float*>(w.device_data())[i];
      case DType::kBF16:
        return bf16_to_f32(reinterpret_cast<const uint16_t*>(w.device_data())[i]);
      case DType::kMxfp4:
      case DType::kNvfp4:
        return e2m1_to_f32(std::to_integer<uint8_t>(w.device_data()[i / 2]) >> (i % 2 * 4) & 0xF);
      default:
        return e4m3_to_f32(std::to_integer<uint8_t>(w.device_data()[i]));
    }
  }
};

// That matrices that go together stand one after another, with their scales.
class Neighbours final : public WeightVisitor {
 public:
  void matrices(std::span<Matrix* const> together) override {
    for (size_t i = 1; i < together.size(); ++i) {
      const Matrix &before = *together[i - 1], &w = *together[i];
      EXPECT_EQ(w.device_data(), before.device_data() + before.data().n_bytes());
      if (w.scales().empty()) continue;
      EXPECT_EQ(w.scales().data(), before.scales().data() + before.scales().n_bytes());
    }
  }
  void tensor(Buffer&, View& view) override { EXPECT_EQ(view.device(), Device::kCuda); }
};

class PlaceWeightsTest : public ::testing::TestWithParam<const char*> {
 protected:
  PlaceWeightsTest() {
    must(materialise(fixture_folder(GetParam()), folder_.path()));
    config_.emplace(must(load_model_config(folder_.path())).config);
    checkpoint_.emplace(must(io::Checkpoint::open(folder_.path())));
  }
  ModelWeights read(MatrixForm form) {
    return must(load_weights(*config_, {}, *checkpoint_, pool_, {}, nullptr, form));
  }

  // All that lies on a device once dummies read in this form have been placed there.
  std::vector<std::byte> placed_dummies(DeviceMemory& device, MatrixForm form) {
    ModelWeights weights = must(dummy_weights(*config_, {}, pool_, form));
    must(place_weights(device, pool_, weights));
    std::vector<std::byte> out(static_cast<size_t>(weights.device_memory.n_bytes()));
    device.copy_bytes_out(out.data(), weights.device_memory.data(), std::ssize(out));
    must(device.synchronize());
    return out;
  }

  TempDir folder_;
  std::optional<ModelConfig> config_;
  std::optional<io::Checkpoint> checkpoint_;
  ThreadPool pool_{2};
  PretendedDevice device_;
};

TEST_P(PlaceWeightsTest, EveryValueIsThere) {
  ModelWeights on_host = read(MatrixForm::kPanels);
  Values expected;
  on_host.visit(expected);
  for (const MatrixForm form : {MatrixForm::kRows, MatrixForm::kRowsInPlace}) {
    ModelWeights weights = read(form);
    must(place_weights(device_, pool_, weights));
    Values found;
    weights.visit(found);
    EXPECT_TRUE(found.values == expected.values);
    Neighbours neighbours;
    weights.visit(neighbours);
  }
}

TEST_P(PlaceWeightsTest, LackOfMemoryIsAnError) {
  ModelWeights weights = read(MatrixForm::kRowsInPlace);
  device_.available = 1000;
  const Status status = place_weights(device_, pool_, weights);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kOutOfMemory);
}

// To the last bit, alignment and all.
TEST_P(PlaceWeightsTest, DummiesMadeThereAreThoseOfTheHost) {
  const std::vector<std::byte> of_host = placed_dummies(device_, MatrixForm::kRows);
  device_.n_copied = 0;
  EXPECT_TRUE(placed_dummies(device_, MatrixForm::kRowsInPlace) == of_host);
  EXPECT_GT(std::count_if(of_host.begin(), of_host.end(), [](std::byte b) { return b != std::byte{}; }),
            std::ssize(of_host) / 2);
  EXPECT_LT(device_.n_copied, std::ssize(of_host));
}

TEST_P(PlaceWeightsTest, DummiesMadeOnACudaDeviceAreThoseOfTheHost) {
  const Result<std::unique_ptr<CudaBackend>> cuda = open_cuda({.kernels = cuda::KernelSet::kPlain});
  if (!cuda.ok()) GTEST_SKIP() << cuda.error().message;
  const std::vector<std::byte> of_host = placed_dummies(device_, MatrixForm::kRows);
  EXPECT_TRUE(placed_dummies(**cuda, MatrixForm::kRows) == of_host);
  EXPECT_TRUE(placed_dummies(**cuda, MatrixForm::kRowsInPlace) == of_host);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PlaceWeightsTest,
                         ::testing::Values("v32-fp8", "glm-shared", "glm-nvfp4", "v4-fp4", "v4-dspark", "glm-next",
                                           "v41-flash"),
                         [](const auto& fixture) {
                           std::string name = fixture.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace levin::test
