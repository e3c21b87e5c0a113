// What was typed in chats, kept from one to the next: a file with one entry a line, newlines as "\n" and backslashes
// doubled, readable by its owner alone.
//
// The file holds kMaxEntries at most once it has been read; chats that run side by side append to it in turn.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/levin/options.h"

namespace levin::app {

class PromptHistory {
 public:
  static constexpr size_t kMaxEntries = 1000;
  static constexpr size_t kMaxEntryBytes = size_t{1} << 16;  // a longer text is not kept

  // $XDG_STATE_HOME/levin/history, else ~/.local/state/levin/history; empty where the environment names neither.
  static std::filesystem::path default_file(const Environment& environment);

  explicit PromptHistory(std::filesystem::path file) : file_(std::move(file)) {}  // empty: nothing is kept

  // Oldest first. A file that has grown too long is shortened. What cannot be read as an entry is left out.
  std::vector<std::string> read() const;
  // Errors (kRuntime) name the file and the system's reason.
  Status append(std::string_view entry) const;

 private:
  std::filesystem::path file_;
};

}  // namespace levin::app
