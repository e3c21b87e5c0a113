#include "base/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace fs = std::filesystem;

namespace levin {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A machine as /proc and /sys show it: 64 GiB, 40 of them available.
class MemoryTest : public testing::Test {
 protected:
  MemoryTest() {
    std::string name = (fs::temp_directory_path() / "levin-memory-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1000 kB\nMemAvailable:   41943040 kB\n");
    put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
  }
  ~MemoryTest() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(MemoryTest, TakesTheMachineWithoutGroups) {
  const MemoryInfo info = memory_info(root_);
  EXPECT_EQ(info.total_bytes, 64 * kGiB);
  EXPECT_EQ(info.available_bytes, 40 * kGiB);
  EXPECT_EQ(info.group_limit_bytes, 0);
  EXPECT_EQ(info.huge_pages, "madvise");
  EXPECT_EQ(info.huge_page_bytes, 2 << 20);
}

TEST_F(MemoryTest, AGroupLeavesItsLimitLessWhatItUses) {
  put("proc/self/cgroup", "0::/pod/container\n");
  put("sys/fs/cgroup/pod/container/memory.max", "max\n");
  put("sys/fs/cgroup/pod/memory.max", std::to_string(8 * kGiB));
  put("sys/fs/cgroup/pod/memory.current", std::to_string(5 * kGiB));
  put("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file " + std::to_string(2 * kGiB) + "\n");
  const MemoryInfo info = memory_info(root_);
  EXPECT_EQ(info.group_limit_bytes, 8 * kGiB);
  EXPECT_EQ(info.available_bytes, 5 * kGiB);  // 8 - (5 - 2)
}

TEST_F(MemoryTest, TheMachineMayHaveLessThanTheGroupAllows) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", std::to_string(60 * kGiB));
  put("sys/fs/cgroup/memory.current", "0");
  EXPECT_EQ(memory_info(root_).available_bytes, 40 * kGiB);
}

TEST_F(MemoryTest, ReadsTheFirstVersionOfControlGroups) {
  put("proc/self/cgroup", "11:cpu:/x\n5:memory:/docker/abc\n0::/\n");
  put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", std::to_string(4 * kGiB));
  put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", std::to_string(1 * kGiB));
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  const MemoryInfo info = memory_info(root_);
  EXPECT_EQ(info.group_limit_bytes, 4 * kGiB);
  EXPECT_EQ(info.available_bytes, 3 * kGiB);
}

TEST_F(MemoryTest, AGroupOverItsLimitLeavesNothing) {
  put("proc/self/cgroup", "0::/g\n");
  put("sys/fs/cgroup/g/memory.max", std::to_string(kGiB));
  put("sys/fs/cgroup/g/memory.current", std::to_string(2 * kGiB));
  EXPECT_EQ(memory_info(root_).available_bytes, 0);
}

TEST(MemoryInfoTest, ReadsThisMachine) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

}  // namespace
}  // namespace levin
