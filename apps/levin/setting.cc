#include "apps/levin/setting.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/closest.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // of UTF-8: some editors put it in front

std::vector<std::string> split_names(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    out.emplace_back(names.substr(0, comma));
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return out;
}

std::vector<std::string> keys_of(const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    if (name.starts_with("--")) keys.push_back(name.substr(2));
  }
  return keys;
}

std::string first_of(const std::vector<std::string>& keys) { return keys.empty() ? "" : keys.front(); }

std::string variable_of(std::string_view key) {
  std::string name = "LEVIN_";
  for (const char c : key) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

std::string_view unquoted(std::string_view text) {
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::optional<std::string> near = closest(word, known);
  return near ? fmt::format("; did you mean '{}'?", *near) : "";
}

}  // namespace

// ---- the file given with --config --------------------------------------------------------------------------------

Result<ConfigFile> ConfigFile::read(const std::string& path, const std::vector<std::string>& known_keys,
                                    const std::vector<std::string>& commands) {
  ConfigFile file;
  file.path_ = path;
  if (path.empty()) return file;
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = 1 << 20, .kind = ErrorKind::kUsage}));
  const auto fault = [&](int line, std::string what) {
    return Error{ErrorKind::kUsage, fmt::format("{}:{}: {}", path, line, std::move(what))};
  };

  std::string section;
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = without_blanks(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[' && line.back() == ']') {
      section = without_blanks(line.substr(1, line.size() - 2));
      if (!contains(commands, section))
        return fault(number, fmt::format("no command '{}'{}", section, suggestion(section, commands)));
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      return fault(number, fmt::format("'{}' is not of the form 'name = value'", line));
    const std::string key(without_blanks(line.substr(0, equals)));
    if (!contains(known_keys, key))
      return fault(number, fmt::format("no option '{}'{}", key, suggestion(key, known_keys)));
    if (key == "config") return fault(number, "a file of options cannot name another");
    file.entries_.push_back({section, key, std::string(unquoted(without_blanks(line.substr(equals + 1))))});
  }
  return file;
}

std::vector<std::string> ConfigFile::find(std::string_view command, const std::vector<std::string>& keys) const {
  const auto values_in = [&](std::string_view section) {
    std::vector<std::string> values;
    for (const Entry& entry : entries_) {
      if (entry.section == section && contains(keys, entry.key)) values.push_back(entry.value);
    }
    return values;
  };
  const std::vector<std::string> own = values_in(command);
  return own.empty() ? values_in("") : own;
}

// ---- one option --------------------------------------------------------------------------------------------------

Setting::Setting(PositionalText text, Setter set)
    : text_{.names = text.aliases, .value = text.name, .purpose = std::move(text.purpose)},
      positional_(std::move(text.name)),
      required_(text.required),
      set_(std::move(set)),
      names_(split_names(text_.names)),
      keys_(keys_of(names_)),
      key_(first_of(keys_)) {
  if (!key_.empty()) variable_ = variable_of(key_);
}

Setting::Setting(OptionText text, Setter set)
    : text_(std::move(text)),
      set_(std::move(set)),
      names_(split_names(text_.names)),
      keys_(keys_of(names_)),
      key_(first_of(keys_)),
      variable_(variable_of(key_)) {}

std::vector<std::string> Setting::variables() const {
  std::vector<std::string> out;
  for (const std::string& key : keys_) out.push_back(variable_of(key));
  return out;
}

