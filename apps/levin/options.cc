#include "apps/levin/options.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "apps/levin/setting.h"
#include "base/closest.h"
#include "io/mapped_file.h"

namespace levin::app {

Error usage_error(std::string message) { return {ErrorKind::kUsage, std::move(message)}; }

const std::string* Environment::find(std::string_view name) const {
  for (const auto& [key, value] : variables) {
    if (key == name && !value.empty()) return &value;
  }
  return nullptr;
}

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

struct Command::Impl {
  std::vector<Setting> settings;
  std::vector<std::function<Status(const Environment&)>> checks;
  std::function<Status()> run;
  std::string config_file;
  bool help_wanted = false;  // the parser looks at the option itself

  Setting& named(std::string_view key) {
    return *std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.key() == key; });
  }
};

// ---- one command -------------------------------------------------------------------------------------------------

Command::Command(CommandText text) : text_(std::move(text)), impl_(std::make_unique<Impl>()) {
  option({.names = "--config",
          .value = "FILE",
          .purpose = "Read options from a file of lines 'name = value'",
          .group = "General"},
         set_text(&impl_->config_file));
  option({.names = "-h,--help", .purpose = "Print this help and exit", .group = "General"},
         set_flag(&impl_->help_wanted));
}

Command::~Command() = default;

void Command::positional(PositionalText text, Setter set) {
  impl_->settings.emplace_back(std::move(text), std::move(set));
}

void Command::option(OptionText text, Setter set) { impl_->settings.emplace_back(std::move(text), std::move(set)); }

void Command::hide(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) impl_->named(key).hide();
}

void Command::check(std::function<Status(const Environment&)> check) { impl_->checks.push_back(std::move(check)); }

void Command::action(std::function<Status()> run) { impl_->run = std::move(run); }

std::string Command::help() const { return command_help(text_, impl_->settings); }

void OptionGroup::operator()(std::string names, std::string value, std::string purpose, std::string default_text,
                             Setter set) const {
  command_.option({.names = std::move(names),
                   .value = std::move(value),
                   .purpose = std::move(purpose),
                   .default_text = std::move(default_text),
                   .group = heading_},
                  std::move(set));
}

// ---- all of them -------------------------------------------------------------------------------------------------

struct CommandLine::Impl {
  std::string version;
  std::vector<std::unique_ptr<Command>> commands;

  std::vector<std::string> command_names() const {
    std::vector<std::string> names;
    names.reserve(commands.size());
    for (const auto& command : commands) names.push_back(command->text().name);
    return names;
  }
  Command* find(std::string_view name) const {
    for (const auto& command : commands) {
      if (command->text().name == name) return command.get();
    }
    return nullptr;
  }
  std::string help() const;
  std::string help_of_all() const;
};

CommandLine::CommandLine(std::string version) : impl_(std::make_unique<Impl>()) { impl_->version = std::move(version); }

CommandLine::~CommandLine() = default;

Command& CommandLine::add(CommandText text) {
  impl_->commands.push_back(std::unique_ptr<Command>(new Command(std::move(text))));
  return *impl_->commands.back();
}

std::string CommandLine::Impl::help() const {
  std::string out =
      "levin - native engine for language models with learned sparse attention\n\n"
      "Usage: levin COMMAND [OPTIONS]\n\nCommands:\n";
  size_t width = 0;
  for (const auto& command : commands) width = std::max(width, command->text().name.size());
  for (const auto& command : commands) {
    out += fmt::format("  {:<{}}  {}\n", command->text().name, width, command->text().purpose);
  }
  out +=
      "\nOptions:\n"
      "  -h, --help     Print this help and exit\n"
      "  --help-all     Print the help of every command and exit\n"
      "  -v, --version  Print the version and exit\n"
      "\nEvery option can also be set by an environment variable (LEVIN_KV_CACHE_DTYPE for --kv-cache-dtype) or in "
      "the\n"
      "file given with --config. The command line overrides the environment, which overrides the file.\n"
      "\nExit codes: 0 done, 1 failed while running, 2 usage, 3 model invalid, 4 does not fit in memory, 5 no such "
      "device\n"
      "\nExamples:\n"
      "  levin run -p \"Why is the sky blue?\"     answer a prompt with the demonstration model\n"
      "  levin inspect ./DeepSeek-V3.2            print the contents and the memory plan of a checkpoint\n"
      "  levin doctor                             print what this machine can run\n"
      "  levin help COMMAND                       print the options of a command, like levin COMMAND --help\n";
  return out;
}

