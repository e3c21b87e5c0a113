#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"

namespace levin::cuda::plain {

void allow_shared_bytes(const void* kernel, int64_t n_bytes) {
  const cudaError_t code =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(n_bytes));
  // Any other error is a fault of what ran before, which shows at the stream's synchronize; this one must not.
  const bool refused = code == cudaErrorInvalidValue || code == cudaErrorInvalidDeviceFunction;
  if (refused) cudaGetLastError();
  LEVIN_CHECK(!refused, "{} bytes of shared memory: {}", n_bytes, cudaGetErrorString(code));
}

}  // namespace levin::cuda::plain
