#include "apps/levin/ids_file.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

namespace levin::app {

Result<std::vector<int32_t>> read_ids_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{ErrorKind::kUsage, fmt::format("cannot read the ids file {}", path)};
  std::vector<int32_t> ids;
  for (std::string word; file >> word;) {
    int32_t id = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (code != std::errc() || end != word.data() + word.size()) {
      return Error{ErrorKind::kUsage, fmt::format("{}: '{}' (number {}) is not a token id", path, word, ids.size())};
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace levin::app
