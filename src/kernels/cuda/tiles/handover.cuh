// Two buffers in shared memory that one group of warps fills and another takes, in turn.
//
// By named barriers, at which one group arrives and the other waits: they cost less than barriers in shared memory. racecheck
// reports what they order; for it, with -DLEVIN_RACECHECK, barriers in shared memory stand in their places.
//
//   filler   for each lap, for each buffer: wait_free(buffer, lap); ...; pass(buffer);
//   taker    give_back(0); give_back(1); for each lap, for each buffer: wait_full(buffer, lap); ...; give_back(buffer);
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

// Named barriers kFirstBarrier to kFirstBarrier + 3. All threads of a group call together.
template <int kFirstBarrier, int kFillThreads, int kTakeThreads>
class Handover {
 public:
  // One thread; then fence_barrier_init() and a barrier of the block.
  __device__ __forceinline__ void init() {
    if constexpr (kForRacecheck) {
      for (Mbarrier& full : full_) full.init(kFillThreads);
      for (Mbarrier& free : free_) free.init(kTakeThreads);
    }
  }

  __device__ __forceinline__ void wait_free(int buffer, uint32_t lap) const {
    if constexpr (kForRacecheck)
      free_[buffer].wait(lap & 1);
    else
      named_barrier(kFirstBarrier + 2 + buffer, kThreads);
  }
  __device__ __forceinline__ void pass(int buffer) {
    if constexpr (kForRacecheck)
      full_[buffer].arrive();
    else
      named_barrier_arrive(kFirstBarrier + buffer, kThreads);
  }

  __device__ __forceinline__ void wait_full(int buffer, uint32_t lap) const {
    if constexpr (kForRacecheck)
      full_[buffer].wait(lap & 1);
    else
      named_barrier(kFirstBarrier + buffer, kThreads);
  }
  __device__ __forceinline__ void give_back(int buffer) {
    if constexpr (kForRacecheck)
      free_[buffer].arrive();
    else
      named_barrier_arrive(kFirstBarrier + 2 + buffer, kThreads);
  }

 private:
  static constexpr int kThreads = kFillThreads + kTakeThreads;
  Mbarrier full_[2], free_[2];  // for racecheck only
};

}  // namespace levin::cuda
