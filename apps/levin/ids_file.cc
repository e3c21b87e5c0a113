#include "apps/levin/ids_file.h"

#include <fmt/core.h>

#include <charconv>
#include <sstream>

#include "apps/levin/standard_input.h"
#include "arch/load_config.h"

namespace levin::app {

Result<std::vector<int32_t>> read_ids_file(const std::string& path, const EngineOptions& options) {
  LEVIN_ASSIGN(const ParsedConfig model, load_model_config(options.model_folder, *options.registry, options.overrides));
  const Result<std::string> text = read_input(path);
  if (!text.ok()) return Error{ErrorKind::kUsage, fmt::format("cannot read the ids file: {}", text.error().message)};
  std::istringstream words(*text);
  std::vector<int32_t> ids;
  for (std::string word; words >> word;) {
    int32_t id = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (code != std::errc() || end != word.data() + word.size()) {
      return Error{ErrorKind::kUsage, fmt::format("{}: '{}' (number {}) is not a token id", path, word, ids.size())};
    }
    if (id < 0 || id >= model.config.n_vocab) {
      return Error{ErrorKind::kUsage,
                   fmt::format("{}: token id {} (number {} of the ids) is outside the vocabulary of {} tokens", path,
                               id, ids.size(), model.config.n_vocab)};
    }
    ids.push_back(id);
  }
  if (ids.empty()) return Error{ErrorKind::kUsage, fmt::format("{} has no token ids", path)};
  return ids;
}

}  // namespace levin::app
