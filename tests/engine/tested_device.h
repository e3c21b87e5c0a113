// The device that a run of the tests is about. Tests of models run on the CPU, unless LEVIN_TEST_DEVICE names a GPU's kernel set:
//
//   LEVIN_TEST_DEVICE=cuda-plain test_restart     the same tests, models and server on the GPU
//   LEVIN_TEST_DEVICE=cuda-sm90  test_restart     with its tuned kernels, which round as `official` does and no other mode:
//                                                 all modes that the tests name become that one
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "engine/options.h"
#include "model/numerics.h"
#include "ops/cuda_backend.h"
#include "support/must.h"

namespace levin::test {

inline std::string_view tested_device() {
  const char* name = std::getenv("LEVIN_TEST_DEVICE");
  return name == nullptr || *name == '\0' ? "cpu" : name;
}

inline bool tests_tuned_kernels() { return tested_device() == "cuda-sm90"; }

// A backend of the caller's own, whose scratch memory nobody has used; null: the CPU.
inline std::unique_ptr<CudaBackend> open_tested_cuda() {
  const std::string_view name = tested_device();
  if (name == "cpu") return nullptr;
  LEVIN_CHECK(name == "cuda-plain" || tests_tuned_kernels(),
              "LEVIN_TEST_DEVICE is '{}', expected cpu, cuda-plain or cuda-sm90", name);
  return must(open_cuda({.kernels = tests_tuned_kernels() ? cuda::KernelSet::kSm90 : cuda::KernelSet::kPlain}));
}

// The one that tests share; null: the CPU. Opened once, and never closed: models of static tests may outlive main.
inline CudaBackend* tested_cuda() {
  static CudaBackend* const cuda = open_tested_cuda().release();
  return cuda;
}

inline NumericsMode tested_numerics(NumericsMode asked) {
  return tests_tuned_kernels() ? NumericsMode::kOfficial : asked;
}

// The same engine on the tested device.
inline EngineOptions on_tested_device(EngineOptions options) {
  if (tested_device() == "cpu") return options;
  options.device = Device::kCuda;
  options.kernels = tests_tuned_kernels() ? DeviceKernels::kAuto : DeviceKernels::kPlain;
  options.numerics = tested_numerics(options.numerics);
  return options;
}

}  // namespace levin::test
