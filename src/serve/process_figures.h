// What the system knows of this process, for the metrics. Read from /proc; 0 where it is not to be had.
#pragma once

#include <cstdint>

namespace levin::serve {

struct ProcessFigures {
  double cpu_s = 0;  // of all threads, user and system
  int64_t n_resident_bytes = 0;
  int64_t n_virtual_bytes = 0;
  int64_t n_open_fds = 0;
  int64_t n_max_fds = 0;
  double start_s = 0;  // Unix time at which the process started

  static ProcessFigures now();
};

}  // namespace levin::serve
