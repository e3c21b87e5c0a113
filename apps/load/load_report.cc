#include "apps/load/load_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "apps/report/percentile.h"
#include "apps/report/plot.h"

namespace levin::app {
namespace {

constexpr size_t kMaxErrors = 5;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string level_text(const LoadLevel& level) {
  return level.rate > 0 ? fmt::format("{:g} requests/s", level.rate) : fmt::format("{} at a time", level.concurrency);
}

io::JsonObject spread_json(const std::vector<double>& values) {
  const Spread s = spread_of(values);
  return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p95", s.p95}, {"p99", s.p99}, {"max", s.max}};
}

struct Kind {
  const char* name;
  std::vector<double> LevelReport::* values;
};
constexpr Kind kKinds[] = {{"TTFT", &LevelReport::ttft_ms},
                           {"TPOT", &LevelReport::tpot_ms},
                           {"ITL", &LevelReport::itl_ms},
                           {"E2E", &LevelReport::e2e_ms}};

void append(const std::vector<double>& values, std::vector<double>* to) {
  to->insert(to->end(), values.begin(), values.end());
}

void add_error(const std::string& error, std::vector<std::string>* errors) {
  const bool known = std::find(errors->begin(), errors->end(), error) != errors->end();
  if (!known && errors->size() < kMaxErrors) errors->push_back(error);
}

// Of the repetitions of a level; nothing for one.
std::string repetitions_text(const std::vector<double>& throughput) {
  if (throughput.size() < 2) return "";
  const auto [low, high] = std::minmax_element(throughput.begin(), throughput.end());
  const double median = percentile(throughput, 50);
  return fmt::format("{} repetitions: median {:.1f} answer tokens/s, +- {:.1f}%\n", throughput.size(), median,
                     50 * ratio(*high - *low, median));
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.mean = sum / static_cast<double>(values.size()),
          .p50 = percentile(values, 50),
          .p90 = percentile(values, 90),
          .p95 = percentile(values, 95),
          .p99 = percentile(values, 99),
          .max = percentile(values, 100)};
}

LevelReport report_of(const LevelResult& result) {
  LevelReport out{.level = result.level, .seconds = result.seconds, .speculation = result.speculation};
  for (const RequestRecord& r : result.requests) {
    if (!r.ok()) {
      ++out.n_failed;
      add_error(r.error, &out.errors);
      continue;
    }
    ++out.n_ok;
    out.n_prompt += r.n_prompt;
    out.n_found += r.n_found;
    out.n_answer += r.n_answer;
    out.ttft_ms.push_back(1000 * (r.first_s - r.begun_s));
    out.e2e_ms.push_back(1000 * (r.ended_s - r.begun_s));
    for (const double gap : r.gaps_s) out.itl_ms.push_back(1000 * gap);
    if (r.n_answer > 1) out.tpot_ms.push_back(1000 * (r.ended_s - r.first_s) / static_cast<double>(r.n_answer - 1));
  }
  out.throughput = {out.answer_tokens_per_s()};
  return out;
}

void LevelReport::add(const LevelReport& other) {
  seconds += other.seconds;
  n_ok += other.n_ok, n_failed += other.n_failed;
  n_prompt += other.n_prompt, n_found += other.n_found, n_answer += other.n_answer;
  for (const Kind& kind : kKinds) append(other.*kind.values, &(this->*kind.values));
  append(other.throughput, &throughput);
  speculation.n_passes += other.speculation.n_passes;
  speculation.n_drafted += other.speculation.n_drafted;
  speculation.n_accepted += other.speculation.n_accepted;
  std::vector<double>& accepted = speculation.accepted_per_position;
  const std::vector<double>& more = other.speculation.accepted_per_position;
  accepted.resize(std::max(accepted.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) accepted[i] += more[i];
  for (const std::string& error : other.errors) add_error(error, &errors);
}

std::string report_text(const LevelReport& r) {
  std::string failures;
  for (const std::string& error : r.errors) failures += fmt::format("failed: {}\n", error);
  if (r.n_ok == 0) {
    return fmt::format("{}: {} requests in {:.2f} s, all failed\n{}", level_text(r.level), r.n_failed, r.seconds,
                       failures);
  }
  std::string out = fmt::format(
      "{}: {} requests in {:.2f} s, {} failed\n"
      "{:.2f} requests/s, {:.1f} answer tokens/s, {:.1f} prompt tokens/s ({:.0f}% of them from the cache)\n",
      level_text(r.level), r.n_ok + r.n_failed, r.seconds, r.n_failed, ratio(static_cast<double>(r.n_ok), r.seconds),
      r.answer_tokens_per_s(), ratio(static_cast<double>(r.n_prompt), r.seconds),
      100 * ratio(static_cast<double>(r.n_found), static_cast<double>(r.n_prompt)));
  out += repetitions_text(r.throughput);
  if (r.mean_accept_length() > 0) {
    out += fmt::format("acceptance {:.1f}% of drafts, mean acceptance length {:.2f}\n",
                       100 * ratio(r.speculation.n_accepted, r.speculation.n_drafted), r.mean_accept_length());
  }
  out += fmt::format("{:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50", "p90", "p95", "p99",
                     "max");
  for (const Kind& kind : kKinds) {
    const Spread s = spread_of(r.*kind.values);
    out += fmt::format("{:>10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", kind.name, s.mean, s.p50,
                       s.p90, s.p95, s.p99, s.max);
  }
  return out + failures;
}

io::JsonValue report_json(const LevelReport& r) {
  io::JsonArray per_position;
  for (const double n : r.speculation.accepted_per_position) per_position.emplace_back(n);
  io::JsonArray errors;
  for (const std::string& error : r.errors) errors.emplace_back(error);
  return io::JsonObject{{"rate", r.level.rate},
                        {"concurrency", r.level.rate > 0 ? io::JsonValue() : io::JsonValue(r.level.concurrency)},
                        {"seconds", r.seconds},
                        {"ok", r.n_ok},
                        {"failed", r.n_failed},
                        {"requests_per_s", ratio(static_cast<double>(r.n_ok), r.seconds)},
                        {"prompt_tokens", r.n_prompt},
                        {"cached_tokens", r.n_found},
                        {"answer_tokens", r.n_answer},
                        {"answer_tokens_per_s", r.answer_tokens_per_s()},
                        {"answer_tokens_per_s_samples", io::JsonArray(r.throughput.begin(), r.throughput.end())},
                        {"ttft_ms", spread_json(r.ttft_ms)},
                        {"tpot_ms", spread_json(r.tpot_ms)},
                        {"itl_ms", spread_json(r.itl_ms)},
                        {"e2e_ms", spread_json(r.e2e_ms)},
                        {"drafted", r.speculation.n_drafted},
                        {"accepted", r.speculation.n_accepted},
                        {"accepted_per_position", std::move(per_position)},
                        {"mean_accept_length", r.mean_accept_length()},
                        {"errors", std::move(errors)}};
}

namespace {

double place_of(const LoadLevel& level) { return level.rate > 0 ? level.rate : static_cast<double>(level.concurrency); }

PlotLine over_percentiles(const LevelReport& report, const Kind& kind) {
  PlotLine line{.name = kind.name, .points = {}, .ranges = {}};
  for (int percent = 0; percent <= 100; percent += 5)
    line.points.emplace_back(percent, percentile(report.*kind.values, percent));
  return line;
}

PlotLine over_levels(std::span<const LevelReport> reports, const Kind& kind, int percent) {
  PlotLine line{.name = fmt::format("{} p{}", kind.name, percent), .points = {}, .ranges = {}};
  for (const LevelReport& r : reports) {
    if (r.n_ok > 0) line.points.emplace_back(place_of(r.level), percentile(r.*kind.values, percent));
  }
  return line;
}

Plot throughput(std::span<const LevelReport> reports) {
  Plot plot{.title = "Throughput", .x_label = {}, .y_label = "answer tokens/s", .lines = {}};
  PlotLine& line = plot.lines.emplace_back(PlotLine{.name = "answer tokens/s", .points = {}, .ranges = {}});
  for (const LevelReport& r : reports) {
    const auto [low, high] = std::minmax_element(r.throughput.begin(), r.throughput.end());
    line.points.emplace_back(place_of(r.level), percentile(r.throughput, 50));
    line.ranges.emplace_back(*low, *high);
  }
  return plot;
}

bool is_long(const Kind& kind) { return kind.values == &LevelReport::ttft_ms || kind.values == &LevelReport::e2e_ms; }

}  // namespace

std::string report_svg(std::span<const LevelReport> reports, const std::string& subtitle) {
  Figure figure{.title = "Latency under load", .subtitle = subtitle, .plots = {}};
  Plot whole{.title = "TTFT and E2E", .x_label = "percentile of requests", .y_label = "ms", .lines = {}};
  Plot token{.title = "TPOT and ITL", .x_label = "percentile", .y_label = "ms", .lines = {}};
  for (const Kind& kind : kKinds) {
    Plot& plot = is_long(kind) ? whole : token;
    if (reports.size() == 1) {
      plot.lines.push_back(over_percentiles(reports[0], kind));
    } else {
      for (const int percent : {50, 99}) plot.lines.push_back(over_levels(reports, kind, percent));
    }
  }
  figure.plots = {std::move(whole), std::move(token)};
  if (reports.size() > 1) {
    figure.title = "Latency and throughput under load";
    figure.plots.push_back(throughput(reports));
    const char* label = reports[0].level.rate > 0 ? "requests/s" : "concurrent requests";
    for (Plot& plot : figure.plots) plot.x_label = label;
  }
  return figure_svg(figure);
}

}  // namespace levin::app
