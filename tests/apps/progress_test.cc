#include "apps/levin/progress.h"

#include <gtest/gtest.h>

namespace levin::app {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(ProgressTest, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_text(kGiB, 4 * kGiB, 2.0),
            "[########......................]  25%  1.0 of 4.0 GiB, 0.50 GiB/s, 6 s left");
  EXPECT_EQ(progress_text(4 * kGiB, 4 * kGiB, 8.0),
            "[##############################] 100%  4.0 of 4.0 GiB, 0.50 GiB/s, 0 s left");
}

TEST(ProgressTest, KnowsNoTimeAtTheBeginning) {
  EXPECT_EQ(progress_text(0, kGiB, 0), "[..............................]   0%  0.0 of 1.0 GiB, 0.00 GiB/s");
  EXPECT_EQ(progress_text(0, 0, 0), "[##############################] 100%  0.0 of 0.0 GiB, 0.00 GiB/s");
}

}  // namespace
}  // namespace levin::app
