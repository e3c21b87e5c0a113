#include "base/control_group.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/cpu.h"

namespace fs = std::filesystem;

namespace levin {
namespace {

// /proc and /sys as a process sees them, which a test fills.
class ControlGroupTest : public testing::Test {
 protected:
  ControlGroupTest() {
    std::string name = (fs::temp_directory_path() / "levin-groups-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~ControlGroupTest() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(ControlGroupTest, NoGroupsNoQuota) {
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
}

TEST_F(ControlGroupTest, TheTightestGroupOfVersion2Counts) {
  put("proc/self/cgroup", "0::/pod/container\n");
  put("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 1.5);
  put("sys/fs/cgroup/pod/container/cpu.max", "25000 50000\n");
  EXPECT_EQ(cpu_quota(root_), 0.5);
}

TEST_F(ControlGroupTest, Version1WithJointControllersAndAnInvisibleFolder) {
  put("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(cpu_quota(root_), 2);
}

TEST_F(ControlGroupTest, ReadsNothingFromBrokenFiles) {
  put("proc/self/cgroup", "0::/a\n\nnonsense\n::\n");
  for (const char* text : {"", "x y", "100000", "100000 0", "-5 100", "0 100000"}) {
    put("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(cpu_quota(root_), std::nullopt) << text;
  }
}

TEST(UsableCores, AreWholeProcessorsOfTheQuotaAndAtLeastOne) {
  struct Case {
    int n_cores;
    double quota;
    int n_usable;
  };
  for (const Case& c : {Case{8, 0, 8}, {8, 0.5, 1}, {8, 1, 1}, {8, 1.9, 1}, {8, 2, 2}, {8, 64, 8}, {1, 1e300, 1}}) {
    EXPECT_EQ((CpuInfo{.n_cores = c.n_cores, .quota = c.quota}.n_usable_cores()), c.n_usable)
        << c.n_cores << " processors, quota " << c.quota;
  }
}

}  // namespace
}  // namespace levin
