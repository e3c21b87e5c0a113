// The control groups of this process, versions 1 and 2, and how many processors they leave it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

namespace levin {

enum class GroupVersion { kV1, kV2 };

// Calls visit(folder, version) for the group that `controller` ("memory", "cpu") binds this process to and for all
// groups around it: a process is bound by the limits of all of them. Reads /proc/self/cgroup below `root`; groups whose
// folder is not visible here (as in a container without a namespace of its own) come down to those that are.
void for_each_control_group(const std::filesystem::path& root, std::string_view controller,
                            const std::function<void(const std::filesystem::path&, GroupVersion)>& visit);

// Processor time per time that the tightest quota grants, in processors, such as 1.5; empty: no quota.
// `root` is "/" except in tests.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace levin
