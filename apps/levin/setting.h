// One option or argument of a command: its names, its help line, and how a value reaches it. For options.cc alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/levin/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
class Option;
}  // namespace CLI

namespace levin::app {

// The file given with --config: lines `name = value`, names as the long options without dashes; [command] opens a
// section for one command.
class ConfigFile {
 public:
  // An empty path is an empty file. Keys must be among `known_keys`, sections among `commands`.
  static Result<ConfigFile> read(const std::string& path, const std::vector<std::string>& known_keys,
                                 const std::vector<std::string>& commands);

  // The values of an option under any of its keys, in the order of the file: those in the section of the command, or if it has
  // none those outside sections.
  std::vector<std::string> find(std::string_view command, const std::vector<std::string>& keys) const;
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    std::string section;  // empty: for all commands
    std::string key;
    std::string value;
  };
  std::string path_;
  std::vector<Entry> entries_;
};

class Setting {
 public:
  Setting(PositionalText text, Setter set);
  Setting(OptionText text, Setter set);

  void declare(CLI::App& parser);
  void collect();  // what the parser found; before the parser goes
  bool given() const { return !values_.empty(); }

  // Takes the value from the command line, the environment or the file, in this order.
  Status apply(const Environment& environment, const ConfigFile& file, std::string_view command);

  void hide() { hidden_ = true; }
  bool hidden() const { return hidden_; }  // left out of the help

  bool is_positional() const { return !positional_.empty(); }
  bool is_flag() const { return !is_positional() && text_.value.empty(); }
  const std::vector<std::string>& names() const { return names_; }  // with dashes
  const std::string& key() const { return key_; }                   // kv-cache-dtype
  // In files and the environment: of each long name, the main one first.
  const std::vector<std::string>& keys() const { return keys_; }
  std::vector<std::string> variables() const;  // LEVIN_KV_CACHE_DTYPE
  const std::string& group() const { return text_.group; }
  const std::string& positional() const { return positional_; }
  bool required() const { return required_; }

  std::string help_left() const;   // "-n, --max-tokens N"
  std::string help_right() const;  // purpose, default, variable

 private:
  Status set(std::string_view value, std::string_view source);

  OptionText text_;
  std::string positional_;  // "MODEL"; empty for options
  bool required_ = false;
  bool hidden_ = false;
  Setter set_;
  std::vector<std::string> names_;
  std::vector<std::string> keys_;
  std::string key_;                  // the main one
  std::string variable_;             // of it
  CLI::Option* option_ = nullptr;    // between declare() and collect()
  std::vector<std::string> values_;  // from the command line
};

std::string command_help(const CommandText& text, const std::vector<Setting>& settings);

}  // namespace levin::app
