// Shared memory of the other blocks of a cluster: plain loads, and stores that count their bytes on a barrier there.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

// The value that block `rank` holds at the same place. The owner must have released it (a cluster barrier), and must
// not leave before the readers are done.
template <class T>
__device__ __forceinline__ uint32_t cluster_load_u32(const T* own, uint32_t rank) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(value)
               : "r"(cluster_address(shared_address(own), rank))
               : "memory");
  return value;
}

// A load that stays where it is written: several of them are in flight where the compiler would wait for each.
__device__ __forceinline__ float4 load_shared_float4(const float4* from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(shared_address(from))
               : "memory");
  return v;
}

// The same for two: it is not moved out of a loop either, where it would take registers that products need.
__device__ __forceinline__ float2 load_shared_float2(const float* from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared_address(from)) : "memory");
  return v;
}

__device__ __forceinline__ float4 cluster_load_float4(const float4* own, uint32_t rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cluster_address(shared_address(own), rank))
               : "memory");
  return v;
}

__device__ __forceinline__ uint4 cluster_load_uint4(const uint32_t* own, uint32_t rank) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(cluster_address(shared_address(own), rank))
               : "memory");
  return v;
}

// Writes 16 bytes kOffset after a cluster_address() and counts them on the barrier at another one, in the same block.
template <int kOffset = 0>
__device__ __forceinline__ void cluster_store_async(uint32_t to, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0 + %6], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier), "n"(kOffset)
      : "memory");
}

// The same with 4 bytes.
__device__ __forceinline__ void cluster_store_async(uint32_t to, uint32_t v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(v),
               "r"(barrier)
               : "memory");
}

// One arrival on the same barrier of block `rank`, ordered after this thread's shared-memory accesses only.
// An arrival that releases all memory to the cluster would wait until every earlier write has been acknowledged.
__device__ __forceinline__ void cluster_arrive_relaxed(const Mbarrier& own, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(own.address(), rank)) : "memory");
}

// One that releases all memory, global memory too: what this thread wrote, and what other threads of the block wrote before a
// barrier of the block that it has passed.
__device__ __forceinline__ void cluster_arrive_release(const Mbarrier& own, uint32_t rank) {
  asm volatile(
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(own.address(), rank))
      : "memory");
}

// The first half of a cluster barrier for a thread that has written nothing the others will read: it only must not leave
// before they have read, or has initialised barriers and fenced that. It orders no writes, not even those to shared memory
// after a block barrier, since additions may still be under way there; for that, cluster_sync().
__device__ __forceinline__ void cluster_arrive_shared() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

}  // namespace levin::cuda
