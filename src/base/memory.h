// How much memory this process may still take, control groups included; and advice about mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
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

// Advice to the system about bytes of a mapped file, which changes speed alone. They need not begin or end with a page.
void read_soon(std::span<const std::byte> mapped);
void read_here_and_there(std::span<const std::byte> mapped);  // reading ahead is of no use

}  // namespace levin
