// Starting a plain kernel: nothing where there is nothing to do. A kernel may start while those before it on the stream end.
#pragma once

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda::plain {

constexpr int kThreads = 128;  // of a block, unless a kernel says otherwise

struct Grid {
  int64_t x = 1, y = 1, z = 1;
  int threads = kThreads;
  int64_t shared_bytes = 0;
};

inline int64_t div_up(int64_t n, int64_t step) { return (n + step - 1) / step; }

// Lets a kernel take that much in addition to what it has by itself: together they may pass what a launch may take unasked.
void allow_shared_bytes(const void* kernel, int64_t n_bytes);

template <class... Params, class... Args>
void start(void (*kernel)(Params...), const Grid& grid, cudaStream_t stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (grid.shared_bytes > 0) allow_shared_bytes(reinterpret_cast<const void*>(kernel), grid.shared_bytes);
  launch_kernel(
      kernel,
      {.grid = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)),
       .block = dim3(static_cast<unsigned>(grid.threads)),
       .shared_bytes = static_cast<int>(grid.shared_bytes),
       .pdl = true,
       .stream = stream},
      std::forward<Args>(args)...);
}

// The first statement of every kernel: afterwards all that earlier ones wrote is there, and what they read may be overwritten.
__device__ __forceinline__ void follow_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  launch_dependents();
  grid_dependency_wait();
#endif
}

// The element of a flat loop that this thread has: [0, n) over blocks along x.
__device__ __forceinline__ int64_t flat_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

}  // namespace levin::cuda::plain
