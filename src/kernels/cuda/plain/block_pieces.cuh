// Pieces that a whole block runs together.
#pragma once

#include <cstdint>

namespace levin::cuda::plain {

// How many threads before this one have the flag, and how many of the block. Of at most 1024 threads, whole warps.
struct Rank {
  int before, all;
};
__device__ inline Rank rank_of_flag(bool flag) {
  __shared__ int of_warp[32];
  const unsigned ballot = __ballot_sync(0xffffffff, flag);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();
  if (lane == 0) of_warp[warp] = __popc(ballot);
  __syncthreads();
  Rank rank{__popc(ballot & ((1u << lane) - 1)), 0};
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) {
    if (i < warp) rank.before += of_warp[i];
    rank.all += of_warp[i];
  }
  return rank;
}

// A value and where it stands. The better one: larger, then lower index; -0 counts as +0.
template <class T>
struct Ranked {
  T value;
  int64_t index;
};
template <class T>
__device__ Ranked<T> better(const Ranked<T>& a, const Ranked<T>& b) {
  if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// The best of all threads' candidates, in all threads; index -1 means none. Of kThreads threads.
template <int kThreads, class T>
__device__ Ranked<T> best_of_block(const Ranked<T>& mine) {
  __shared__ Ranked<T> of_thread[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  __syncthreads();
  of_thread[i] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (i < half) of_thread[i] = better(of_thread[i], of_thread[i + half]);
  }
  __syncthreads();
  return of_thread[0];
}

}  // namespace levin::cuda::plain
