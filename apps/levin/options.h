// The command line: commands, their options, and where a value comes from.
//
// An option's value is taken from the command line, else from its environment variable (--kv-cache-dtype:
// LEVIN_KV_CACHE_DTYPE), else from the file given with --config, else it keeps its default. This is the only place that
// reads the environment.
//
//   Command& inspect = line.add({.name = "inspect", .purpose = "Architecture, tensors, memory plan", .examples =
//   "..."}); inspect.positional({.name = "MODEL", .purpose = "...", .required = true}, set_text(&options->model));
//   inspect.option({.names = "--json", .purpose = "Print JSON"}, set_flag(&options->json));
//   inspect.action([options] { return run_inspect(*options); });
//
// Setters return what was expected ("a whole number from 1 to 4096"); the message around it names the source and the
// value found.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace levin::app {

// Takes a value as written; nullopt when it is fine, otherwise what was expected instead.
using Setter = std::function<std::optional<std::string>(std::string_view value)>;

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is outside
};
Setter set_text(std::string* target);  // anything but the empty string
Setter set_flag(bool* target);         // on|off, true|false, 1|0; the bare option means on
Setter set_int(int64_t* target, IntRange range);
Setter set_int(int* target, IntRange range);
Setter set_int(std::optional<int64_t>* target, IntRange range);
Setter set_tokens(int64_t* target, IntRange range);  // as set_int, also 128k and 1M (powers of 1024)
// Bytes: 512M, 1.5G, 2GiB, 1T (powers of 1024); a bare number is in GiB.
Setter set_bytes(int64_t* target, IntRange range);
Setter set_bytes(std::optional<int64_t>* target, IntRange range);
Setter set_number(double* target, NumberRange range);  // finite
Setter set_number(std::optional<double>* target, NumberRange range);
Setter set_tokens(std::vector<int64_t>* target, IntRange range);  // several with commas between them: "0,2048,16k"
Setter set_number(std::vector<double>* target, NumberRange range);
// One of `names`; hands over its place among them.
Setter set_choice(std::vector<std::string> names, std::function<void(size_t)> set);

std::string trimmed(std::string_view text);  // without the blanks at its ends

// The entries of a text value with commas between them, trimmed; none of the empty text. An empty entry is refused: it is
// a slip, and a list of nothing else would count as an option that was not given. Errors (kUsage) have the number of the
// entry and not the value, which may be secret.
Result<std::vector<std::string>> split_list(std::string_view option, std::string_view entry_name,
                                            std::string_view list);

struct OptionText {
  std::string names{};    // "-n,--max-tokens"; the first long one names the environment variable and the config key
  std::string value{};    // "N"; empty: a flag
  std::string purpose{};  // one line, with the unit
  std::string default_text{};  // as help prints it; may be empty
  std::string group = "Options";
  bool repeatable = false;  // the setter is called for every value given; otherwise the last one counts
};
struct PositionalText {
  std::string name{};     // "MODEL"
  std::string aliases{};  // "--model,--model-path": the same as an option; may be empty
  std::string purpose{};
  bool required = false;
};
struct CommandText {
  std::string name{};
  std::string purpose{};   // one line
  std::string examples{};  // lines for the end of the help
};

// What the process was started with besides its arguments.
struct Environment {
  std::vector<std::pair<std::string, std::string>> variables;
  const std::string* find(std::string_view name) const;  // nullptr when unset; an empty variable counts as unset
};
Environment process_environment();

Error usage_error(std::string message);  // of the kind that a wrong command line has

class Command {
 public:
  ~Command();
  const CommandText& text() const { return text_; }

  void positional(PositionalText text, Setter set);
  void option(OptionText text, Setter set);
  // Leaves options out of the help, by their config keys ("threads"): they mean nothing to this command and are taken all
  // the same, so that one config file or environment serves every command.
  void hide(const std::vector<std::string>& keys);
  // Called after all values are set; cross-checks between options belong here.
  void check(std::function<Status(const Environment&)> check);
  void action(std::function<Status()> run);
  std::string help() const;

 private:
  friend class CommandLine;
  struct Impl;
  explicit Command(CommandText text);

  CommandText text_;
  std::unique_ptr<Impl> impl_;
};

// Options that help prints under one heading:
//
//   const OptionGroup add(command, "Bench");
//   add("--decode-tokens", "N", "Tokens decoded in every sequence", "64", set_int(&bench->decode_tokens, {.min = 1}));
class OptionGroup {
 public:
  OptionGroup(Command& command, std::string heading) : command_(command), heading_(std::move(heading)) {}
  void operator()(std::string names, std::string value, std::string purpose, std::string default_text,
                  Setter set) const;

 private:
  Command& command_;
  std::string heading_;
};

class CommandLine {
 public:
  explicit CommandLine(std::string version);
  ~CommandLine();

  Command& add(CommandText text);

  // Parses and runs. Prints help and version to stdout, warnings to stderr. An error's message is one or a few lines
  // for stderr.
  Status run(const std::vector<std::string>& arguments, const Environment& environment);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::app
