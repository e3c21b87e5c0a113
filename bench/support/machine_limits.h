// What this machine can do at most, measured: the yardstick of the kernel benchmarks.
#pragma once

#include <string>

#include "base/cpu.h"

namespace levin::bench {

struct MachineLimits {
  int n_threads = 1;
  double read_gb_per_s = 0;    // a sum over 1 GiB, each thread its own part
  double fma_gflop_per_s = 0;  // f32 fused multiply-adds on registers, widest vectors; 2 operations each
  double dot_gflop_per_s = 0;  // VDPBF16PS on registers, 4 operations a lane; 0 where the processor has none
};

// Takes about a second.
MachineLimits measure_machine(int n_threads);

}  // namespace levin::bench
