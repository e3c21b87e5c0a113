// levin bench: prefill and decode speed by context depth, batch and speculation.
#include "engine/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "apps/levin/machine_load.h"
#include "apps/levin/progress.h"
#include "apps/levin/standard_output.h"
#include "apps/report/percentile.h"
#include "apps/report/plot.h"
#include "arch/load_config.h"
#include "base/cpu.h"
#include "engine/engine.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "tensor/cuda/probe.h"

namespace levin::app {
namespace {

constexpr int64_t kDefaultDepths[] = {0, 2048, 16384};
constexpr int64_t kDefaultRepetitions = 5;
constexpr std::chrono::seconds kPatience{20};  // without --repetitions no further one of a case is begun after that

struct BenchCommand {
  std::vector<int64_t> depths;  // empty: kDefaultDepths that the model has positions for
  std::vector<int64_t> batches = {1};
  int64_t decode_tokens = 64;
  std::optional<int64_t> n_repetitions;
  bool json = false;
  bool csv = false;
  bool ops = false;
  bool adaptive = false;
  bool fill_context = false;
  double temperature = 0;
  int64_t verify_rows = 0;
  std::string plot_file;
};

// What the repetitions of a case gave. `row` is that of the median decode speed, with the median of each rate in it.
struct Repeated {
  BenchRow row;
  std::vector<double> prefill, decode;  // tokens/s of each repetition
  std::optional<double> busy_elsewhere;
};

struct Range {
  double low = 0, high = 0;
};
Range range_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {*low, *high};
}

// Half of what lies between the slowest and the fastest, in percent of the median.
double spread_percent(const std::vector<double>& values) {
  const Range range = range_of(values);
  const double median = percentile(values, 50);
  return median > 0 ? 50 * (range.high - range.low) / median : 0;
}

std::vector<BenchCase> cases(const BenchCommand& command, int n_spec_steps) {
  std::vector<BenchCase> out;
  for (const int64_t depth : command.depths) {
    for (const int64_t batch : command.batches) {
      out.push_back({.depth_tokens = depth, .batch = batch, .n_spec_steps = 0});
      if (n_spec_steps == 0) continue;
      out.push_back({.depth_tokens = depth, .batch = batch, .n_spec_steps = n_spec_steps});
      if (!command.adaptive) continue;
      out.push_back({.depth_tokens = depth, .batch = batch, .n_spec_steps = n_spec_steps, .adapt_depth = true});
    }
  }
  return out;
}

// The drafts of a round, for people.
std::string drafts_text(const BenchCase& what) {
  return fmt::format("{}{}", what.adapt_depth ? "<=" : "", what.n_spec_steps);
}

io::JsonObject ops_json(const OpTimes& times) {
  io::JsonObject out;
  for (size_t i = 0; i < kOpKinds; ++i) out.set(op_kind_name(static_cast<OpKind>(i)), times.seconds[i]);
  return out;
}

double gflop(const OpWork& work) { return 1e-9 * (work.f32_flop + work.bf16_flop); }

io::JsonObject work_json(const OpTimes& times) {
  io::JsonObject out;
  for (size_t i = 0; i < kOpKinds; ++i) {
    const OpWork& work = times.work[i];
    if (work.bytes == 0) continue;
    out.set(op_kind_name(static_cast<OpKind>(i)),
            io::JsonObject{{"gbytes", 1e-9 * work.bytes}, {"gflop", gflop(work)}});
  }
  return out;
}

// What the ops of a decode step read, and how long that takes at least; 0 where it is not known.
double decode_step_gbytes(const BenchRow& row) {
  double bytes = 0;
  for (const OpWork& work : row.decode_ops.work) bytes += work.bytes;
  return 1e-9 * bytes;
}
double decode_floor_s(const BenchRow& row) {
  return row.limits.read_gb_per_s > 0 ? decode_step_gbytes(row) / row.limits.read_gb_per_s : 0;
}

io::JsonObject limits_json(const MachineLimits& limits, Isa isa) {
  return {{"read_gbytes_per_s", limits.read_gb_per_s},
          {"f32_gflop_per_s", gflop_per_s(limits, isa, false)},
          {"bf16_gflop_per_s", gflop_per_s(limits, isa, true)}};
}

io::JsonArray list_json(const std::vector<double>& values) { return {values.begin(), values.end()}; }

io::JsonValue row_json(const Repeated& repeated, bool with_ops) {
  const BenchRow& row = repeated.row;
  io::JsonObject out = {{"depth", row.what.depth_tokens},
                        {"batch", row.what.batch},
                        {"spec_steps", row.what.n_spec_steps},
                        {"adaptive", row.what.adapt_depth},
                        {"prefill_tokens_per_s", row.prefill_tokens_per_s},
                        {"prompt_s", row.prompt_s},
                        {"decode_tokens_per_s", row.decode_tokens_per_s},
                        {"decode_step_ms", row.decode_step_ms},
                        {"mean_accept_length", row.mean_accept_length},
                        {"prefill_tokens_per_s_samples", list_json(repeated.prefill)},
                        {"decode_tokens_per_s_samples", list_json(repeated.decode)}};
  if (row.decode_step_waits > 0) {
    out.set("decode_step_waits", row.decode_step_waits);
    out.set("decode_gap_us", row.decode_gap_us);
  }
  if (repeated.busy_elsewhere) out.set("processors_busy_elsewhere", *repeated.busy_elsewhere);
  for (const VerifyPass& pass : row.verify) {
    out.set(fmt::format("pass_of_{}_ms", pass.n_rows), pass.ms);
    out.set(fmt::format("pass_of_{}_op_s", pass.n_rows), ops_json(pass.ops));
  }
  if (with_ops) {
    out.set("prefill_op_s", ops_json(row.prefill_ops));
    out.set("decode_step_op_s", ops_json(row.decode_ops));
    out.set("prefill_op_work", work_json(row.prefill_ops));
    out.set("decode_step_op_work", work_json(row.decode_ops));
    out.set("limits", limits_json(row.limits, row.isa));
    out.set("decode_step_floor_ms", 1000 * decode_floor_s(row));
  }
  return out;
}

constexpr char kCsvHead[] =
    "depth,batch,spec_steps,adaptive,prefill_tokens_per_s,decode_tokens_per_s,decode_step_ms,mean_accept_length,"
    "repetitions,"
    "prefill_min,prefill_max,decode_min,decode_max\n";

// On a device also how often a step waits for it, and how long it has nothing to do between steps.
void print_table_head(Device device) {
  fmt::print("{:>8} {:>6} {:>6} {:>14} {:>5} {:>14} {:>5} {:>12} {:>10} {:>5}{}\n", "depth", "batch", "drafts",
             "prefill tok/s", "+-%", "decode tok/s", "+-%", "step ms", "accept len", "runs",
             device == Device::kCuda ? " waits/step   gap us" : "");
}

void print_row(const Repeated& repeated) {
  const BenchRow& row = repeated.row;
  fmt::print(
      "{:>8} {:>6} {:>6} {:>14.1f} {:>5.1f} {:>14.1f} {:>5.1f} {:>12.3f} {:>10.2f} {:>5}{}\n", row.what.depth_tokens,
      row.what.batch, drafts_text(row.what), row.prefill_tokens_per_s, spread_percent(repeated.prefill),
      row.decode_tokens_per_s, spread_percent(repeated.decode), row.decode_step_ms, row.mean_accept_length,
      repeated.decode.size(),
      row.decode_step_waits > 0 ? fmt::format(" {:>10.2f} {:>8.1f}", row.decode_step_waits, row.decode_gap_us) : "");
}

void print_csv_row(const Repeated& repeated) {
  const BenchRow& row = repeated.row;
  const Range prefill = range_of(repeated.prefill), decode = range_of(repeated.decode);
  fmt::print("{},{},{},{:d},{:.2f},{:.2f},{:.4f},{:.3f},{},{:.2f},{:.2f},{:.2f},{:.2f}\n", row.what.depth_tokens,
             row.what.batch, row.what.n_spec_steps, row.what.adapt_depth, row.prefill_tokens_per_s,
             row.decode_tokens_per_s, row.decode_step_ms, row.mean_accept_length, repeated.decode.size(), prefill.low,
             prefill.high, decode.low, decode.high);
}

// Where the time goes: a row per kind of op that was used. Rates, and the time that the machine's limits allow as a share
// of the time taken, stand where an op reads weights or cache.
void print_op_table(const std::string& title, const OpTimes& ops, double seconds, const BenchRow& row) {
  const bool has_work = row.limits.read_gb_per_s > 0;
  const bool has_flop = row.limits.fma_gflop_per_s > 0;  // a device's ops do not say what they compute
  fmt::print("\n  {:<22} {:>10} {:>7}{}{}{}\n", title, "ms", "share", has_work ? fmt::format(" {:>9}", "GB/s") : "",
             has_flop ? fmt::format(" {:>9}", "GFLOP/s") : "", has_work ? fmt::format(" {:>9}", "of limit") : "");
  const auto print = [&](std::string_view name, double op_s) {
    fmt::print("  {:<22} {:>10.4f} {:>6.1f}%", name, 1000 * op_s, 100 * op_s / seconds);
  };
  for (size_t i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    const double op_s = ops.of(kind);
    const OpWork& work = ops.work_of(kind);
    if (op_s == 0) continue;
    print(op_kind_name(kind), op_s);
    if (has_work && work.bytes > 0) {
      fmt::print(" {:>9.1f}", 1e-9 * work.bytes / op_s);
      if (has_flop) fmt::print(" {:>9.1f}", gflop(work) / op_s);
      fmt::print(" {:>8.0f}%", 100 * seconds_at(row.limits, row.isa, work) / op_s);
    }
    fmt::print("\n");
  }
  print("between ops", seconds - ops.total());
  fmt::print("\n");
}

void print_ops(const BenchRow& row, const BenchOptions& options) {
  print_op_table(fmt::format("chunk of {}", options.chunk_tokens), row.prefill_ops, row.prefill_ops_s, row);
  print_op_table("decode step", row.decode_ops, row.decode_ops_step_s, row);
  if (row.limits.read_gb_per_s == 0) return;
  fmt::print(
      "  a step reads {:.3f} GB of weights and cache, which takes {:.3f} ms at the measured {:.1f} GB/s: the median "
      "step "
      "takes {:.2f} times that\n",
      decode_step_gbytes(row), 1000 * decode_floor_s(row), row.limits.read_gb_per_s,
      1e-3 * row.decode_step_ms / decode_floor_s(row));
  if (row.limits.fma_gflop_per_s == 0) return;
  fmt::print("  limits of these threads: {:.1f} GB/s read, {:.0f} GFLOP/s in f32, {:.0f} in bf16\n\n",
             row.limits.read_gb_per_s, gflop_per_s(row.limits, row.isa, false), gflop_per_s(row.limits, row.isa, true));
}

// What a pass of several rows costs compared with one of a single row, by kind of op: attention and index do their work
// every row, the rest mostly reads weights.
void print_verify(const BenchRow& row) {
  const VerifyPass &one = row.verify[0], &many = row.verify[1];
  const auto print = [](std::string_view name, double one_s, double many_s) {
    fmt::print("  {:<18} {:>12.4f} {:>14.4f} {:>8.2f}\n", name, 1000 * one_s, 1000 * many_s, many_s / one_s);
  };
  fmt::print("\n  {:<18} {:>12} {:>14} {:>8}\n", "op, median ms", "1 row", fmt::format("{} rows", many.n_rows),
             "ratio");
  double attention[2] = {};
  for (size_t i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (one.ops.of(kind) + many.ops.of(kind) == 0) continue;
    print(op_kind_name(kind), one.ops.of(kind), many.ops.of(kind));
    if (kind != OpKind::kIndexTopk && kind != OpKind::kSparseAttention) continue;
    attention[0] += one.ops.of(kind);
    attention[1] += many.ops.of(kind);
  }
  print("indexer, attention", attention[0], attention[1]);
  print("the rest", one.ms / 1000 - attention[0], many.ms / 1000 - attention[1]);
  print("pass", one.ms / 1000, many.ms / 1000);
  const double expected_ms = one.ms + 1000 * static_cast<double>(many.n_rows - 1) * attention[0];
  fmt::print("  the rest of one row and {} times its indexer and attention: {:.4f} ms, the pass takes {:.2f} of it\n\n",
             many.n_rows, expected_ms, many.ms / expected_ms);
}

// Median decode speed, with what lies between the slowest and the fastest repetition.
Plot decode_plot(const std::vector<Repeated>& all) {
  Plot plot{.title = "Decode speed", .x_label = "context, tokens", .y_label = "tokens/s", .lines = {}};
  for (const Repeated& each : all) {
    const BenchCase& what = each.row.what;
    const std::string name = fmt::format("batch {}, {} drafts", what.batch, drafts_text(what));
    auto line = std::find_if(plot.lines.begin(), plot.lines.end(), [&](const PlotLine& l) { return l.name == name; });
    if (line == plot.lines.end()) line = plot.lines.insert(line, PlotLine{.name = name, .points = {}, .ranges = {}});
    const Range range = range_of(each.decode);
    line->points.emplace_back(static_cast<double>(what.depth_tokens), each.row.decode_tokens_per_s);
    line->ranges.emplace_back(range.low, range.high);
  }
  return plot;
}

Status write_plot(const std::string& file, const EngineOptions& options, std::string_view kernel_set,
                  const std::vector<Repeated>& all) {
  const CpuInfo cpu = cpu_info();
  const Figure figure{
      .title = "Decode speed by context, median and range of repetitions",
      .subtitle = fmt::format("{} on {}, {} threads, {}, {}",
                              std::filesystem::weakly_canonical(options.model_folder).filename().string(),
                              cpu.model_name, options.n_threads, kernel_set, today()),
      .plots = {decode_plot(all)}};
  return io::write_file_atomically(file, figure_svg(figure));
}

Result<Repeated> run_case(Engine& engine, const BenchCommand& command, const BenchCase& what,
                          const BenchOptions& bench) {
  const auto begin = std::chrono::steady_clock::now();
  const MachineLoad load;
  const int64_t n = command.n_repetitions.value_or(kDefaultRepetitions);
  std::vector<BenchRow> rows;
  do {
    LEVIN_ASSIGN(const BenchRow row, engine.bench(what, bench));
    rows.push_back(row);
  } while (std::ssize(rows) < n && (command.n_repetitions || std::chrono::steady_clock::now() - begin < kPatience));
  Repeated out{.row = {}, .prefill = {}, .decode = {}, .busy_elsewhere = load.busy_elsewhere()};
  std::sort(rows.begin(), rows.end(),
            [](const BenchRow& a, const BenchRow& b) { return a.decode_tokens_per_s < b.decode_tokens_per_s; });
  out.row = rows[rows.size() / 2];
  for (const BenchRow& row : rows) {
    out.prefill.push_back(row.prefill_tokens_per_s);
    out.decode.push_back(row.decode_tokens_per_s);
  }
  out.row.prefill_tokens_per_s = percentile(out.prefill, 50);
  out.row.decode_tokens_per_s = percentile(out.decode, 50);
  return out;
}

void warn_of_load(const std::vector<Repeated>& all) {
  double busiest = 0;
  for (const Repeated& each : all) busiest = std::max(busiest, each.busy_elsewhere.value_or(0));
  const std::string warning = load_warning(busiest, static_cast<int>(std::thread::hardware_concurrency()));
  if (!warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
}

Status run_cases(Engine& engine, const EngineOptions& options, const BenchCommand& command,
                 const std::vector<BenchCase>& all, const BenchOptions& bench) {
  const bool table = !command.csv && !command.json;
  if (command.csv) fmt::print("{}", kCsvHead);
  if (table) print_table_head(options.device);
  std::vector<Repeated> rows;
  for (const BenchCase& what : all) {
    LEVIN_ASSIGN(const Repeated repeated, run_case(engine, command, what, bench));
    rows.push_back(repeated);
    if (command.csv) print_csv_row(repeated);
    if (table) print_row(repeated);
    if (table && command.ops) print_ops(repeated.row, bench);
    if (table && !repeated.row.verify.empty()) print_verify(repeated.row);
    LEVIN_TRY(flush_standard_output());
  }
  if (command.json) {
    io::JsonArray list;
    for (const Repeated& repeated : rows) list.push_back(row_json(repeated, command.ops));
    fmt::print("{}\n", io::dump_json(list));
  }
  warn_of_load(rows);
  if (!command.plot_file.empty()) return write_plot(command.plot_file, options, engine.kernel_set(), rows);
  return {};
}

int64_t tokens_at(int64_t depth, const BenchOptions& bench) {
  return depth + std::max(bench.chunk_tokens, bench.decode_tokens + 2);
}

// `n_asked` is --max-model-len, 0 without it.
Status choose_depths(BenchCommand& command, const BenchOptions& bench, int64_t n_positions, int64_t n_asked) {
  const bool asked_less = n_asked > 0 && n_asked < n_positions;
  const int64_t limit = asked_less ? n_asked : n_positions;
  if (command.depths.empty()) {
    std::copy_if(std::begin(kDefaultDepths), std::end(kDefaultDepths), std::back_inserter(command.depths),
                 [&](int64_t depth) { return depth == 0 || tokens_at(depth, bench) <= limit; });
  }
  const int64_t deepest = *std::max_element(command.depths.begin(), command.depths.end());
  if (tokens_at(deepest, bench) <= limit) return {};
  const std::string what =
      fmt::format("measuring at a depth of {} needs {} tokens", deepest, tokens_at(deepest, bench));
  if (asked_less) {
    return Error{ErrorKind::kUsage, fmt::format("{}, more than --max-model-len {}; give a larger one, or smaller "
                                                "--depths, --chunk or --decode-tokens",
                                                what, n_asked)};
  }
  return Error{ErrorKind::kUsage,
               fmt::format("{}, more than the model's {} positions; give smaller --depths, --chunk or --decode-tokens",
                           what, n_positions)};
}

// Without layers that draft, a row that says that it has drafts would have none.
void leave_out_drafts(const Engine& engine, std::vector<BenchCase>* all) {
  if (engine.can_draft()) return;
  const size_t n_left_out = std::erase_if(*all, [](const BenchCase& what) { return what.n_spec_steps > 0; });
  if (n_left_out > 0) fmt::print(stderr, "warning: the model has no layers that draft: measured without drafts only\n");
}

Status run_bench_command(EngineOptions options, BenchCommand command) {
  LEVIN_ASSIGN(const ParsedConfig parsed,
               load_model_config(options.model_folder, *options.registry, options.overrides));
  const BenchOptions bench{.chunk_tokens = options.chunk_tokens,
                           .decode_tokens = command.decode_tokens,
                           .measure_ops = command.ops,
                           .verify_rows = command.verify_rows,
                           .min_confidence = options.min_confidence,
                           .overlap = options.overlap,
                           .temperature = command.temperature,
                           .fill_context = command.fill_context};
  LEVIN_TRY(choose_depths(command, bench, parsed.config.max_position, options.max_model_len_tokens));
  std::vector<BenchCase> all = cases(command, options.n_spec_steps);
  for (const BenchCase& what : all) {
    options.cache_tokens = std::max(options.cache_tokens, bench_cache_tokens(what, bench));
    options.max_running = std::max(options.max_running, what.batch);
  }
  options.graphs_at_load = true;
  LoadBar bar;
  LEVIN_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options, bar.progress()));
  bar.finish();
  for (const std::string& warning : engine->warnings()) fmt::print(stderr, "warning: {}\n", warning);
  leave_out_drafts(*engine, &all);
  if (!command.json && !command.csv) fmt::print(stderr, "{}\n\n", engine->describe());
  return run_cases(*engine, options, command, all, bench);
}

}  // namespace