std::string CommandLine::Impl::help_of_all() const {
  std::string out = help();
  for (const auto& command : commands) out += "\n" + std::string(100, '-') + "\n" + command->help();
  return out;
}

namespace {

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::optional<std::string> near = closest(word, known);
  return near ? fmt::format("; did you mean '{}'?", *near) : "";
}

// Hands the words to CLI11, which knows all the ways to write an option; what it did not recognise is returned.
Result<std::vector<std::string>> split_words(std::vector<Setting>& settings, const std::vector<std::string>& words) {
  CLI::App parser;
  parser.set_help_flag("");
  parser.allow_extras();
  for (Setting& setting : settings) setting.declare(parser);
  try {
    parser.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ArgumentMismatch& error) {  // "--prompt: 1 required TEXT missing"
    const std::string_view text = error.what();
    return usage_error(fmt::format("{} needs a value", text.substr(0, text.find(':'))));
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what());
  }
  for (Setting& setting : settings) setting.collect();
  std::vector<std::string> rest = parser.remaining();
  std::erase(rest, "--");  // the mark that only arguments follow
  return rest;
}

std::vector<std::string> option_names(const std::vector<Setting>& settings) {
  std::vector<std::string> names;
  for (const Setting& setting : settings) names.insert(names.end(), setting.names().begin(), setting.names().end());
  return names;
}

Status refuse_unknown(const std::vector<std::string>& rest, const std::vector<Setting>& settings,
                      std::string_view command) {
  const auto dashed =
      std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("-"); });
  if (dashed != rest.end()) {
    const std::string name = dashed->substr(0, dashed->find('='));
    return usage_error(fmt::format("unknown option '{}'{}\n'levin {} --help' lists the options", name,
                                   did_you_mean(name, option_names(settings)), command));
  }
  return usage_error(
      fmt::format("unexpected argument '{}'\n'levin {} --help' shows how the command is used", rest.front(), command));
}

// LEVIN_ variables that no option of any command reads are most likely misspelt.
void warn_of_unknown_variables(const Environment& environment, const std::vector<std::string>& known) {
  for (const auto& [name, value] : environment.variables) {
    if (!name.starts_with("LEVIN_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    fmt::print(stderr, "warning: unknown environment variable {}{}\n", name, did_you_mean(name, known));
  }
}

}  // namespace

Status CommandLine::run(const std::vector<std::string>& arguments, const Environment& environment) {
  if (arguments.empty()) return usage_error("no command given\n\n" + impl_->help());
  if (arguments.front() == "help" && arguments.size() == 2) return run({arguments[1], "--help"}, environment);
  const std::string& first = arguments.front();
  if (first == "-h" || first == "--help" || first == "help") return fmt::print("{}", impl_->help()), Status();
  if (first == "--help-all") return fmt::print("{}", impl_->help_of_all()), Status();
  if (first == "--version" || first == "-v" || first == "-V") return fmt::print("levin {}\n", impl_->version), Status();

  Command* command = impl_->find(first);
  if (command == nullptr) {
    return usage_error(fmt::format("unknown {} '{}'{}\n'levin --help' lists the commands",
                                   first.starts_with("-") ? "option" : "command", first,
                                   did_you_mean(first, impl_->command_names())));
  }
  Command::Impl& chosen = *command->impl_;
  LEVIN_ASSIGN(const std::vector<std::string> rest,
               split_words(chosen.settings, {arguments.begin() + 1, arguments.end()}));
  if (chosen.named("help").given()) return fmt::print("{}", command->help()), Status();
  if (!rest.empty()) return refuse_unknown(rest, chosen.settings, first);

  std::vector<std::string> known_variables, known_keys;
  for (const auto& each : impl_->commands) {
    for (const Setting& setting : each->impl_->settings) {
      for (std::string& variable : setting.variables()) known_variables.push_back(std::move(variable));
      known_keys.insert(known_keys.end(), setting.keys().begin(), setting.keys().end());
    }
  }
  warn_of_unknown_variables(environment, known_variables);

  Setting& config_option = chosen.named("config");
  LEVIN_TRY(config_option.apply(environment, ConfigFile(), first));
  LEVIN_ASSIGN(const ConfigFile config, ConfigFile::read(chosen.config_file, known_keys, impl_->command_names()));
  for (Setting& setting : chosen.settings) LEVIN_TRY(setting.apply(environment, config, first));
  for (const auto& check : chosen.checks) LEVIN_TRY(check(environment));
  return chosen.run();
}

}  // namespace levin::app
