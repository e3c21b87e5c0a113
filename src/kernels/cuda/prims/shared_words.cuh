// Words in global memory that blocks of one launch write and read meanwhile, each by itself: no order among them follows.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"

namespace levin::cuda {

__device__ __forceinline__ uint4 load_relaxed_16(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed_16(void* to, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

// Adds to a word and returns what it was, after this thread's accesses before and before those after.
__device__ __forceinline__ uint32_t add_acq_rel(uint32_t* word, uint32_t n) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(n) : "memory");
  return before;
}

// That of Mbarrier::wait(), for other waits.
class Watchdog {
 public:
  __device__ __forceinline__ void check() const {
    if (now_ns() - begin_ > kWatchdogNs) __trap();
  }

 private:
  __device__ __forceinline__ static uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  uint64_t begin_ = now_ns();
};

// Asks until something of another block has come.
template <class HasCome>
__device__ __forceinline__ void poll_until(const HasCome& has_come) {
  if (has_come()) return;
  const Watchdog watchdog;
  while (!has_come()) watchdog.check();
}

}  // namespace levin::cuda