void Setting::declare(CLI::App& parser) {
  std::string names = positional_;
  for (const std::string& name : names_) names += (names.empty() ? "" : ",") + name;
  option_ = is_flag() ? parser.add_flag(names) : parser.add_option(names);
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Setting::collect() {
  values_ = option_->results();
  if (!text_.repeatable && values_.size() > 1) values_.erase(values_.begin(), values_.end() - 1);
  option_ = nullptr;
}

Status Setting::set(std::string_view value, std::string_view source) {
  const std::optional<std::string> expected = set_(value);
  if (!expected) return {};
  return Error{ErrorKind::kUsage, fmt::format("{} is '{}', expected {}", source, value, *expected)};
}

Status Setting::apply(const Environment& environment, const ConfigFile& file, std::string_view command) {
  const std::string name = names_.empty() ? positional_ : is_positional() ? positional_ : "--" + key_;
  if (given()) {
    for (const std::string& value : values_) LEVIN_TRY(set(value, name));
    return {};
  }
  for (const std::string& variable : variables()) {
    if (const std::string* value = environment.find(variable))
      return set(*value, "the environment variable " + variable);
  }
  std::vector<std::string> values = file.find(command, keys_);
  if (!text_.repeatable && values.size() > 1) values.erase(values.begin(), values.end() - 1);
  for (const std::string& value : values) LEVIN_TRY(set(value, fmt::format("{}: {}", file.path(), key_)));
  if (!values.empty() || !required_) return {};
  return Error{ErrorKind::kUsage,
               fmt::format("{} is missing\n'levin {} --help' shows how the command is used", positional_, command)};
}

// ---- help --------------------------------------------------------------------------------------------------------

std::string Setting::help_left() const {
  std::string out = positional_;
  for (const std::string& name : names_) {
    if (is_positional()) continue;
    out += (out.empty() ? "" : ", ") + name;
  }
  if (!is_positional() && !text_.value.empty()) out += " " + text_.value;
  return out;
}

std::string Setting::help_right() const {
  std::string notes = text_.default_text.empty() ? "" : "default: " + text_.default_text;
  if (is_positional() && !names_.empty()) notes = "also " + text_.names;
  if (!variable_.empty() && group() != "General") notes += (notes.empty() ? "" : "; ") + variable_;
  return notes.empty() ? text_.purpose : fmt::format("{} [{}]", text_.purpose, notes);
}

namespace {

constexpr size_t kHelpColumn = 28;
constexpr size_t kHelpWidth = 120;

// Left column, then the text wrapped at words.
std::string help_line(const std::string& left, const std::string& right) {
  std::string out = "  " + left;
  size_t column = out.size();
  if (column + 2 > kHelpColumn) {
    out += "\n";
    column = 0;
  }
  out += std::string(kHelpColumn - column, ' ');
  column = kHelpColumn;
  std::string_view rest = right;
  while (!rest.empty()) {
    const size_t blank = std::min(rest.find(' '), rest.size());
    if (column > kHelpColumn && column + 1 + blank > kHelpWidth) {
      out += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      out += ' ';
      ++column;
    }
    out += rest.substr(0, blank);
    column += blank;
    rest.remove_prefix(std::min(blank + 1, rest.size()));
  }
  return out + "\n";
}

}  // namespace

std::string command_help(const CommandText& text, const std::vector<Setting>& settings) {
  std::string usage = fmt::format("levin {} [OPTIONS]", text.name);
  std::string arguments;
  std::vector<std::string> groups;
  for (const Setting& setting : settings) {
    if (setting.hidden()) continue;
    if (setting.is_positional()) {
      usage += setting.required() ? " " + setting.positional() : " [" + setting.positional() + "]";
      arguments += help_line(setting.help_left(), setting.help_right());
    } else if (setting.group() != "General" && !contains(groups, setting.group())) {
      groups.push_back(setting.group());
    }
  }
  groups.emplace_back("General");

  std::string out = fmt::format("levin {} - {}\n\nUsage: {}\n", text.name, text.purpose, usage);
  if (!arguments.empty()) out += "\nArguments:\n" + arguments;
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Setting& setting : settings) {
      if (!setting.is_positional() && !setting.hidden() && setting.group() == group)
        out += help_line(setting.help_left(), setting.help_right());
    }
  }
  if (!text.examples.empty()) out += "\nExamples:\n" + text.examples + (text.examples.back() == '\n' ? "" : "\n");
  return out;
}

}  // namespace levin::app
