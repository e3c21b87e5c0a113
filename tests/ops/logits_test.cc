#include "ops/logits.h"

#include <limits>

#include "base/numbers.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

int32_t argmax_of(TestDevice& device, const std::vector<float>& x) {
  Tensor out(DType::kI32, {1});
  ops::argmax(device.ctx(), {.x = Tensor::of(x, {1, static_cast<int64_t>(x.size())}), .out = out});
  return out.view().data<int32_t>()[0];
}

TEST(ArgmaxTest, TakesTheLowestOfEquals) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& device : devices_under_test()) {
    EXPECT_EQ(argmax_of(*device, {3}), 0);
    EXPECT_EQ(argmax_of(*device, {1, 5, 5, 2}), 1);
    EXPECT_EQ(argmax_of(*device, {-1, -0.0f, 0.0f}), 1) << "-0 counts as +0";
    EXPECT_EQ(argmax_of(*device, {-inf, -inf}), 0);
    EXPECT_EQ(argmax_of(*device, std::vector<float>(129280, -2.5f)), 0);
    // The largest on both sides of the borders between pieces and vectors.
    for (const int64_t at : {0, 15, 16, 8191, 8192, 8193, 16384, 20000}) {
      std::vector<float> x(20001, 1.0f);
      x[at] = x[20000] = 2.0f;
      EXPECT_EQ(argmax_of(*device, x), at) << device->name();
    }
  }
}

TEST(ArgmaxTest, RowsAreTheirOwn) {
  Random random(3);
  const Tensor x = random_tensor(random, {7, 1001});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kI32, {7});
    ops::argmax(device->ctx(), {.x = x, .out = out});
    for (int64_t t = 0; t < 7; ++t) {
      const float* row = x.view().row<float>(t);
      EXPECT_EQ(out.view().data<int32_t>()[t], std::max_element(row, row + 1001) - row);
    }
  }
}

TEST(ArgmaxTest, NanIsNeverTheLargest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& device : devices_under_test()) {
    for (const int64_t at : {0, 17, 9000, 9998}) {
      std::vector<float> x(9999, -1.0f);
      x[at] = kNan;
      EXPECT_EQ(argmax_of(*device, x), at == 0 ? 1 : 0) << device->name();
      x[at == 0 ? 9998 : at - 1] = -0.5f;
      EXPECT_EQ(argmax_of(*device, x), at == 0 ? 9998 : at - 1) << device->name();
    }
    EXPECT_EQ(argmax_of(*device, std::vector<float>(9999, kNan)), 0) << device->name();
  }
}

TEST(EmbedTest, CopiesRowsExactly) {
  Random random(4);
  const int64_t d = 37;
  const Tensor table = random_tensor(random, {9, d});
  Tensor halves(DType::kBF16, {9, d});
  for (int64_t i = 0; i < 9 * d; ++i) halves.view().data<uint16_t>()[i] = f32_to_bf16(table.at(i));
  const std::vector<int32_t> ids = {8, 0, 3, 3};
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {4, d}), rounded(DType::kF32, {4, d});
    ops::embed(device->ctx(), {.ids = Tensor::of(ids, {4}), .table = table, .out = out});
    ops::embed(device->ctx(), {.ids = Tensor::of(ids, {4}), .table = halves, .out = rounded});
    for (int64_t i = 0; i < 4 * d; ++i) {
      ASSERT_EQ(out.at(i), table.at(ids[i / d] * d + i % d));
      ASSERT_EQ(rounded.at(i), round_to_bf16(table.at(ids[i / d] * d + i % d)));
    }
  }
}

TEST(EmbedDeathTest, NamesAnIdOutsideTheTable) {
  Tensor table(DType::kF32, {9, 4}), out(DType::kF32, {1, 4});
  const Tensor ids = Tensor::of(std::vector<int32_t>{9}, {1});
  EXPECT_DEATH(ops::embed(plain_device().ctx(), {.ids = ids, .table = table, .out = out}), "ids.0. is 9");
}

}  // namespace
}  // namespace levin::testing
