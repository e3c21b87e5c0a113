// Whether this process can run the CUDA kernels, asked of the driver alone: no toolkit is needed to build or to call
// this.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace levin::cuda {

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

DriverFacts ask_driver(int device_index);

// The device, or one line that says what is missing: a build with kernels, a driver, a newer driver, a device, an sm_90
// device. The error's kind is kNoDevice.
Result<DeviceInfo> usable_device(const DriverFacts& facts, int device_index);

inline Result<DeviceInfo> find_device(int device_index) {
  return usable_device(ask_driver(device_index), device_index);
}

}  // namespace levin::cuda
