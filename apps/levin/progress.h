// Progress of a load on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "model/weight_table.h"

namespace levin::app {

// On a terminal: one line, redrawn, with a bar and the time left, once a load has taken a moment. Elsewhere: a line
// every ten seconds. Plain characters, no colours.
class LoadBar {
 public:
  using Clock = std::chrono::steady_clock;

  LoadBar();
  LoadProgress progress();  // refers to this bar
  void finish();            // clears the line; before anything else is printed

 private:
  void show(int64_t bytes_done, int64_t bytes_total);

  bool terminal_ = false;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point next_;
};

// "[#####.....]  50%  12.3 of 24.6 GiB, 1.2 GiB/s, 10 s left"
std::string progress_text(int64_t bytes_done, int64_t bytes_total, double elapsed_s);

}  // namespace levin::app
