#include "kernels/cuda/prims/launch.h"

#include "base/check.h"

namespace levin::cuda {

void launch_pointer(const void* kernel, const Launch& l, void** params) {
  if (l.shared_bytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes);
    LEVIN_CHECK(code == cudaSuccess, "{} bytes of shared memory: {}", l.shared_bytes, cudaGetErrorString(code));
  }
  cudaLaunchAttribute attributes[2];
  unsigned n_attributes = 0;
  if (l.cluster > 1) {
    attributes[n_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[n_attributes].val.clusterDim.x = static_cast<unsigned>(l.cluster);
    attributes[n_attributes].val.clusterDim.y = 1;
    attributes[n_attributes].val.clusterDim.z = 1;
    ++n_attributes;
  }
  if (l.follows_closely) {
    attributes[n_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n_attributes].val.programmaticStreamSerializationAllowed = 1;
    ++n_attributes;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = static_cast<size_t>(l.shared_bytes);
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = n_attributes;
  const cudaError_t code = cudaLaunchKernelExC(&config, kernel, params);
  LEVIN_CHECK(code == cudaSuccess, "launch of {} x {} x {} blocks of {} threads: {}", l.grid.x, l.grid.y, l.grid.z,
              l.block.x, cudaGetErrorString(code));
}

int n_multiprocessors() {
  int device = 0, n = 0;
  cudaGetDevice(&device);
  const cudaError_t code = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  LEVIN_CHECK(code == cudaSuccess && n > 0, "number of multiprocessors: {}", cudaGetErrorString(code));
  return n;
}

}  // namespace levin::cuda
