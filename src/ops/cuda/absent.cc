// A build without the CUDA toolkit has no backend; the probe says so, or what else is missing.
#include "base/check.h"
#include "ops/cuda_backend.h"

namespace levin {

Result<std::unique_ptr<CudaBackend>> open_cuda(const CudaOptions& options) {
  const Result<cuda::DeviceInfo> device = cuda::find_device(options.device_index, options.kernels);
  LEVIN_CHECK(!device.ok(), "the probe found a device for a build without CUDA kernels");
  return device.error();
}

}  // namespace levin
