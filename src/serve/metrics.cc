#include "serve/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "serve/process_figures.h"

namespace levin::serve {
namespace {

constexpr double kFirstTokenEdges[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                       1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kGapEdges[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
// Of steps, and of what the host needs between them; these are our own.
constexpr double kStepEdges[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
constexpr double kHostGapEdges[] = {5e-6,   10e-6,  15e-6,  20e-6,  30e-6,  40e-6, 50e-6, 60e-6, 80e-6, 100e-6, 125e-6,
                                    150e-6, 200e-6, 300e-6, 500e-6, 750e-6, 1e-3,  2e-3,  5e-3,  10e-3, 50e-3};
constexpr double kRequestEdges[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

constexpr double kTokenEdges[] = {1,    2,    5,     10,    20,    50,     100,    200,    500, 1000,
                                  2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1e6};

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Writes each figure under both of its names.
class Page {
 public:
  explicit Page(const std::string& model_name)
      : labels_(fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model_name))) {}

  // Empty vllm_name: it has none there.
  void figure(std::string_view name, std::string_view vllm_name, std::string_view type, std::string_view help,
              double value, std::string_view more_labels = "") {
    for (const std::string& full : {fmt::format("levin_{}", name), fmt::format("vllm:{}", vllm_name)}) {
      if (full.ends_with(':')) continue;
      head(full, type, help);
      line(full, more_labels, value);
    }
  }
  template <class Values>
  void labelled(std::string_view name, std::string_view vllm_name, std::string_view label, std::string_view help,
                const Values& values) {
    for (const std::string& full : {fmt::format("levin_{}", name), fmt::format("vllm:{}", vllm_name)}) {
      head(full, "counter", help);
      for (const auto& [key, value] : values)
        line(full, fmt::format("{}=\"{}\"", label, key), static_cast<double>(value));
    }
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& h, bool has_vllm_name = true) {
    for (const std::string& full : {fmt::format("levin_{}", name), fmt::format("vllm:{}", name)}) {
      if (!has_vllm_name && full.starts_with("vllm:")) continue;
      head(full, "histogram", help);
      int64_t n = 0;
      for (size_t i = 0; i < h.counts().size(); ++i) {
        n += h.counts()[i];
        const std::string edge = i < h.edges().size() ? fmt::format("{}", h.edges()[i]) : "+Inf";
        line(full + "_bucket", fmt::format("le=\"{}\"", edge), static_cast<double>(n));
      }
      line(full + "_sum", "", h.sum());
      line(full + "_count", "", static_cast<double>(n));
    }
  }
  // Of the process: by the one name that everybody gives it, without labels.
  void process(std::string_view name, std::string_view type, std::string_view help, double value) {
    head(name, type, help);
    fmt::format_to(std::back_inserter(text_), "{} {}\n", name, value);
  }
  std::string take() { return std::move(text_); }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '\\' || c == '"') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out;
  }
  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void line(std::string_view name, std::string_view more_labels, double value) {
    fmt::format_to(std::back_inserter(text_), "{}{{{}{}{}}} {}\n", name, labels_, more_labels.empty() ? "" : ",",
                   more_labels, value);
  }

  std::string labels_;
  std::string text_;
};

double as_double(int64_t n) { return static_cast<double>(n); }

void add_load(Page& page, const EngineLoad& load) {
  const int64_t n_used = load.n_pages - load.n_free_pages - load.n_cached_pages;
  page.figure("requests_running", "num_requests_running", "gauge", "Running requests", as_double(load.n_running));
  page.figure("requests_waiting", "num_requests_waiting", "gauge", "Waiting requests", as_double(load.n_waiting));
  page.figure("cache_usage", "kv_cache_usage_perc", "gauge", "Share of cache pages in use, 0 to 1",
              load.n_pages > 0 ? as_double(n_used) / as_double(load.n_pages) : 0);
  page.figure("cache_kept", "", "gauge", "Share of cache pages that only the prefix cache uses, 0 to 1",
              load.n_pages > 0 ? as_double(load.n_cached_pages) / as_double(load.n_pages) : 0);
  page.figure("cache_pages", "", "gauge", "Cache pages", as_double(load.n_pages));
  page.figure("sent_back_total", "num_preemptions_total", "counter", "Preempted requests", as_double(load.n_preempted));
  page.figure("prefix_queried_tokens_total", "prefix_cache_queries_total", "counter",
              "Tokens looked up in the prefix cache", as_double(load.n_queried_tokens));
  page.figure("prefix_found_tokens_total", "prefix_cache_hits_total", "counter", "Prefix-cache hits, in tokens",
              as_double(load.n_hit_tokens));
  page.figure("prefix_restored_tokens_total", "", "counter", "Tokens restored from disk, not computed",
              as_double(load.n_restored_tokens));
  page.figure("prefix_memory_bytes", "", "gauge", "Host memory of the prefix cache", as_double(load.n_memory_bytes));
  page.figure("prefix_memory_pages", "", "gauge", "Prefix-cache blocks in host memory", as_double(load.n_memory_pages));
  page.figure("late_graphs_total", "", "counter", "CUDA graphs recorded after the start",
              as_double(load.n_late_graphs));
  page.figure("disk_cache_bytes", "", "gauge", "Size of the files in the cache folder", as_double(load.store.n_bytes));
  page.figure("disk_cache_pages", "", "gauge", "Cache pages of this model on disk", as_double(load.store.n_pages));
  page.figure("disk_cache_written_pages_total", "", "counter", "Pages stored", as_double(load.store.n_written));
  page.figure("disk_cache_removed_pages_total", "", "counter", "Pages removed to stay within the budget",
              as_double(load.store.n_removed));
  page.figure("disk_cache_refused_pages_total", "", "counter", "Damaged pages found on disk",
              as_double(load.store.n_refused));
  page.figure("disk_cache_dropped_pages_total", "", "counter", "Pages not stored because the disk is too slow",
              as_double(load.store.n_dropped));
}

void add_process(Page& page) {
  const ProcessFigures process = ProcessFigures::now();
  page.process("process_cpu_seconds_total", "counter", "User and system CPU time", process.cpu_s);
  page.process("process_resident_memory_bytes", "gauge", "Memory in use", as_double(process.n_resident_bytes));
  page.process("process_virtual_memory_bytes", "gauge", "Address space in use", as_double(process.n_virtual_bytes));
  page.process("process_open_fds", "gauge", "Open file descriptors", as_double(process.n_open_fds));
  page.process("process_max_fds", "gauge", "Maximum number of open file descriptors", as_double(process.n_max_fds));
  page.process("process_start_time_seconds", "gauge", "Unix time at which the process started", process.start_s);
}

}  // namespace

void Histogram::observe(double value) {
  ++counts_[std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin()];
  sum_ += value;
}

Metrics::Metrics(std::string model_name)
    : model_name_(std::move(model_name)),
      first_token_s_(kFirstTokenEdges),
      gap_s_(kGapEdges),
      token_s_(kGapEdges),
      request_s_(kRequestEdges),
      step_s_(kStepEdges),
      host_gap_s_(kHostGapEdges),
      queue_s_(kRequestEdges),
      prefill_s_(kRequestEdges),
      decode_s_(kRequestEdges),
      inference_s_(kRequestEdges),
      prompt_tokens_(kTokenEdges),
      answer_tokens_(kTokenEdges) {}

void Metrics::set_load(const EngineLoad& load) {
  const std::lock_guard lock(mutex_);
  load_ = load;
}

void Metrics::count(int64_t Counts::* member, int64_t n) {
  const std::lock_guard lock(mutex_);
  counts_.*member += n;
}

void Metrics::add_prompt(int64_t n_tokens) { count(&Counts::n_prompt_tokens, n_tokens); }
void Metrics::add_tokens(int64_t n_tokens) { count(&Counts::n_tokens, n_tokens); }
void Metrics::add_parse_faults(int64_t n) { count(&Counts::n_parse_faults, n); }

void Metrics::add_step(const StepTimes& times) {
  const std::lock_guard lock(mutex_);
  step_s_.observe(times.step_s);
  if (times.host_gap_s) host_gap_s_.observe(*times.host_gap_s);
}

MetricsTotals Metrics::totals() const {
  const std::lock_guard lock(mutex_);
  return {.load = load_,
          .n_prompt_tokens = counts_.n_prompt_tokens,
          .n_tokens = counts_.n_tokens,
          .n_drafts = counts_.n_drafts,
          .n_accepted_tokens = counts_.n_accepted_tokens};
}

void Metrics::add_first_token(double s) {
  const std::lock_guard lock(mutex_);
  first_token_s_.observe(s);
}

void Metrics::add_gap(double s) {
  const std::lock_guard lock(mutex_);
  gap_s_.observe(s);
}

void Metrics::add_end(const End& end, const Generation& generation) {
  const SpeculationStats& spec = generation.speculation;
  const std::lock_guard lock(mutex_);
  request_s_.observe(end.seconds);
  prompt_tokens_.observe(static_cast<double>(end.n_prompt_tokens));
  answer_tokens_.observe(static_cast<double>(generation.tokens.size()));
  if (generation.queue_s) queue_s_.observe(*generation.queue_s);
  if (!generation.tokens.empty()) {
    const double prefill_s = generation.prefill_s - generation.queue_s.value_or(0);
    prefill_s_.observe(prefill_s);
    decode_s_.observe(generation.decode_s);
    inference_s_.observe(prefill_s + generation.decode_s);
  }
  if (generation.tokens.size() > 1) token_s_.observe(end.seconds_per_token);
  ++counts_.n_ended[static_cast<size_t>(generation.finish_reason)];
  counts_.n_drafts += spec.n_verify_passes;
  counts_.n_draft_tokens += spec.n_drafted;
  counts_.n_accepted_tokens += spec.n_accepted;
  auto& per_position = counts_.accepted_per_position;
  per_position.resize(std::max(per_position.size(), spec.accepted_per_position.size()));
  for (size_t i = 0; i < spec.accepted_per_position.size(); ++i) per_position[i] += spec.accepted_per_position[i];
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  Page page(model_name_);
  add_load(page, load_);
  page.figure("prompt_tokens_total", "prompt_tokens_total", "counter", "Prompt tokens received",
              as_double(counts_.n_prompt_tokens));
  page.figure("generation_tokens_total", "generation_tokens_total", "counter", "Generated tokens",
              as_double(counts_.n_tokens));
  page.figure("refused_total", "", "counter", "Requests answered with an error", as_double(counts_.n_refused));
  page.figure("tool_parse_failures_total", "", "counter", "Tool-call parse errors", as_double(counts_.n_parse_faults));
  std::vector<std::pair<std::string_view, int64_t>> ended;
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled, FinishReason::kError}) {
    ended.emplace_back(finish_reason_name(reason), counts_.n_ended[static_cast<size_t>(reason)]);
  }
  page.labelled("ended_total", "request_success_total", "finished_reason", "Completed requests", ended);
  page.figure("verify_passes_total", "spec_decode_num_drafts_total", "counter", "Verification passes",
              as_double(counts_.n_drafts));
  page.figure("drafted_tokens_total", "spec_decode_num_draft_tokens_total", "counter", "Tokens drafted",
              as_double(counts_.n_draft_tokens));
  page.figure("accepted_tokens_total", "spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens accepted",
              as_double(counts_.n_accepted_tokens));
  std::vector<std::pair<size_t, int64_t>> per_position;
  for (const int64_t n : counts_.accepted_per_position) per_position.emplace_back(per_position.size(), n);
  page.labelled("accepted_tokens_per_position_total", "spec_decode_num_accepted_tokens_per_pos_total", "position",
                "Drafted tokens accepted, by position", per_position);
  page.histogram("time_to_first_token_seconds", "From submission to the first token", first_token_s_);
  page.histogram("inter_token_latency_seconds", "Between two batches of tokens of a request", gap_s_);
  page.histogram("request_time_per_output_token_seconds", "A request's time per token after the first", token_s_);
  page.histogram("e2e_request_latency_seconds", "From submission to the last token", request_s_);
  page.histogram("request_queue_time_seconds", "From submission to the first step with the request", queue_s_);
  page.histogram("request_prefill_time_seconds", "From there to the first token", prefill_s_);
  page.histogram("request_decode_time_seconds", "From the first token to the last", decode_s_);
  page.histogram("request_inference_time_seconds", "From the first step to the last token", inference_s_);
  page.histogram("request_prompt_tokens", "Prompt tokens of a request", prompt_tokens_);
  page.histogram("request_generation_tokens", "Tokens of a request's answer", answer_tokens_);
  page.histogram("step_seconds", "One step of the engine, for all requests in it", step_s_, false);
  page.histogram("host_gap_seconds", "Between the model's last result in a step and its first call in the next",
                 host_gap_s_, false);
  add_process(page);
  return page.take();
}

void RequestClock::begin(int64_t n_prompt_tokens) {
  begun_ = last_ = Clock::now();
  n_prompt_tokens_ = n_prompt_tokens;
}

void RequestClock::tokens(Metrics& metrics, int64_t n_tokens) {
  if (n_tokens == 0) return;
  const Clock::time_point now = Clock::now();
  if (has_tokens_) {
    metrics.add_gap(seconds(now - last_));
  } else {
    metrics.add_first_token(seconds(now - begun_));
    metrics.add_prompt(n_prompt_tokens_);
  }
  metrics.add_tokens(n_tokens);
  has_tokens_ = true;
  last_ = now;
}

void RequestClock::end(Metrics& metrics, const Generation& generation) {
  const int64_t n_after_first = std::max<int64_t>(1, std::ssize(generation.tokens) - 1);
  metrics.add_end({.seconds = seconds(Clock::now() - begun_),
                   .seconds_per_token = generation.decode_s / static_cast<double>(n_after_first),
                   .n_prompt_tokens = n_prompt_tokens_},
                  generation);
}

}  // namespace levin::serve