void add_bench(CommandLine& line) {
  Command& command =
      line.add({.name = "bench",
                .purpose = "Measure prefill and decode speed by context depth, batch size and speculation",
                .examples = "  levin bench models/demo-v32 --depths 0,2048,8192 --spec-steps 3\n"
                            "  levin bench CONFIG_FOLDER --load-format dummy --batch 1,8 --json\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kRequired);
  add_speculation_options(command, engine);
  const auto bench = std::make_shared<BenchCommand>();
  const OptionGroup add(command, "Bench");
  add("--depths", "LIST", "Context lengths at which to measure, in tokens",
      "0,2048,16384, as far as the model and --max-model-len allow", set_tokens(&bench->depths, {.min = 0}));
  add("--batch", "LIST", "Numbers of sequences decoded together", "1",
      set_tokens(&bench->batches, {.min = 1, .max = 1024}));
  add("--decode-tokens", "N", "Tokens decoded per sequence", "64",
      set_int(&bench->decode_tokens, {.min = 1, .max = 1 << 20}));
  add("--adaptive", "",
      "With speculation on, also measure an adaptive number of drafts, which --spec auto gives requests", "",
      set_flag(&bench->adaptive));
  add("--fill-context", "",
      "Fill contexts with copies of a few blocks of a computed prompt, in memory of each sequence's own, instead of "
      "computing "
      "them: deep contexts then take hardly any time",
      "", set_flag(&bench->fill_context));
  add("--temperature", "T", "Of the decoded tokens. Higher ones make more drafts right, whatever the weights", "0",
      set_number(&bench->temperature, {.min = 0, .max = 100}));
  add("--repetitions", "N", "Runs of each case; the table shows their median and spread", "5, fewer for slow cases",
      set_int(&bench->n_repetitions, {.min = 1, .max = 10000}));
  add("--ops", "",
      "Also print the time by kind of op, the share of the machine's limits that each reaches, and the least time of a "
      "step",
      "", set_flag(&bench->ops));
  add("--verify", "ROWS", "Also compare a verification pass of ROWS rows of one sequence with a pass of one row", "",
      set_int(&bench->verify_rows, {.min = 2, .max = 64}));
  add("--json", "", "Print a JSON list of rows", "", set_flag(&bench->json));
  add("--csv", "", "Print comma-separated rows", "", set_flag(&bench->csv));
  add("--plot", "FILE.svg", "Draw a chart of decode speed over context depth", "", set_text(&bench->plot_file));
  command.check([bench](const Environment&) -> Status {
    if (bench->json && bench->csv) return Error{ErrorKind::kUsage, "--json and --csv exclude each other; omit one"};
    return bench->plot_file.empty() ? Status() : io::check_writable(bench->plot_file);
  });
  command.action([engine, bench] { return run_bench_command(*engine, *bench); });
}

}  // namespace levin::app
