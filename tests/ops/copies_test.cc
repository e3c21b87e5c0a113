#include "ops/copies.h"

#include <limits>

#include "ops/index_topk.h"
#include "ops/logits.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

// [rows of a | rows of b], and every other column next to them untouched.
TEST(CopyRowsTest, PutsChosenRowsSideBySide) {
  const Tensor a = Tensor::of(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor b = Tensor::of(std::vector<float>{7, 8}, {2, 1});
  const Tensor rows = Tensor::of(std::vector<int32_t>{2, 0}, {2});
  for (const auto& device : devices_under_test()) {
    Tensor out = Tensor::of(std::vector<float>(8, -1.0f), {2, 4});
    ops::copy_rows(device->ctx(), {.x = a, .rows = rows, .out = out.view().slice_last(0, 2)});
    ops::copy_rows(device->ctx(), {.x = b, .out = out.view().slice_last(2, 1)});
    EXPECT_TRUE(same_bits(out, Tensor::of(std::vector<float>{5, 6, 7, -1, 1, 2, 8, -1}, {2, 4}))) << device->name();
  }
}

TEST(CopyRowsTest, RepeatsRowsOfIntegersToo) {
  const Tensor x = Tensor::of(std::vector<int32_t>{4, -1}, {2, 1});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kI32, {6, 1});
    ops::copy_rows(device->ctx(), {.x = x, .repeat = 3, .out = out});
    EXPECT_TRUE(same_bits(out, Tensor::of(std::vector<int32_t>{4, 4, 4, -1, -1, -1}, {6, 1}))) << device->name();
  }
}

TEST(CopyRowsDeathTest, ARowThatIsNotThereIsNamed) {
  const Tensor x(DType::kF32, {2, 3}), rows = Tensor::of(std::vector<int32_t>{0, 2}, {2});
  Tensor out(DType::kF32, {2, 3});
  EXPECT_DEATH(ops::copy_rows(plain_device().ctx(), {.x = x, .rows = rows, .out = out}), "rows\\[1\\] is 2");
}

// First the factor, then the scale: 2^-149 * 0.5 is zero, whatever comes after.
TEST(ScaleRowsTest, FactorFirst) {
  const Tensor x = Tensor::of(std::vector<float>{0x1p-149f, 3, 0.0f, -5}, {2, 2});
  const Tensor scale = Tensor::of(std::vector<float>{4, 2, 1, 0.5f}, {2, 2});
  for (const auto& device : devices_under_test()) {
    Tensor out(DType::kF32, {2, 2});
    ops::scale_rows(device->ctx(), {.x = x, .factor = 0.5f, .scale = scale, .out = out});
    EXPECT_TRUE(same_bits(out, Tensor::of(std::vector<float>{0, 3, 0, -1.25f}, {2, 2}))) << device->name();
    ops::scale_rows(device->ctx(), {.x = x, .factor = -1, .out = out});
    EXPECT_TRUE(same_bits(out, Tensor::of(std::vector<float>{-0x1p-149f, -3, -0.0f, 5}, {2, 2}))) << device->name();
  }
}

TEST(TopkTest, TheMostRecent) {
  const Tensor visible = Tensor::of(std::vector<int32_t>{1, 3, 9}, {3});
  for (const auto& device : devices_under_test()) {
    Tensor topk(DType::kI32, {3, 4});
    ops::take_most_recent(device->ctx(), {.visible = visible, .first = 1, .topk = topk});
    EXPECT_TRUE(same_bits(topk, Tensor::of(std::vector<int32_t>{-1, -1, -1, -1, 1, 2, -1, -1, 5, 6, 7, 8}, {3, 4})))
        << device->name();
  }
}

TEST(MarkUnusableTest, MarksRowsWithNaNOrInfinityAlone) {
  Tensor x(DType::kF32, {4, 33});
  x.at(33) = std::numeric_limits<float>::quiet_NaN();
  x.at(2 * 33 + 32) = -std::numeric_limits<float>::infinity();
  x.at(3 * 33) = std::numeric_limits<float>::max(), x.at(3 * 33 + 1) = std::numeric_limits<float>::max();
  for (const auto& device : devices_under_test()) {
    Tensor faults = Tensor::of(std::vector<int32_t>{0, 0, 0, 0}, {4});
    ops::mark_unusable(device->ctx(), {.x = x, .faults = faults});
    EXPECT_TRUE(same_bits(faults, Tensor::of(std::vector<int32_t>{0, 1, 1, 0}, {4}))) << device->name();
  }
}

}  // namespace
}  // namespace levin::testing
