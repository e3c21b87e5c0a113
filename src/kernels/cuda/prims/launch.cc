#include "kernels/cuda/prims/launch.h"

#include "base/check.h"
#include "kernels/cuda/prims/launch_together.h"

namespace levin::cuda {

namespace {

// What a wrong launch is told. Everything else is a fault of the device, by whatever ran before, which shows at the
// stream's synchronize. A refusal, which the runtime keeps as its last code, must not: the check tells of it, and who recovers from
// that has a sound device.
bool was_refused(cudaError_t code) {
  switch (code) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorCooperativeLaunchTooLarge:
    case cudaErrorNotSupported:
      cudaGetLastError();
      return true;
    default:
      return false;
  }
}

void allow(const void* kernel, const Launch& l) {
  if (l.shared_bytes > 48 * 1024) {
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes);
    LEVIN_CHECK(!was_refused(code), "{} bytes of shared memory: {}", l.shared_bytes, cudaGetErrorString(code));
  }
  if (l.cluster > kMaxPortableCluster) {
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    LEVIN_CHECK(!was_refused(code), "clusters of {} blocks: {}", l.cluster, cudaGetErrorString(code));
  }
}

// From compute capability 9.0 on; kernels of earlier devices follow each other as always.
bool has_programmatic_launch() {
  static PerDevice major;
  const auto ask = [] {
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrComputeCapabilityMajor, device);
    return n;
  };
  return major.get(ask) >= 9;
}

// `attributes` has room for kMostAttributes.
constexpr int kMostAttributes = 3;
cudaLaunchConfig_t config_of(const Launch& l, cudaLaunchAttribute* attributes) {
  unsigned n_attributes = 0;
  if (l.cluster > 1) {
    attributes[n_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[n_attributes].val.clusterDim.x = static_cast<unsigned>(l.cluster);
    attributes[n_attributes].val.clusterDim.y = 1;
    attributes[n_attributes].val.clusterDim.z = 1;
    ++n_attributes;
  }
  if (l.pdl && has_programmatic_launch()) {
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
  return config;
}

void start(const void* kernel, const Launch& l, const cudaLaunchConfig_t& config, void** params) {
  const cudaError_t code = cudaLaunchKernelExC(&config, kernel, params);
  LEVIN_CHECK(!was_refused(code), "launch of {} x {} x {} blocks of {} threads: {}", l.grid.x, l.grid.y, l.grid.z,
              l.block.x, cudaGetErrorString(code));
}

}  // namespace

void launch_pointer(const void* kernel, const Launch& l, void** params) {
  allow(kernel, l);
  cudaLaunchAttribute attributes[kMostAttributes];
  start(kernel, l, config_of(l, attributes), params);
}

void launch_pointer_together(const void* kernel, const Launch& l, void** params) {
  allow(kernel, l);
  cudaLaunchAttribute attributes[kMostAttributes];
  cudaLaunchConfig_t config = config_of(l, attributes);
  attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
  attributes[config.numAttrs].val.cooperative = 1;
  ++config.numAttrs;
  start(kernel, l, config, params);
}

int clusters_at_once(const void* kernel, const Launch& l) {
  allow(kernel, l);
  cudaLaunchAttribute attributes[kMostAttributes];
  const cudaLaunchConfig_t config = config_of(l, attributes);
  int n = 0;
  const cudaError_t code = cudaOccupancyMaxActiveClusters(&n, kernel, &config);
  LEVIN_CHECK(code == cudaSuccess, "clusters of {} blocks at once: {}", l.cluster, cudaGetErrorString(code));
  return n;
}

size_t PerDevice::device_index() {
  int device = 0;
  const cudaError_t code = cudaGetDevice(&device);
  LEVIN_CHECK(code == cudaSuccess && device < kMaxDevices, "device {}: {}", device, cudaGetErrorString(code));
  return static_cast<size_t>(device);
}

int n_sms() {
  int device = 0, n = 0;
  cudaGetDevice(&device);
  const cudaError_t code = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  LEVIN_CHECK(code == cudaSuccess && n > 0, "number of SMs: {}", cudaGetErrorString(code));
  return n;
}

}  // namespace levin::cuda
