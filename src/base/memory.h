// How much memory this process may still take, control groups included.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace levin {

struct MemoryInfo {
  int64_t total_bytes = 0;        // of the machine
  int64_t available_bytes = 0;    // without swapping: the machine's, or what the control group leaves if that is less
  int64_t group_limit_bytes = 0;  // tightest limit of the control groups this process is in; 0: none
  int64_t huge_page_bytes = 0;    // size of a transparent huge page; 0: not supported
  std::string huge_pages;         // "always", "madvise" or "never"; empty: unknown
};

// Reads /proc and /sys below `root`, which is "/" except in tests. What cannot be read stays 0.
MemoryInfo memory_info(const std::filesystem::path& root = "/");

}  // namespace levin
