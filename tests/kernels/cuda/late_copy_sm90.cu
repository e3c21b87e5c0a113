#include "kernels/cuda/prims/sync.cuh"
#include "late_copy.h"

namespace levin::cuda {
namespace {

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void copy_late_kernel(int32_t* to, const int32_t* from) {
  launch_dependents();
  for (const uint64_t begin = nanoseconds(); nanoseconds() - begin < 20'000;) {
  }
  to[threadIdx.x] = from[threadIdx.x];
}

}  // namespace

void copy_late(int32_t* to, const int32_t* from, int n, CUstream_st* stream) {
  copy_late_kernel<<<1, n, 0, stream>>>(to, from);
}

}  // namespace levin::cuda
