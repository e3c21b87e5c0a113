#include "tensor/view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace levin {
namespace {

class ViewTest : public ::testing::Test {
 protected:
  ViewTest() : values_(60) { std::iota(values_.begin(), values_.end(), 0.0f); }

  std::vector<float> values_;
  View view() { return View::of(values_.data(), {3, 4, 5}); }
};

TEST_F(ViewTest, KnowsItsShapeAndStrides) {
  const View v = view();
  EXPECT_EQ(v.rank(), 3);
  EXPECT_EQ(v.dim(0), 3);
  EXPECT_EQ(v.dim(-1), 5);
  EXPECT_EQ(v.stride(0), 20);
  EXPECT_EQ(v.stride(-1), 1);
  EXPECT_EQ(v.n_elements(), 60);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(v.describe(), "f32 [3, 4, 5]");
  EXPECT_EQ(v.row<float>(2)[0], 40.0f);
  EXPECT_EQ(v.row<float>(1, 3)[2], 37.0f);
}

TEST_F(ViewTest, ADefaultOneIsEmpty) {
  EXPECT_TRUE(View().empty());
  EXPECT_EQ(View().n_elements(), 0);
  EXPECT_EQ(View().describe(), "(none)");
}

TEST_F(ViewTest, SlicesKeepTheStrides) {
  const View columns = view().slice_last(1, 3);
  EXPECT_EQ(columns.describe(), "f32 [3, 4, 3]");
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.row<float>(2, 1)[0], 46.0f);
  const View rows = columns.slice_first(1, 2);
  EXPECT_EQ(rows.describe(), "f32 [2, 4, 3]");
  EXPECT_EQ(rows.row<float>(1, 1)[2], 48.0f);
  EXPECT_TRUE(view().slice_first(1, 0).n_elements() == 0);
}

TEST_F(ViewTest, SplitsAndMergesDimensions) {
  const View flat = View::of(values_.data(), {3, 20});
  const View heads = flat.split_last(4, 5);
  EXPECT_EQ(heads.describe(), "f32 [3, 4, 5]");
  EXPECT_EQ(heads.row<float>(1, 2)[3], 33.0f);
  EXPECT_EQ(heads.merged_first().describe(), "f32 [12, 5]");
  EXPECT_EQ(heads.merged_first().row<float>(7)[0], 35.0f);
  EXPECT_EQ(view().reshaped({60}).row<float>(59)[0], 59.0f);
  const View part = heads.slice_last(1, 2);  // a slice of each head still lies at one stride
  EXPECT_EQ(part.merged_first().row<float>(7)[1], 37.0f);
}

TEST_F(ViewTest, ARowAloneIsContiguousWhateverItsStride) {
  EXPECT_TRUE(View::of(values_.data(), {3, 20}).slice_last(2, 4).slice_first(1, 1).contiguous());
}

TEST_F(ViewTest, MisuseStopsTheProcessAndSaysWhatItFound) {
  EXPECT_DEATH(view().data<int32_t>(), "view is f32 \\[3, 4, 5\\], not i32 of the host");
  EXPECT_DEATH(view().slice_last(3, 3), "columns 3..6 of f32 \\[3, 4, 5\\]");
  EXPECT_DEATH(view().slice_first(-1, 2), "rows -1..1");
  EXPECT_DEATH(view().slice_last(0, 2).reshaped({24}), "strided");
  EXPECT_DEATH(view().reshaped({61}), "reshape of f32 \\[3, 4, 5\\] to f32 \\[61\\]");
  EXPECT_DEATH(view().split_last(2, 3), "split");
  EXPECT_DEATH(View::of(values_.data(), {3, 20}).slice_last(0, 15).split_last(3, 5).slice_first(0, 2).merged_first(),
               "one stride");
}

// The memory itself may be anywhere; a view only keeps in mind whose it is.
TEST_F(ViewTest, OfADeviceIsPassedOnAndNotFollowed) {
  const View there(values_.data(), DType::kF32, {3, 20}, Device::kCuda);
  EXPECT_EQ(there.describe(), "f32 [3, 20] on cuda");
  EXPECT_EQ(there.bytes(), reinterpret_cast<std::byte*>(values_.data()));
  for (const View& v : {there.slice_first(1, 1), there.slice_last(4, 2), there.reshaped({60}), there.split_last(4, 5),
                        there.split_last(4, 5).merged_first()})
    EXPECT_EQ(v.device(), Device::kCuda);
  EXPECT_EQ(view().device(), Device::kCpu);
  EXPECT_DEATH(there.data<float>(), "view is f32 \\[3, 20\\] on cuda, not f32 of the host");
  EXPECT_DEATH(there.row<float>(1), "on cuda");
}

TEST(DTypeTest, BytesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::kF32), 4);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kF8E4M3), 1);
  EXPECT_EQ(dtype_bytes(DType::kF8E8M0), 1);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8);
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "f8_e4m3");
}

}  // namespace
}  // namespace levin
