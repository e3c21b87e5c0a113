#include "base/recovery.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "base/check.h"

namespace levin {
namespace {

void fail() { LEVIN_CHECK(1 > 2, "{} of {}", 3, 4); }

TEST(RecoveryTest, AFailedCheckIsThrownWithItsText) {
  const Recovery recovery;
  try {
    fail();
    FAIL() << "the check passed";
  } catch (const CheckFailed& failed) {
    EXPECT_NE(std::string(failed.what()).find("3 of 4"), std::string::npos) << failed.what();
    EXPECT_NE(std::string(failed.what()).find("recovery_test.cc"), std::string::npos) << failed.what();
  }
}

TEST(RecoveryTest, IsOfOneThreadAndOfItsScope) {
  EXPECT_FALSE(Recovery::active());
  {
    const Recovery outer;
    {
      const Recovery inner;
    }
    EXPECT_TRUE(Recovery::active());
    std::thread([] { EXPECT_FALSE(Recovery::active()); }).join();
  }
  EXPECT_FALSE(Recovery::active());
}

TEST(RecoveryDeathTest, WithoutOneAFailedCheckEndsTheProcess) { EXPECT_DEATH(fail(), "3 of 4"); }

}  // namespace
}  // namespace levin
