// Looks at the engine's thread from outside: a step that takes too long is reported and not waited for, and a busy server
// says every now and then how it fares.
//
//   stuck   a step has taken `limit`: one report on one page (which step, what it is at, who waits since when, what the
//           cache holds) goes to the log, every open request ends with an error, new ones are refused, /health is 503.
//           Should the step end after all, that is logged too and the server continues
//   stats   a line every `stats_interval` in which tokens were computed
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine_load.h"
#include "serve/engine_service.h"
#include "serve/log.h"
#include "serve/metrics.h"

namespace levin::serve {

struct WatchOptions {
  std::chrono::milliseconds limit{600'000};          // of a step; 0: no limit
  std::chrono::milliseconds stats_interval{10'000};  // 0: no lines
};

class Watch {
 public:
  Watch(const WatchOptions& options, EngineService& service, const Metrics& metrics, Log& log);
  ~Watch();

 private:
  using Clock = std::chrono::steady_clock;
  void work();
  void look_at_step();
  void write_stats(double seconds);

  const WatchOptions options_;
  EngineService& service_;
  const Metrics& metrics_;
  Log& log_;
  int64_t reported_step_ = 0;
  MetricsTotals last_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

// The page of a stuck step. For tests too
std::string stuck_report(const StepWatch& step, const EngineLoad& load);

}  // namespace levin::serve
