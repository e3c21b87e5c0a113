// What this machine can do at most, measured: the yardstick of `levin bench --ops` and of the kernel benchmarks.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "ops/op_times.h"
#include "tensor/buffer.h"

namespace levin {

struct MachineLimits {
  double read_gb_per_s = 0;     // a sum over memory beyond every cache, each thread its own part
  double fma_gflop_per_s = 0;   // f32 fused multiply-adds on registers, widest vectors; 2 operations each
  double dot_gflop_per_s = 0;   // VDPBF16PS on registers, 4 operations a lane; 0 where the processor has none
  double tile_gflop_per_s = 0;  // TDPBF16PS on tiles of ones, 16384 operations each; 0 where there is no matrix unit
};

// The arithmetic of a kernel set, by the type of its operands.
double gflop_per_s(const MachineLimits& limits, Isa isa, bool in_bf16);
// The least seconds for the work: reading it or its arithmetic, whichever takes longer; 0 where a limit is not known.
double seconds_at(const MachineLimits& limits, Isa isa, const OpWork& work);

// Measures the limits on the threads of a pool, bit by bit. A benchmark samples after each of its own iterations, so
// that both see the same machine: on one that is shared, or whose clock changes, a limit measured once would not be the
// limit of the moment.
class LimitProbe {
 public:
  explicit LimitProbe(ThreadPool& pool);

  void sample();
  MachineLimits limits() const;  // over all samples so far
  MachineLimits best() const;    // the best sample of each

 private:
  struct Rate {
    double work = 0, seconds = 0, best = 0;
    void add(double amount, double took);
  };

  ThreadPool& pool_;
  Buffer memory_;
  int64_t read_at_ = 0;
  Rate read_, fma_, dot_, tile_;
};

}  // namespace levin
