#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/control_group.h"

namespace fs = std::filesystem;

namespace levin {
namespace {

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> read_number(const fs::path& path) {
  const std::string text = read_text(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;  // "max" is no limit
  return value;
}

// The number after `key` at the start of a line, as in /proc/meminfo and memory.stat.
int64_t number_after(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    return std::strtoll(line.c_str() + key.size(), nullptr, 10);
  }
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;  // in memory.stat: file pages that the kernel drops first
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file "};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

void tighten(const fs::path& folder, const GroupFiles& files, MemoryInfo* info) {
  const std::optional<int64_t> limit = read_number(folder / files.limit);
  if (!limit || *limit >= info->total_bytes) return;
  const int64_t reclaimable = number_after(read_text(folder / "memory.stat"), files.reclaimable);
  const int64_t used = read_number(folder / files.used).value_or(0) - reclaimable;
  info->available_bytes = std::min(info->available_bytes, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
  info->group_limit_bytes = info->group_limit_bytes == 0 ? *limit : std::min(info->group_limit_bytes, *limit);
}

// "always [madvise] never" -> "madvise"
std::string chosen_word(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return text.substr(open + 1, close - open - 1);
}

// To the pages that have a part of the bytes. What the system says to advice is of no consequence.
void advise(std::span<const std::byte> mapped, int advice) {
  static const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data()), first = begin / page_bytes * page_bytes;
  ::madvise(reinterpret_cast<void*>(first), begin + mapped.size() - first, advice);
}

}  // namespace

void read_soon(std::span<const std::byte> mapped) { advise(mapped, MADV_WILLNEED); }

void read_here_and_there(std::span<const std::byte> mapped) { advise(mapped, MADV_RANDOM); }

MemoryInfo memory_info(const fs::path& root) {
  MemoryInfo info;
  const std::string meminfo = read_text(root / "proc/meminfo");
  info.total_bytes = number_after(meminfo, "MemTotal:") * 1024;
  info.available_bytes = number_after(meminfo, "MemAvailable:") * 1024;
  for_each_control_group(root, "memory", [&](const fs::path& folder, GroupVersion version) {
    tighten(folder, version == GroupVersion::kV2 ? kVersion2 : kVersion1, &info);
  });
  const fs::path huge = root / "sys/kernel/mm/transparent_hugepage";
  info.huge_pages = chosen_word(read_text(huge / "enabled"));
  info.huge_page_bytes = read_number(huge / "hpage_pmd_size").value_or(0);
  return info;
}

}  // namespace levin
