// Whether this process can run the CUDA kernels, asked of the driver alone: no toolkit is needed to build or to call
// this.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace levin::cuda {

// Which kernels. kPlain: any shape, compute capability 8.0 and later. kSm90: tuned for Hopper, with the plain ones for the
// rest.
enum class KernelSet : uint8_t { kPlain, kSm90 };
std::string_view kernel_set_name(KernelSet set);  // "cuda-plain", "cuda-sm90"

struct DeviceInfo {
  int index = 0;
  std::string name;
  int arch = 0;  // compute capability, 90 for 9.0
  int n_sms = 0;
  int64_t memory_bytes = 0;
  int driver_cuda = 0;  // newest CUDA the driver supports, 13000 for 13.0
};

// What the driver said; every field after the first failure stays at its default.
struct DriverFacts {
  int built_for_cuda = 0;  // toolkit of this build, 13000 for 13.0; 0 if built without CUDA
  std::string load_error;  // why libcuda.so.1 did not load; empty if it did
  int driver_cuda = 0;
  int init_error = 0;  // result of cuInit, 0 is success
  int n_devices = 0;
  DeviceInfo device;  // the one asked for, if it exists
};

// Sets CUDA_MODULE_LOADING of this process to EAGER where it is not set: the first call comes before other threads.
DriverFacts ask_driver(int device_index);

// The device, or one line that says what is missing: a build with kernels, a driver, a newer driver, a device, one that the
// set's kernels run on. The error's kind is kNoDevice.
Result<DeviceInfo> usable_device(const DriverFacts& facts, int device_index, KernelSet set = KernelSet::kSm90);

inline Result<DeviceInfo> find_device(int device_index, KernelSet set = KernelSet::kSm90) {
  return usable_device(ask_driver(device_index), device_index, set);
}

}  // namespace levin::cuda
