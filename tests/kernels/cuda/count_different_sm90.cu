#include "count_different.h"

namespace levin::cuda {
namespace {

__global__ void count_kernel(const uint32_t* a, const uint32_t* b, int64_t n, unsigned long long* n_different) {
  const int64_t n_threads = int64_t{gridDim.x} * blockDim.x;
  unsigned long long found = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += n_threads) found += a[i] != b[i];
  if (found != 0) atomicAdd(n_different, found);
}

}  // namespace

void count_different(const void* a, const void* b, int64_t n, unsigned long long* n_different, CUstream_st* stream) {
  count_kernel<<<256, 256, 0, stream>>>(static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), n,
                                        n_different);
}

}  // namespace levin::cuda
