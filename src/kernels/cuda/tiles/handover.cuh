// Two buffers in shared memory that producer warps fill and consumer warps read, in turn.
//
//   producer   for each lap, for each buffer: wait_free(buffer, lap); ...; pass(buffer);
//   consumer   release(0); release(1); for each lap, for each buffer: wait_full(buffer, lap); ...; release(buffer);
#pragma once

#include <cstdint>

#include "kernels/cuda/tiles/group_barriers.cuh"

namespace levin::cuda {

// Named barriers kFirstBarrier to kFirstBarrier + 3. All threads of a group call together.
template <int kFirstBarrier, int kProducerThreads, int kConsumerThreads>
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
  __device__ __forceinline__ void release(int buffer) { free_.arrive(buffer); }

 private:
  static constexpr int kThreads = kProducerThreads + kConsumerThreads;
  GroupBarriers<kFirstBarrier, 2, kThreads> full_;
  GroupBarriers<kFirstBarrier + 2, 2, kThreads> free_;
};

}  // namespace levin::cuda
