// levin bench: prefill and decode speed by context depth, batch and speculation.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "apps/levin/plot.h"
#include "apps/levin/progress.h"
#include "engine/engine.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

struct BenchCommand {
  std::vector<int64_t> depths = {0, 2048, 16384};
  std::vector<int64_t> batches = {1};
  int64_t decode_tokens = 64;
  bool json = false;
  bool csv = false;
  std::string plot_file;
};

// "0,2048,16k"
Setter set_list(std::vector<int64_t>* target, IntRange range) {
  return [target, range](std::string_view value) -> std::optional<std::string> {
    std::vector<int64_t> list;
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      int64_t number = 0;
      if (const auto expected = set_tokens(&number, range)(value.substr(begin, end - begin)))
        return *expected + ", or several with commas";
      list.push_back(number);
      begin = end + 1;
    }
    *target = list;
    return std::nullopt;
  };
}

std::vector<BenchCase> cases(const BenchCommand& command, int n_spec_steps) {
  std::vector<BenchCase> out;
  for (const int64_t depth : command.depths) {
    for (const int64_t batch : command.batches) {
      out.push_back({.depth_tokens = depth, .batch = batch, .n_spec_steps = 0});
      if (n_spec_steps > 0) out.push_back({.depth_tokens = depth, .batch = batch, .n_spec_steps = n_spec_steps});
    }
  }
  return out;
}

io::JsonValue row_json(const BenchRow& row) {
  return io::JsonObject{{"depth", row.what.depth_tokens},
                        {"batch", row.what.batch},
                        {"spec_steps", row.what.n_spec_steps},
                        {"prefill_tokens_per_s", row.prefill_tokens_per_s},
                        {"decode_tokens_per_s", row.decode_tokens_per_s},
                        {"decode_step_ms", row.decode_step_ms},
                        {"mean_accept_length", row.mean_accept_length}};
}

void print_table_head() {
  fmt::print("{:>8} {:>6} {:>6} {:>16} {:>16} {:>12} {:>10}\n", "depth", "batch", "drafts", "prefill tok/s",
             "decode tok/s", "step ms", "kept/pass");
}

void print_row(const BenchRow& row, bool csv) {
  const char* format =
      csv ? "{},{},{},{:.2f},{:.2f},{:.4f},{:.3f}\n" : "{:>8} {:>6} {:>6} {:>16.1f} {:>16.1f} {:>12.3f} {:>10.2f}\n";
  fmt::print(fmt::runtime(format), row.what.depth_tokens, row.what.batch, row.what.n_spec_steps,
             row.prefill_tokens_per_s, row.decode_tokens_per_s, row.decode_step_ms, row.mean_accept_length);
  std::fflush(stdout);
}

Status write_plot(const std::string& file, const std::vector<BenchRow>& rows) {
  Plot plot{.title = "Decode speed by context", .x_label = "context, tokens", .y_label = "tokens/s", .lines = {}};
  for (const BenchRow& row : rows) {
    const std::string name = fmt::format("batch {}, {} drafts", row.what.batch, row.what.n_spec_steps);
    auto line = std::find_if(plot.lines.begin(), plot.lines.end(), [&](const PlotLine& l) { return l.name == name; });
    if (line == plot.lines.end()) line = plot.lines.insert(line, PlotLine{.name = name, .points = {}});
    line->points.emplace_back(static_cast<double>(row.what.depth_tokens), row.decode_tokens_per_s);
  }
  const std::string svg = plot_svg(plot);
  return io::write_file_atomically(file, svg);
}

Status run_cases(Engine& engine, const BenchCommand& command, const std::vector<BenchCase>& all,
                 const BenchOptions& bench) {
  if (command.csv)
    fmt::print("depth,batch,spec_steps,prefill_tokens_per_s,decode_tokens_per_s,decode_step_ms,mean_accept_length\n");
  if (!command.csv && !command.json) print_table_head();
  std::vector<BenchRow> rows;
  for (const BenchCase& what : all) {
    LEVIN_ASSIGN(const BenchRow row, engine.bench(what, bench));
    rows.push_back(row);
    if (!command.json) print_row(row, command.csv);
  }
  if (command.json) {
    io::JsonArray list;
    for (const BenchRow& row : rows) list.push_back(row_json(row));
    fmt::print("{}\n", io::dump_json(list));
  }
  if (!command.plot_file.empty()) return write_plot(command.plot_file, rows);
  return {};
}

Status run_bench_command(EngineOptions options, const BenchCommand& command) {
  const BenchOptions bench{.chunk_tokens = options.chunk_tokens, .decode_tokens = command.decode_tokens};
  const std::vector<BenchCase> all = cases(command, options.n_spec_steps);
  for (const BenchCase& what : all)
    options.cache_tokens = std::max(options.cache_tokens, bench_cache_tokens(what, bench));
  LoadBar bar;
  LEVIN_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options, bar.progress()));
  bar.finish();
  for (const std::string& warning : engine->warnings()) fmt::print(stderr, "warning: {}\n", warning);
  if (!command.json && !command.csv) fmt::print(stderr, "{}\n\n", engine->describe());
  const int64_t deepest = *std::max_element(command.depths.begin(), command.depths.end());
  const int64_t longest = deepest + std::max(bench.chunk_tokens, bench.decode_tokens + 2);
  if (longest > engine->config().max_position) {
    return Error{ErrorKind::kUsage,
                 fmt::format("a depth of {} and what is measured there need {} tokens, the model has {} positions; "
                             "give smaller --depths",
                             deepest, longest, engine->config().max_position)};
  }
  return run_cases(*engine, command, all, bench);
}

}  // namespace

void add_bench(CommandLine& line) {
  Command& command = line.add({.name = "bench",
                               .purpose = "Prefill and decode speed by context depth, batch and speculation",
                               .examples = "  levin bench models/demo-v32 --depths 0,2048,8192 --spec-steps 3\n"
                                           "  levin bench CONFIG_FOLDER --load-format dummy --batch 1,8 --json\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kRequired);
  add_speculation_options(command, engine);
  const auto bench = std::make_shared<BenchCommand>();
  const auto add = [&](std::string names, std::string value, std::string purpose, std::string default_text,
                       Setter set) {
    command.option({.names = std::move(names),
                    .value = std::move(value),
                    .purpose = std::move(purpose),
                    .default_text = std::move(default_text),
                    .group = "Bench"},
                   std::move(set));
  };
  add("--depths", "LIST", "Context before what is measured, in tokens", "0,2048,16384",
      set_list(&bench->depths, {.min = 0}));
  add("--batch", "LIST", "Sequences decoded side by side", "1", set_list(&bench->batches, {.min = 1, .max = 1024}));
  add("--decode-tokens", "N", "Tokens decoded in every sequence", "64",
      set_int(&bench->decode_tokens, {.min = 1, .max = 1 << 20}));
  add("--json", "", "Print a JSON list of rows", "", set_flag(&bench->json));
  add("--csv", "", "Print comma-separated rows", "", set_flag(&bench->csv));
  add("--plot", "FILE.svg", "Draw decode speed over context depth", "", set_text(&bench->plot_file));
  command.check([bench](const Environment&) -> Status {
    if (bench->json && bench->csv)
      return Error{ErrorKind::kUsage, "--json and --csv both say how to print; leave one out"};
    return {};
  });
  command.action([engine, bench] { return run_bench_command(*engine, *bench); });
}

}  // namespace levin::app
