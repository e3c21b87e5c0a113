#include "apps/levin/tools_file.h"

#include <fmt/core.h>

#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr size_t kMaxToolsBytes = size_t{16} << 20;

}  // namespace

Result<std::vector<io::JsonValue>> read_tools_file(const std::string& path) {
  const Result<std::string> text = io::read_file(path, {.max_bytes = kMaxToolsBytes});
  if (!text.ok()) return Error{ErrorKind::kUsage, text.error().message};
  LEVIN_ASSIGN(const io::JsonValue document,
               io::parse_json(*text, path, {.kind = ErrorKind::kUsage, .duplicates = io::DuplicateKeys::kLastWins}));
  const io::JsonArray* list = document.as_array();
  if (list == nullptr) {
    return Error{ErrorKind::kUsage,
                 fmt::format("{} is {}, expected a list of functions", path, io::describe_json(document))};
  }
  std::vector<io::JsonValue> functions;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}: entry {}", path, i);
    LEVIN_ASSIGN(const io::JsonFields entry, io::JsonFields::of((*list)[i], where, ErrorKind::kUsage));
    if (const io::JsonValue* function = entry.find("function")) {
      LEVIN_ASSIGN(const io::JsonFields fields, entry.get_fields("function"));
      LEVIN_TRY(fields.get<std::string>("name"));
      functions.push_back(*function);
    } else {
      LEVIN_TRY(entry.get<std::string>("name"));
      functions.push_back((*list)[i]);
    }
  }
  return functions;
}

}  // namespace levin::app
