#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace levin {
namespace {

Result<int> half_of(int x) {
  if (x % 2 != 0) return Error{ErrorKind::kUsage, "odd"};
  return x / 2;
}

Status is_positive(int x) {
  if (x <= 0) return Error{ErrorKind::kModelInvalid, "not positive"};
  return {};
}

Result<int> quarter_of_positive(int x) {
  LEVIN_TRY(is_positive(x));
  LEVIN_ASSIGN(const int half, half_of(x));
  LEVIN_ASSIGN(const int quarter, half_of(half));
  return quarter;
}

TEST(ResultTest, ValuesAndErrorsPassThrough) {
  EXPECT_EQ(*quarter_of_positive(12), 3);
  EXPECT_EQ(quarter_of_positive(6).error().message, "odd");
  EXPECT_EQ(quarter_of_positive(-4).error().kind, ErrorKind::kModelInvalid);
}

TEST(ResultTest, KindsAreExitCodes) {
  EXPECT_EQ((Error{ErrorKind::kRuntime, ""}).exit_code(), 1);
  EXPECT_EQ((Error{ErrorKind::kUsage, ""}).exit_code(), 2);
  EXPECT_EQ((Error{ErrorKind::kModelInvalid, ""}).exit_code(), 3);
  EXPECT_EQ((Error{ErrorKind::kOutOfMemory, ""}).exit_code(), 4);
  EXPECT_EQ((Error{ErrorKind::kNoDevice, ""}).exit_code(), 5);
}

TEST(ResultTest, HoldsWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> moved = std::move(result).value();
  EXPECT_EQ(*moved, 7);
}

}  // namespace
}  // namespace levin
