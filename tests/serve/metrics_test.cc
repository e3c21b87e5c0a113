// The text of /metrics: every figure stands under its names with its own value, so that no two can be exchanged unnoticed.
#include "serve/metrics.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin::serve {
namespace {

constexpr const char* kLabels = R"(model_name="a \"b\" \\c",engine="0")";

void expect_line(const std::string& page, const std::string& line) {
  EXPECT_NE(("\n" + page).find("\n" + line + "\n"), std::string::npos) << line << " is not in\n" << page;
}

// Names after `levin_` and after `vllm:`, which may be empty, and the value of both.
struct Figure {
  const char* name;
  const char* vllm_name;
  const char* value;
};
void expect_figures(const std::string& page, const std::vector<Figure>& figures) {
  for (const Figure& f : figures) {
    expect_line(page, fmt::format("levin_{}{{{}}} {}", f.name, kLabels, f.value));
    if (*f.vllm_name != '\0') expect_line(page, fmt::format("vllm:{}{{{}}} {}", f.vllm_name, kLabels, f.value));
  }
}

Metrics metrics() { return Metrics(R"(a "b" \c)"); }

TEST(MetricsTest, TheLoadIsThatOfTheEngine) {
  EngineLoad load;
  load.n_waiting = 1;
  load.n_running = 2;
  load.n_pages = 64;
  load.n_free_pages = 24;
  load.n_cached_pages = 8;
  load.n_preempted = 3;
  load.n_queried_tokens = 4;
  load.n_hit_tokens = 5;
  load.n_restored_tokens = 6;
  load.n_memory_pages = 7;
  load.n_memory_bytes = 8;
  load.n_late_graphs = 9;
  load.store = {.n_pages = 10, .n_bytes = 11, .n_written = 12, .n_removed = 13, .n_refused = 14, .n_dropped = 15};
  Metrics m = metrics();
  m.set_load(load);
  expect_figures(m.text(), {{"requests_waiting", "num_requests_waiting", "1"},
                            {"requests_running", "num_requests_running", "2"},
                            {"cache_usage", "kv_cache_usage_perc", "0.5"},  // without unused prefixes
                            {"cache_kept", "", "0.125"},
                            {"cache_pages", "", "64"},
                            {"sent_back_total", "num_preemptions_total", "3"},
                            {"prefix_queried_tokens_total", "prefix_cache_queries_total", "4"},
                            {"prefix_found_tokens_total", "prefix_cache_hits_total", "5"},
                            {"prefix_restored_tokens_total", "", "6"},
                            {"prefix_memory_pages", "", "7"},
                            {"prefix_memory_bytes", "", "8"},
                            {"late_graphs_total", "", "9"},
                            {"disk_cache_pages", "", "10"},
                            {"disk_cache_bytes", "", "11"},
                            {"disk_cache_written_pages_total", "", "12"},
                            {"disk_cache_removed_pages_total", "", "13"},
                            {"disk_cache_refused_pages_total", "", "14"},
                            {"disk_cache_dropped_pages_total", "", "15"}});
}

TEST(MetricsTest, RequestsAreCountedWhenTheyEnd) {
  Metrics m = metrics();
  m.add_prompt(40);
  m.add_tokens(30);
  m.add_refusal();
  m.add_parse_faults(2);
  Generation done{.finish_reason = FinishReason::kStop, .queue_s = 0.5, .prefill_s = 2.5, .decode_s = 4};
  done.tokens.resize(3);
  done.speculation = {.n_verify_passes = 20, .n_drafted = 19, .n_accepted = 18, .accepted_per_position = {11, 7}};
  m.add_end({.seconds = 7, .seconds_per_token = 0.25, .n_prompt_tokens = 40}, done);
  m.add_end({.seconds = 1, .n_prompt_tokens = 2}, {.finish_reason = FinishReason::kError});  // it was in no step
  const std::string page = m.text();
  expect_figures(page,
                 {{"prompt_tokens_total", "prompt_tokens_total", "40"},
                  {"generation_tokens_total", "generation_tokens_total", "30"},
                  {"refused_total", "", "1"},
                  {"tool_parse_failures_total", "", "2"},
                  {"verify_passes_total", "spec_decode_num_drafts_total", "20"},
                  {"drafted_tokens_total", "spec_decode_num_draft_tokens_total", "19"},
                  {"accepted_tokens_total", "spec_decode_num_accepted_tokens_total", "18"},
                  {"request_prompt_tokens_sum", "request_prompt_tokens_sum", "42"},
                  {"request_generation_tokens_sum", "request_generation_tokens_sum", "3"},
                  {"e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_sum", "8"},
                  {"e2e_request_latency_seconds_count", "e2e_request_latency_seconds_count", "2"},
                  {"request_queue_time_seconds_sum", "request_queue_time_seconds_sum", "0.5"},
                  {"request_prefill_time_seconds_sum", "request_prefill_time_seconds_sum", "2"},
                  {"request_decode_time_seconds_sum", "request_decode_time_seconds_sum", "4"},
                  {"request_inference_time_seconds_sum", "request_inference_time_seconds_sum", "6"},
                  {"request_inference_time_seconds_count", "request_inference_time_seconds_count", "1"},
                  {"request_time_per_output_token_seconds_sum", "request_time_per_output_token_seconds_sum", "0.25"}});
  for (const char* line :
       {"ended_total{%finished_reason=\"stop\"} 1", "ended_total{%finished_reason=\"error\"} 1",
        "ended_total{%finished_reason=\"length\"} 0", "ended_total{%finished_reason=\"cancelled\"} 0",
        "accepted_tokens_per_position_total{%position=\"0\"} 11",
        "accepted_tokens_per_position_total{%position=\"1\"} 7"}) {
    std::string full = std::string("levin_") + line;
    expect_line(page, full.replace(full.find('%'), 1, std::string(kLabels) + ","));
  }
}

TEST(MetricsTest, BucketsCountWhatIsAtMostTheirEdge) {
  Metrics m = metrics();
  m.add_first_token(0.02);
  m.add_first_token(0.021);
  m.add_first_token(3000);
  m.add_gap(0.3);
  m.add_step({.step_s = 0.75, .host_gap_s = 20e-6});
  m.add_step({.step_s = 0.25});
  const std::string page = m.text();
  for (const char* bucket : {"0.01\"} 0", "0.02\"} 1", "0.04\"} 2", "2560\"} 2", "+Inf\"} 3"}) {
    expect_line(page, fmt::format("vllm:time_to_first_token_seconds_bucket{{{},le=\"{}", kLabels, bucket));
  }
  expect_figures(page, {{"time_to_first_token_seconds_count", "time_to_first_token_seconds_count", "3"},
                        {"inter_token_latency_seconds_sum", "inter_token_latency_seconds_sum", "0.3"},
                        {"step_seconds_sum", "", "1"},
                        {"step_seconds_count", "", "2"},
                        {"host_gap_seconds_sum", "", "2e-05"},
                        {"host_gap_seconds_count", "", "1"}});
  EXPECT_EQ(page.find("vllm:step_seconds"), std::string::npos);  // names that vLLM does not have
}

}  // namespace
}  // namespace levin::serve
