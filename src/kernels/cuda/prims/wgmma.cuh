// Warpgroup matrix products, D[64, N] (+)= A[64, k] * B[N, k]^T with f32 accumulators, sm_90a.
//
// Wgmma<N>::e4m3 (k = 32) and ::bf16 (k = 16) are one instruction each; A comes from shared memory (a descriptor) or
// from registers (four words a thread), B always from shared memory. All 128 threads of a warpgroup call together:
//
//   wgmma_fence();  Wgmma<N>::e4m3(d, a, b, accumulate);  ...  wgmma_commit();  ...  wgmma_wait<n>();
//
// D         thread t of the warpgroup holds row 16 * (t / 32) + (t % 32) / 4 + 8 * h,
//           columns 8 * j + 2 * (t % 4) + {0, 1} in d[4 * j + 2 * h + {0, 1}], j < N / 8, h < 2
// A (regs)  e4m3: word r of a thread is row 16 * warp + lane / 4 + 8 * (r % 2),
//                 columns 16 * (r / 2) + 4 * (lane % 4) + 0..3
//           bf16: the same rows, columns 8 * (r / 2) + 2 * (lane % 4) + 0..1
//
// accumulate == false starts the sum at zero. d must not be touched between the call and the wait that covers its
// commit. FP8 products are exact, but sums inside the unit keep fewer bits than f32: fold into f32 registers every 128
// of k.
#pragma once

#include <cstdint>

namespace levin::cuda {

template <int N>
struct Wgmma;

// Orders this warpgroup's register and shared-memory accesses before the following wgmma.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `kPending` committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler that d changes here, so that it does not move accumulator reads above a wait.
template <int kRegs>
__device__ __forceinline__ void wgmma_touch(float (&d)[kRegs]) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

constexpr uint32_t kGroupBytes = 1024;  // of 8 rows

// Descriptor of a K-major operand in 128-byte-swizzled tiles (tiles/swizzle.cuh): rows of 128 bytes, in dense groups of 8.
// Adding descriptor_step(bytes) moves along k inside the 128 bytes.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* tile) {
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  return ((address & 0x3FFFF) >> 4) | (uint64_t{1} << 16) | (uint64_t{kGroupBytes >> 4} << 32) | (uint64_t{1} << 62);
}

// Descriptor of an MN-major (transposed) bf16 operand in 128-byte-swizzled tiles: each 1024-byte tile holds 8 k-rows of
// 64 m (or n) values; `k_bytes` separates tiles along k, `mn_bytes` tiles along m (or n).
__device__ __forceinline__ uint64_t wgmma_descriptor_mn_major(const void* tile, uint32_t mn_bytes,
                                                              uint32_t k_bytes = 1024) {
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  return ((address & 0x3FFFF) >> 4) | (uint64_t{mn_bytes >> 4} << 16) | (uint64_t{k_bytes >> 4} << 32) |
         (uint64_t{1} << 62);
}

// The same descriptor from its two words: the low one holds the address (in 16-byte units, at most 14 bits) and may be
// stepped on its own.
__device__ __forceinline__ uint32_t descriptor_low(const void* tile) {
  return (static_cast<uint32_t>(__cvta_generic_to_shared(tile)) & 0x3FFFF) >> 4 | 1u << 16;
}
constexpr uint32_t descriptor_high() { return kGroupBytes >> 4 | 1u << 30; }
__device__ __forceinline__ uint64_t join_descriptor(uint32_t low, uint32_t high) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
  return descriptor;
}

constexpr uint64_t descriptor_step(uint32_t n_bytes) { return n_bytes >> 4; }

#include "kernels/cuda/prims/wgmma_shapes.inc"

}  // namespace levin::cuda
