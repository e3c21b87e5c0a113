// Barriers in shared memory that count arrivals of threads and bytes of copies.
//
// A wait names the parity of the phase it waits for: a barrier starts in phase 0, so the first wait(0) returns when
// phase 0 is complete and wait(1) on a fresh barrier returns at once (tiles/stage_ring.cuh keeps the parities).
#pragma once

#include <cstdint>

namespace levin::cuda {

// Builds for tests end a wait of ten seconds, a bug in a kernel, as a device fault and not as a hang. Others wait as long as
// it takes, or thirty years: under a debugger, on a suspended machine or on a shared device a wait of a sound kernel can be
// any length, and a fault would end the process. They have the same instructions: without the clock in its loop a wait is
// rotated into the products around it, which ptxas then runs one at a time (its remark C7514), and what is tested and
// measured would not be what runs.
#ifdef LEVIN_KERNEL_WATCHDOG
constexpr uint64_t kWatchdogNs = 10'000'000'000;
#else
constexpr uint64_t kWatchdogNs = 1'000'000'000'000'000'000;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Kernels in the form that compute-sanitizer's racecheck can follow: the same order by dearer barriers, at the same places.
#ifdef LEVIN_RACECHECK
constexpr bool kForRacecheck = true;
#else
constexpr bool kForRacecheck = false;
#endif

// Arrivals that Mbarrier::arrive_as_warp() counts as. racecheck follows the arrival of each thread, but not what __syncwarp
// puts before an arrival of another lane.
constexpr uint32_t kWarpArrivals = kForRacecheck ? 32 : 1;

struct alignas(8) Mbarrier {
  uint64_t state;

  __device__ __forceinline__ uint32_t address() const { return shared_address(this); }

  // One thread, then fence_barrier_init() and a block (or cluster) barrier before anybody else uses it.
  __device__ __forceinline__ void init(uint32_t n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(n_arrivals) : "memory");
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }

  // kWarpArrivals of a converged warp, after all its lanes' accesses so far.
  __device__ __forceinline__ void arrive_as_warp() {
    __syncwarp();
    if (kForRacecheck || threadIdx.x % 32 == 0) arrive();
  }

  // One arrival on the same barrier of block `rank` of the cluster, after this thread's reads of what the barrier
  // frees. What it wrote need not be visible there yet.
  __device__ __forceinline__ void free_at(uint32_t rank) {
    asm volatile(
        "{\n .reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(address()),
        "r"(rank)
        : "memory");
  }

  // One arrival that also announces n_bytes of copies; the phase completes when they have landed too.
  __device__ __forceinline__ void arrive_expect_bytes(uint32_t n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(n_bytes) : "memory");
  }

  // One arrival (already counted at init) when this thread's earlier cp.async copies have landed.
  __device__ __forceinline__ void arrive_after_async_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }

  __device__ __forceinline__ bool try_wait(uint32_t parity) const {
    uint32_t done;
    asm volatile(
        "{\n .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(address()), "r"(parity)
        : "memory");
    return done != 0;
  }

  // The same, after which what other blocks of the cluster wrote before cluster_arrive_release() is visible.
  __device__ __forceinline__ bool try_wait_of_cluster(uint32_t parity) const {
    uint32_t done;
    asm volatile(
        "{\n .reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(address()), "r"(parity)
        : "memory");
    return done != 0;
  }

  __device__ __forceinline__ void wait(uint32_t parity) const {
    if (try_wait(parity)) return;
    const uint64_t begin = now_ns();
    while (!try_wait(parity)) {
      rest_for_racecheck();
      if (now_ns() - begin > kWatchdogNs) __trap();
    }
  }

  // The same by a whole warp, where its barrier depends on the thread: the compiler takes lanes that wait by themselves for
  // divergent in all that follows.
  __device__ __forceinline__ void wait_as_warp(uint32_t parity) const {
    const auto is_done = [&] { return __all_sync(0xffffffff, try_wait(parity)); };
    if (is_done()) return;
    const uint64_t begin = now_ns();
    while (!is_done()) {
      rest_for_racecheck();
      if (now_ns() - begin > kWatchdogNs) __trap();
    }
  }

  // The same without a clock, for a kernel that has no registers left for it: ptxas would run its products one at a time
  // (its remark C7512).
  __device__ __forceinline__ void wait_without_clock(uint32_t parity) const {
    if (try_wait(parity)) return;
    while (!try_wait(parity)) rest_for_racecheck();
  }

  // As wait_without_clock(), by a whole warp: see wait_as_warp().
  __device__ __forceinline__ void wait_of_cluster(uint32_t parity) const {
    while (!__all_sync(0xffffffff, try_wait_of_cluster(parity))) rest_for_racecheck();
  }

 private:
  // racecheck records every look at a barrier, which takes most of its time where blocks wait for each other.
  __device__ __forceinline__ static void rest_for_racecheck() {
    if constexpr (kForRacecheck) __nanosleep(20'000);
  }
  __device__ __forceinline__ static uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
};

// Makes freshly initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace levin::cuda
