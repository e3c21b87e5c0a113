#include "apps/levin/prompt_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

std::string escaped(std::string_view entry) {
  std::string out;
  for (const char c : entry) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string unescaped(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      out += line[i];
    } else {
      out += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Error cannot_keep(const std::filesystem::path& file) {
  return {ErrorKind::kRuntime, fmt::format("{}: {}", file.string(), std::strerror(errno))};
}

// Appends in one call, so that chats side by side do not mix their entries.
Status append_bytes(const std::filesystem::path& file, const std::string& bytes, int more_flags) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | more_flags, 0600);
  if (fd < 0) return cannot_keep(file);
  const bool written = ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  Status status = written ? Status() : Status(cannot_keep(file));
  ::close(fd);
  return status;
}

}  // namespace

std::filesystem::path PromptHistory::default_file(const Environment& environment) {
  std::filesystem::path state;
  if (const std::string* home = environment.find("HOME")) state = std::filesystem::path(*home) / ".local/state";
  if (const std::string* folder = environment.find("XDG_STATE_HOME")) state = *folder;
  return state.is_absolute() ? state / "levin/history" : std::filesystem::path();
}

std::vector<std::string> PromptHistory::read() const {
  if (file_.empty()) return {};
  const Result<std::string> text = io::read_file(file_, {.max_bytes = kMaxFileBytes});
  if (!text.ok()) return {};
  std::vector<std::string_view> lines = lines_of(*text);
  if (lines.size() > kMaxEntries) {
    lines.erase(lines.begin(), lines.end() - kMaxEntries);
    std::string kept;
    for (const std::string_view line : lines) kept.append(line).append("\n");
    (void)append_bytes(file_, kept, O_TRUNC).ok();  // where it cannot be written it stays long
  }
  std::vector<std::string> entries;
  entries.reserve(lines.size());
  for (const std::string_view line : lines) entries.push_back(unescaped(line));
  return entries;
}

Status PromptHistory::append(std::string_view entry) const {
  if (file_.empty() || entry.empty() || entry.size() > kMaxEntryBytes) return {};
  std::error_code failed;
  std::filesystem::create_directories(file_.parent_path().parent_path(), failed);
  if (::mkdir(file_.parent_path().c_str(), 0700) != 0 && errno != EEXIST) return cannot_keep(file_);
  return append_bytes(file_, escaped(entry) + "\n", 0);
}

}  // namespace levin::app
