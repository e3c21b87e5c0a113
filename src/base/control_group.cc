#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace fs = std::filesystem;

namespace levin {
namespace {

using Visit = std::function<void(const fs::path&, GroupVersion)>;

// "cpu,cpuacct" has "cpu".
bool has_controller(const std::string& controllers, std::string_view controller) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == controller) return true;
  }
  return false;
}

void visit_from(const fs::path& mount, const fs::path& group, GroupVersion version, const Visit& visit) {
  for (fs::path path = group.relative_path();; path = path.parent_path()) {
    visit(mount / path, version);
    if (path.empty()) return;
  }
}

// cpu.max: "QUOTA PERIOD" in microseconds, QUOTA "max" for none.
std::optional<double> quota_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

// -1 for none.
std::optional<double> quota_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  double quota_us = 0, period_us = 0;
  if (!(quota_file >> quota_us) || !(period_file >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

}  // namespace

void for_each_control_group(const fs::path& root, std::string_view controller, const Visit& visit) {
  std::ifstream groups(root / "proc/self/cgroup");
  const fs::path mounts = root / "sys/fs/cgroup";
  for (std::string line; std::getline(groups, line);) {  // "0::/group" or "5:cpu,cpuacct:/group"
    const size_t first = line.find(':'), second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      visit_from(mounts, group, GroupVersion::kV2, visit);
    } else if (has_controller(controllers, controller)) {
      const fs::path joint = mounts / controllers;  // "cpu,cpuacct" where "cpu" is not a link to it
      visit_from(fs::exists(mounts / controller) ? mounts / controller : joint, group, GroupVersion::kV1, visit);
    }
  }
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> tightest;
  for_each_control_group(root, "cpu", [&](const fs::path& folder, GroupVersion version) {
    const std::optional<double> quota = version == GroupVersion::kV2 ? quota_v2(folder) : quota_v1(folder);
    if (quota) tightest = std::min(tightest.value_or(*quota), *quota);
  });
  return tightest;
}

}  // namespace levin
