#include "serve/watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace levin::serve {
namespace {

constexpr size_t kMaxListed = 40;  // requests on the page
constexpr std::chrono::milliseconds kLongestTick{1000};

double rate(int64_t now, int64_t before, double seconds) { return static_cast<double>(now - before) / seconds; }

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

std::string stuck_report(const StepWatch& step, const EngineLoad& load) {
  std::string out =
      fmt::format("step {} has taken {:.1f} s and is {}; its {} requests end with an error, new ones are refused\n",
                  step.number, step.seconds, step_phase_name(step.phase), step.requests.size());
  for (size_t i = 0; i < std::min(step.requests.size(), kMaxListed); ++i) {
    const OpenRequest& r = step.requests[i];
    fmt::format_to(std::back_inserter(out), "  request {:>6}: {:>8} prompt tokens, {:>7} of its answer, age {:.1f} s\n",
                   r.ticket, r.n_prompt, r.n_answer, r.seconds);
  }
  if (step.requests.size() > kMaxListed) {
    fmt::format_to(std::back_inserter(out), "  and {} more\n", step.requests.size() - kMaxListed);
  }
  fmt::format_to(
      std::back_inserter(out),
      "  before it: {} running, {} waiting, {} of {} cache pages free, {} held by the prefix cache, {} preempted\n"
      "  --watchdog-timeout is how long a step may take; a model of this size may need longer ones",
      load.n_running, load.n_waiting, load.n_free_pages, load.n_pages, load.n_cached_pages, load.n_preempted);
  return out;
}

Watch::Watch(const WatchOptions& options, EngineService& service, const Metrics& metrics, Log& log)
    : options_(options), service_(service), metrics_(metrics), log_(log), thread_([this] { work(); }) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watch::work() {
  std::chrono::milliseconds tick = kLongestTick;
  if (options_.limit.count() > 0) tick = std::min(tick, options_.limit / 4);
  if (options_.stats_interval.count() > 0) tick = std::min(tick, options_.stats_interval);
  tick = std::max(tick, std::chrono::milliseconds(1));
  Clock::time_point told = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, tick, [this] { return ending_; })) {
    if (options_.limit.count() > 0) look_at_step();
    const Clock::time_point now = Clock::now();
    if (options_.stats_interval.count() == 0 || now - told < options_.stats_interval) continue;
    write_stats(std::chrono::duration<double>(now - told).count());
    told = now;
  }
}

void Watch::look_at_step() {
  const StepWatch step = service_.watch();
  const bool stuck = step.seconds > std::chrono::duration<double>(options_.limit).count();
  if (stuck && step.number != reported_step_) {
    reported_step_ = step.number;
    log_.write(LogLevel::kError, "watchdog", stuck_report(step, metrics_.totals().load),
               {{"step", step.number},
                {"seconds", step.seconds},
                {"phase", step_phase_name(step.phase)},
                {"requests", std::ssize(step.requests)}});
    service_.give_up(fmt::format("a step of the engine has taken {:.0f} s; it is not waited for", step.seconds));
  } else if (reported_step_ != 0 && (step.number != reported_step_ || step.seconds == 0) && !service_.lost()) {
    log_.write(LogLevel::kWarning, "watchdog",
               fmt::format("step {} has ended after all; new requests are accepted again", reported_step_),
               {{"step", reported_step_}});
    reported_step_ = 0;
    service_.recover();
  }
}

// The words of vLLM's line, which people know how to read.
void Watch::write_stats(double seconds) {
  const MetricsTotals before = std::exchange(last_, metrics_.totals());
  const MetricsTotals& now = last_;
  const int64_t n_answer = now.n_tokens - before.n_tokens, n_prompt = now.n_prompt_tokens - before.n_prompt_tokens;
  if (n_answer + n_prompt == 0) return;
  const EngineLoad& load = now.load;
  const int64_t n_used = load.n_pages - load.n_free_pages - load.n_cached_pages;
  const double accepted = share(now.n_accepted_tokens - before.n_accepted_tokens, now.n_drafts - before.n_drafts);
  const double hits =
      share(load.n_hit_tokens - before.load.n_hit_tokens, load.n_queried_tokens - before.load.n_queried_tokens);
  log_.info(
      "stats",
      fmt::format("prompt {:.1f} tokens/s, generation {:.1f} tokens/s, running {}, waiting {}, cache usage {:.1f}%, "
                  "prefix cache hit rate {:.1f}%, mean acceptance length {:.2f}",
                  rate(n_prompt, 0, seconds), rate(n_answer, 0, seconds), load.n_running, load.n_waiting,
                  100 * share(n_used, load.n_pages), 100 * hits, 1 + accepted),
      {{"prompt_tokens_per_s", rate(n_prompt, 0, seconds)},
       {"generation_tokens_per_s", rate(n_answer, 0, seconds)},
       {"running", load.n_running},
       {"waiting", load.n_waiting},
       {"cache_usage", share(n_used, load.n_pages)},
       {"prefix_hit_rate", hits},
       {"mean_accept_length", 1 + accepted}});
}

}  // namespace levin::serve
