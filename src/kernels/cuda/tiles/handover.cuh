// Two buffers in shared memory that one group of warps fills and another takes, in turn.
//
//   filler   for each lap, for each buffer: wait_free(buffer, lap); ...; pass(buffer);
//   taker    give_back(0); give_back(1); for each lap, for each buffer: wait_full(buffer, lap); ...; give_back(buffer);
#pragma once

#include <cstdint>

#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda {

// Named barriers kFirstBarrier to kFirstBarrier + 3. All threads of a group call together.
template <int kFirstBarrier, int kFillThreads, int kTakeThreads>
class Handover {
 public:
  // One thread; then fence_barrier_init() and a barrier of the block.
  __device__ __forceinline__ void init() {
    full_.init();
    free_.init();
  }
  __device__ __forceinline__ void wait_free(int buffer, uint32_t lap) { free_.arrive_and_wait(buffer, lap); }
  __device__ __forceinline__ void pass(int buffer) { full_.arrive(buffer); }
  __device__ __forceinline__ void wait_full(int buffer, uint32_t lap) { full_.arrive_and_wait(buffer, lap); }
  __device__ __forceinline__ void give_back(int buffer) { free_.arrive(buffer); }

 private:
  static constexpr int kThreads = kFillThreads + kTakeThreads;
  GroupBarriers<kFirstBarrier, 2, kThreads> full_;
  GroupBarriers<kFirstBarrier + 2, 2, kThreads> free_;
};

}  // namespace levin::cuda
