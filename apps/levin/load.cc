// levin load: a load client for servers that speak as OpenAI's do.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "apps/levin/commands.h"
#include "apps/levin/standard_output.h"
#include "apps/load/load_report.h"
#include "apps/load/load_run.h"
#include "apps/report/plot.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr int64_t kDefaultClients = 8;

struct LoadCommand {
  std::string url;
  LoadOptions options;
  std::vector<double> rates;          // an open loop at each of them
  std::vector<double> concurrencies;  // a closed loop with as many clients; neither: with kDefaultClients
  int64_t n_repetitions = 1;
  bool json = false;
  std::string plot_file;
};

// "64,1024:0.2": lengths in tokens, each with a weight.
Setter set_mix(std::vector<PromptShare>* target) {
  return [target](std::string_view value) -> std::optional<std::string> {
    std::vector<PromptShare> mix;
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      const std::string_view entry = value.substr(begin, end - begin);
      const size_t colon = std::min(entry.find(':'), entry.size());
      PromptShare share;
      const bool bad_length =
          set_tokens(&share.n_tokens, {.min = 1, .max = 1 << 30})(entry.substr(0, colon)).has_value();
      const bool bad_weight = colon < entry.size() &&
                              set_number(&share.weight, {.min = 1e-9, .max = 1e9})(entry.substr(colon + 1)).has_value();
      if (bad_length || bad_weight)
        return "lengths in tokens, each with a weight after a colon if they differ: 64,1024:0.2";
      mix.push_back(share);
      begin = end + 1;
    }
    *target = mix;
    return std::nullopt;
  };
}

std::vector<LoadLevel> levels(const LoadCommand& command) {
  std::vector<LoadLevel> out;
  for (const double rate : command.rates) out.push_back({.rate = rate});
  for (const double n : command.concurrencies) out.push_back({.concurrency = static_cast<int64_t>(n)});
  if (out.empty()) out.push_back({.concurrency = kDefaultClients});
  return out;
}

// Every repetition has requests of its own.
LevelReport run_level(const LoadClient& client, const LoadLevel& level, int64_t n_repetitions, int64_t* n_sent) {
  std::optional<LevelReport> out;
  for (int64_t i = 0; i < n_repetitions; ++i) {
    const LevelReport report = report_of(client.run(level, *n_sent));
    *n_sent += client.options().n_requests;
    if (out) {
      out->add(report);
    } else {
      out = report;
    }
  }
  return *out;
}

Status run(LoadCommand command) {
  LEVIN_ASSIGN(command.options.url, parse_url(command.url));
  LEVIN_ASSIGN(const LoadClient client, LoadClient::connect(command.options));
  std::vector<LevelReport> reports;
  int64_t n_ok = 0, n_sent = 0;
  for (const LoadLevel& level : levels(command)) {
    reports.push_back(run_level(client, level, command.n_repetitions, &n_sent));
    n_ok += reports.back().n_ok;
    if (!command.json) fmt::print("{}{}", reports.size() > 1 ? "\n" : "", report_text(reports.back()));
    LEVIN_TRY(flush_standard_output());
  }
  if (command.json) {
    io::JsonArray list;
    for (const LevelReport& report : reports) list.push_back(report_json(report));
    fmt::print("{}\n", io::dump_json(list));
  }
  const std::string subtitle = fmt::format("{} at {}, {} requests a level, {}", client.options().model, command.url,
                                           command.options.n_requests, today());
  if (!command.plot_file.empty() && n_ok > 0)
    LEVIN_TRY(io::write_file_atomically(command.plot_file, report_svg(reports, subtitle)));
  if (n_ok > 0) return {};
  return Error{ErrorKind::kRuntime, fmt::format("no request succeeded: {}", reports.front().errors.front())};
}

void add_load_options(Command& command, LoadCommand& load) {
  const OptionGroup add(command, "Load");
  LoadOptions& o = load.options;
  add("--requests", "N", "Requests per level", "100", set_int(&o.n_requests, {.min = 1, .max = 1 << 20}));
  add("--concurrency", "LIST", "Closed loop: number of clients that each wait for their answer; one level per value",
      "8", set_number(&load.concurrencies, {.min = 1, .max = 4096}));
  add("--rate", "LIST", "Open loop instead: requests per second, independent of the answers; one level per value",
      "off", set_number(&load.rates, {.min = 1e-3, .max = 1e5}));
  add("--repetitions", "N", "Runs of each level; latencies are of all requests, throughput has a median and a spread",
      "1", set_int(&load.n_repetitions, {.min = 1, .max = 10000}));
  add("--arrivals", "KIND", "Arrival process of an open loop: poisson or even", "poisson",
      set_choice({"poisson", "even"}, [&o](size_t place) { o.poisson = place == 0; }));
  add("--prompt-tokens", "MIX", "Prompt lengths in tokens, with weights: 64,1024:0.2", "256", set_mix(&o.prompts));
  add("--shared-tokens", "N", "Length of a shared prefix, added to each prompt", "0",
      set_tokens(&o.n_shared_tokens, {.min = 0, .max = 1 << 30}));
  add("--prefixes", "N", "Number of different shared prefixes", "1",
      set_int(&o.n_prefixes, {.min = 1, .max = 1 << 20}));
  add("--answer-tokens", "N", "max_tokens of each request", "64",
      set_int(&o.n_answer_tokens, {.min = 1, .max = 1 << 20}));
  add("--ignore-eos", "on|off", "Generate all --answer-tokens of each request", "on", set_flag(&o.ignore_eos));
  add("--temperature", "T", "Sampling temperature", "0", set_number(&o.temperature, {.min = 0, .max = 100}));
  add("--api", "NAME", "API to call: completions or chat", "completions",
      set_choice({"completions", "chat"}, [&o](size_t place) { o.chat = place == 1; }));
  add("--model-name", "NAME", "Model name to send", "the server's first model", set_text(&o.model));
  add("--api-key", "KEY", "API key to send", "none", set_text(&o.api_key));
  add("--seed", "N", "The same seed gives the same requests", "0", set_int(&o.seed, {.min = 0}));
  add("--timeout", "SECONDS", "Time limit of a request", "600", set_int(&o.timeout_s, {.min = 1, .max = 86400}));
  add("--json", "", "Print a JSON list with one object per level", "", set_flag(&load.json));
  add("--plot", "FILE.svg", "Draw a chart of latency percentiles, or of latency and throughput over several levels", "",
      set_text(&load.plot_file));
}

}  // namespace

void add_load(CommandLine& line) {
  Command& command = line.add({.name = "load",
                               .purpose = "Load-test a server: latency percentiles, throughput, acceptance",
                               .examples = "  levin load http://127.0.0.1:8000 --concurrency 1,4,16 --plot load.svg\n"
                                           "  levin load localhost:8000 --rate 2.5 --prompt-tokens 64,1024:0.2 "
                                           "--shared-tokens 2000\n"});
  const auto load = std::make_shared<LoadCommand>();
  command.positional({.name = "URL", .purpose = "Address of the server: http://HOST:PORT", .required = true},
                     set_text(&load->url));
  add_load_options(command, *load);
  command.check([load](const Environment&) -> Status {
    if (!load->rates.empty() && !load->concurrencies.empty())
      return Error{ErrorKind::kUsage, "--rate and --concurrency exclude each other; give one of them"};
    return load->plot_file.empty() ? Status() : io::check_writable(load->plot_file);
  });
  command.action([load] { return run(*load); });
}

}  // namespace levin::app
