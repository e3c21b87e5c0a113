// The bulk copy engine: boxes of tensors described by a tensor map (prims/tensor_map.h), and plain runs of bytes.
//
// Loads land in shared memory and count their bytes on a barrier; parts of a box outside the tensor read as zero and
// are counted too. One thread issues a copy.
// Coordinates are innermost first.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"

namespace levin::cuda {

// How long L2 should keep what a load brings in or a store leaves: the values the createpolicy instruction makes for these fractions.
constexpr uint64_t kEvictNormal = 0x1000000000000000;
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictLast = 0x14F0000000000000;

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

__device__ __forceinline__ void tma_load_2d(void* to, const CUtensorMap& map, Mbarrier& barrier, int x, int y,
                                            uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier.address()), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* to, const CUtensorMap& map, Mbarrier& barrier, int x, int y, int z,
                                            uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5}], [%2], "
      "%6;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier.address()), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// The same box into the same place of every block of the cluster whose bit is set in `blocks`, counted on each block's
// own barrier.
__device__ __forceinline__ void tma_load_2d_multicast(void* to, const CUtensorMap& map, Mbarrier& barrier, int x, int y,
                                                      uint16_t blocks, uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, "
      "%4}], [%2], %5, %6;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier.address()), "r"(x), "r"(y), "h"(blocks), "l"(policy)
      : "memory");
}

// n_bytes from `from`; both ends 16-byte aligned, n_bytes a multiple of 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t n_bytes, Mbarrier& barrier,
                                          uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(barrier.address()), "l"(policy)
      : "memory");
}

// The same bytes to the same place of every block of the cluster whose bit is set in `blocks`, counted on each block's own
// barrier.
__device__ __forceinline__ void bulk_load_multicast(void* to, const void* from, uint32_t n_bytes, Mbarrier& barrier,
                                                    uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(barrier.address()), "h"(blocks)
      : "memory");
}

// Shared memory written with ordinary stores becomes visible to the copy engine and the matrix unit: each writing
// thread, then a barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory and the copy engine.
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Brings the line that an address is in to L2. Nothing waits for it.
__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Stores what L2 should keep longer than other lines.
__device__ __forceinline__ void store_to_stay(float4* to, const float4& v) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w), "l"(kEvictLast)
               : "memory");
}

// Copies of 4, 8 or 16 bytes by ordinary threads; `valid == false` writes zeros and reads nothing.
__device__ __forceinline__ void async_copy_4(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void async_copy_8(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void async_copy_16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void async_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace levin::cuda
