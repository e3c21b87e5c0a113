// Where two groups of warps wait for each other, again and again.
//
// By a named barrier, which costs less than one in shared memory. racecheck does not see that the instructions of the groups, which
// stand at different places, are one barrier; for it, with -DLEVIN_RACECHECK, one in shared memory stands in its place.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

// Named barrier kBarrier, kThreads of both groups together.
template <int kBarrier, int kThreads>
class Meeting {
 public:
  // One thread; then fence_barrier_init() and a barrier of the block.
  __device__ __forceinline__ void init() {
    if constexpr (kForRacecheck) all_.init(kThreads);
  }
  // `turn` counts the meetings from 0 on.
  __device__ __forceinline__ void wait(uint32_t turn) {
    if constexpr (kForRacecheck) {
      all_.arrive();
      all_.wait_without_clock(turn & 1);
    } else {
      named_barrier(kBarrier, kThreads);
    }
  }

 private:
  Mbarrier all_;  // for racecheck only
};

}  // namespace levin::cuda
