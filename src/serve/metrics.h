// What the server counts, and its text for Prometheus (exposition format 0.0.4).
//
// Every figure is written twice: under its own name `levin_...` and under the name `vllm:...` that dashboards, routers
// and load tools already read. Histogram edges are those of vLLM, so that old plots line up. The process's own figures
// have the names that Prometheus's client libraries give them (`process_...`).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_load.h"

namespace levin::serve {

class Histogram {
 public:
  explicit Histogram(std::span<const double> edges) : edges_(edges), counts_(edges.size() + 1) {}
  void observe(double value);

  std::span<const double> edges() const { return edges_; }
  std::span<const int64_t> counts() const { return counts_; }  // by bucket, the last without an upper edge
  double sum() const { return sum_; }

 private:
  std::span<const double> edges_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// Some of what was counted since the start.
struct MetricsTotals {
  EngineLoad load;  // as the engine was last
  int64_t n_prompt_tokens = 0;
  int64_t n_tokens = 0;
  int64_t n_drafts = 0;
  int64_t n_accepted_tokens = 0;
};

// All calls may come from any thread.
class Metrics {
 public:
  explicit Metrics(std::string model_name);

  void set_load(const EngineLoad& load);
  void add_prompt(int64_t n_tokens);
  void add_first_token(double seconds);  // since submission
  void add_gap(double seconds);          // between two batches of a request
  void add_tokens(int64_t n_tokens);     // of answers
  struct End {
    double seconds = 0;
    double seconds_per_token = 0;  // after the first
    int64_t n_prompt_tokens = 0;
  };
  void add_end(const End& end, const Generation& generation);  // of a request
  void add_refusal() { count(&Counts::n_refused); }            // answered with an error
  void add_parse_faults(int64_t n);                            // markup of tool calls that could not be read

  void add_step(const StepTimes& times);

  MetricsTotals totals() const;
  std::string text() const;

 private:
  struct Counts {
    int64_t n_prompt_tokens = 0;
    int64_t n_tokens = 0;
    int64_t n_drafts = 0;  // verify passes
    int64_t n_draft_tokens = 0;
    int64_t n_accepted_tokens = 0;
    int64_t n_refused = 0;
    int64_t n_parse_faults = 0;
    std::array<int64_t, 4> n_ended = {};  // by FinishReason
    std::vector<int64_t> accepted_per_position;
  };
  void count(int64_t Counts::* member, int64_t n = 1);

  const std::string model_name_;
  mutable std::mutex mutex_;
  EngineLoad load_;
  Counts counts_;
  Histogram first_token_s_, gap_s_, token_s_, request_s_, step_s_, host_gap_s_;
  Histogram queue_s_, prefill_s_, decode_s_, inference_s_;  // parts of request_s_
  Histogram prompt_tokens_, answer_tokens_;                 // of a request
};

// One request's times, on the engine's thread.
class RequestClock {
 public:
  void begin(int64_t n_prompt_tokens);
  void tokens(Metrics& metrics, int64_t n_tokens);
  void end(Metrics& metrics, const Generation& generation);

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun_, last_;
  int64_t n_prompt_tokens_ = 0;
  bool has_tokens_ = false;
};

}  // namespace levin::serve
