// What a load level came to: the statistics that load tools agree on, as text, JSON and a picture.
//
//   TTFT   from sending a request to the first piece of its answer
//   ITL    between two pieces of an answer; a piece has several tokens where the server speculates
//   TPOT   of a request: time from first to last piece over the tokens after the first
//   E2E    from sending a request to the last piece
// Times are of requests that succeeded, in milliseconds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/load/load_run.h"
#include "io/json.h"

namespace levin::app {

struct Spread {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Spread spread_of(const std::vector<double>& values);

struct LevelReport {
  LoadLevel level;
  double seconds = 0;
  int64_t n_ok = 0, n_failed = 0;
  int64_t n_prompt = 0, n_found = 0, n_answer = 0;  // tokens
  std::vector<double> ttft_ms, itl_ms, tpot_ms, e2e_ms;
  SpeculationCount speculation;
  std::vector<std::string> errors;  // each once, the first few
  std::vector<double> throughput;   // answer tokens/s of each repetition of the level

  void add(const LevelReport& repetition);
  double answer_tokens_per_s() const { return seconds > 0 ? static_cast<double>(n_answer) / seconds : 0; }
  double mean_accept_length() const {  // 0: the server does not speculate, or does not say
    return speculation.n_passes > 0 ? 1 + speculation.n_accepted / speculation.n_passes : 0;
  }
};
LevelReport report_of(const LevelResult& result);

std::string report_text(const LevelReport& report);  // without a success: what failed, and no statistics of nothing
io::JsonValue report_json(const LevelReport& report);
// Levels with a success, `subtitle` under the title. One level: times over the percentile; several: p50 and p99, and the
// throughput, over the level. TTFT and E2E have a plot of their own: TPOT and ITL are smaller by orders of magnitude.
std::string report_svg(std::span<const LevelReport> reports, const std::string& subtitle);

}  // namespace levin::app
