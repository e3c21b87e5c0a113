// A ring of shared-memory stages between loading and computing threads.
//
// Each stage has a `full` barrier (completed by the loads) and an `empty` barrier (completed by the readers). Both
// sides walk the ring with a RingPosition of their own; the loader starts one lap ahead, so that its first waits on
// `empty` return at once.
//
//   loader   empty[at.stage].wait(at.parity ^ 1);  full[at.stage].arrive_expect_bytes(n);  loads...;  at.advance();
//   reader   full[at.stage].wait(at.parity);  ...;  empty[at.stage].arrive();  at.advance();
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"

namespace levin::cuda {

template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The same, where the number of stages is known at launch.
struct RingPlace {
  int n_stages;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == n_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kStages>
struct RingBarriers {
  Mbarrier full[kStages];
  Mbarrier empty[kStages];

  // The first n_stages. One thread; then fence_barrier_init() and a barrier of the block (of the cluster, where blocks write each other's
  // stages).
  __device__ __forceinline__ void init(uint32_t full_arrivals, uint32_t empty_arrivals, int n_stages = kStages) {
    for (int i = 0; i < n_stages; ++i) {
      full[i].init(full_arrivals);
      empty[i].init(empty_arrivals);
    }
  }
};

}  // namespace levin::cuda
