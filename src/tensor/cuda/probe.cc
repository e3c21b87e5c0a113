#include "tensor/cuda/probe.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <memory>

namespace levin::cuda {
namespace {

#ifndef LEVIN_CUDA_TOOLKIT
#define LEVIN_CUDA_TOOLKIT 0
#endif

constexpr int kOldestCuda = 12040;
constexpr int kTunedArch = 90;
constexpr int kOldestArch = 80;

// Attribute numbers of cuDeviceGetAttribute, fixed by the driver's binary interface.
constexpr int kAttributeSmCount = 16;
constexpr int kAttributeArchMajor = 75;
constexpr int kAttributeArchMinor = 76;

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <class Function>
Function symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library.get(), name));
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// A runtime of major version N runs on any driver that supports CUDA N.0.
int needed_driver(int built_for_cuda) {
  const int of_major = built_for_cuda / 1000 * 1000;
  return of_major > kOldestCuda ? of_major : kOldestCuda;
}

void ask_device(const Library& driver, DeviceInfo& device) {
  const auto get = symbol<int (*)(int*, int)>(driver, "cuDeviceGet");
  const auto name = symbol<int (*)(char*, int, int)>(driver, "cuDeviceGetName");
  const auto attribute = symbol<int (*)(int*, int, int)>(driver, "cuDeviceGetAttribute");
  const auto memory = symbol<int (*)(size_t*, int)>(driver, "cuDeviceTotalMem_v2");
  if (!get || !name || !attribute || !memory) return;
  int handle = 0;
  if (get(&handle, device.index) != 0) return;
  std::array<char, 128> text{};
  if (name(text.data(), static_cast<int>(text.size()) - 1, handle) == 0) device.name = text.data();
  int major = 0, minor = 0;
  attribute(&major, kAttributeArchMajor, handle);
  attribute(&minor, kAttributeArchMinor, handle);
  attribute(&device.n_sms, kAttributeSmCount, handle);
  device.arch = major * 10 + minor;
  size_t n_bytes = 0;
  if (memory(&n_bytes, handle) == 0) device.memory_bytes = static_cast<int64_t>(n_bytes);
}

Error missing(std::string what) { return Error{ErrorKind::kNoDevice, "--device cuda: " + std::move(what)}; }

}  // namespace

DriverFacts ask_driver(int device_index) {
  DriverFacts facts;
  facts.built_for_cuda = LEVIN_CUDA_TOOLKIT;
  const Library driver(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!driver) {
    const char* why = dlerror();
    facts.load_error = why ? why : "unknown error";
    return facts;
  }
  const auto driver_version = symbol<int (*)(int*)>(driver, "cuDriverGetVersion");
  const auto init = symbol<int (*)(unsigned)>(driver, "cuInit");
  const auto count = symbol<int (*)(int*)>(driver, "cuDeviceGetCount");
  if (!driver_version || !init || !count) {
    facts.load_error = "libcuda.so.1 lacks cuDriverGetVersion, cuInit or cuDeviceGetCount";
    return facts;
  }
  // Read by cuInit. Kernels are loaded, and on cards without machine code translated, with the context and not when they first
  // run: nothing of that is left once a server is ready.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  driver_version(&facts.driver_cuda);
  facts.init_error = init(0);
  if (facts.init_error != 0 || count(&facts.n_devices) != 0) return facts;
  facts.device.index = device_index;
  facts.device.driver_cuda = facts.driver_cuda;
  if (device_index >= 0 && device_index < facts.n_devices) ask_device(driver, facts.device);
  return facts;
}

std::string_view kernel_set_name(KernelSet set) { return set == KernelSet::kPlain ? "cuda-plain" : "cuda-sm90"; }

Result<DeviceInfo> usable_device(const DriverFacts& facts, int device_index, KernelSet set) {
  if (facts.built_for_cuda == 0)
    return missing(
        "this build has no CUDA kernels; build the cuda preset with nvcc 12.4 or newer, or use --device cpu");
  if (!facts.load_error.empty()) return missing("no NVIDIA driver found (" + facts.load_error + "); install one");
  if (const int needed = needed_driver(facts.built_for_cuda); facts.driver_cuda < needed) {
    return missing(
        fmt::format("the NVIDIA driver is too old: it supports CUDA {}, this build needs {}; update the driver",
                    version_text(facts.driver_cuda), version_text(needed)));
  }
  constexpr int kNoDeviceError = 100;  // CUDA_ERROR_NO_DEVICE
  if (facts.init_error != 0 && facts.init_error != kNoDeviceError)
    return missing(fmt::format("the NVIDIA driver failed to start (cuInit returned {})", facts.init_error));
  if (facts.n_devices == 0)
    return missing("the NVIDIA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (device_index < 0 || device_index >= facts.n_devices)
    return missing(fmt::format("device {} does not exist; the driver sees {}", device_index, facts.n_devices));
  if (set == KernelSet::kPlain && facts.device.arch < kOldestArch) {
    return missing(
        fmt::format("device {} ({}) is sm_{}; the kernels run from sm_80 on (A100, GeForce RTX 30 and later)",
                    device_index, facts.device.name, facts.device.arch));
  }
  if (set == KernelSet::kSm90 && facts.device.arch != kTunedArch) {
    return missing(fmt::format("device {} ({}) is sm_{}; the tuned kernels run on sm_90 only (H100, H200, H20)",
                               device_index, facts.device.name, facts.device.arch));
  }
  return facts.device;
}

}  // namespace levin::cuda
