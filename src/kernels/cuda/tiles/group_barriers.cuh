// Barriers of a block at which threads meet, of which some only arrive and do not wait.
//
// By named barriers, which cost less than barriers in shared memory. racecheck does not follow what arrivals at them order; for it,
// with -DLEVIN_RACECHECK, barriers in shared memory stand in their places.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

// Named barriers kFirst to kFirst + kCount - 1, each of kThreads threads. `phase` is how often the barrier was complete before.
template <int kFirst, int kCount, int kThreads>
class GroupBarriers {
 public:
  // One thread; then fence_barrier_init() and a barrier of the block.
  __device__ __forceinline__ void init() {
    if constexpr (kForRacecheck) {
      for (Mbarrier& barrier : barrier_) barrier.init(kThreads);
    }
  }
  __device__ __forceinline__ void arrive(int i) {
    if constexpr (kForRacecheck)
      barrier_[i].arrive();
    else
      named_barrier_arrive(kFirst + i, kThreads);
  }
  __device__ __forceinline__ void arrive_and_wait(int i, uint32_t phase) {
    if constexpr (kForRacecheck) {
      barrier_[i].arrive();
      barrier_[i].wait(phase % 2);
    } else {
      named_barrier(kFirst + i, kThreads);
    }
  }
  // Where another barrier has told a thread that threads are past this one: racecheck does not follow an order by way of third
  // threads.
  __device__ __forceinline__ void show_passed(int i, uint32_t phase) const {
    if constexpr (kForRacecheck) barrier_[i].wait(phase % 2);
  }

 private:
  Mbarrier barrier_[kCount];  // for racecheck only
};

}  // namespace levin::cuda
