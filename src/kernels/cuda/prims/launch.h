// Starting a kernel: one struct for grid, block, shared memory, cluster and hand-over, and one place that checks.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

namespace levin::cuda {

constexpr int kMaxSharedBytes = 227 * 1024;  // per block on sm_90
constexpr int kMaxPortableCluster = 8;       // blocks; sm_90 has sixteen

struct Launch {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  int shared_bytes = 0;
  int cluster = 1;   // blocks along grid.x that form a cluster
  bool pdl = false;  // may start before the previous kernel ends; the kernel calls grid_dependency_wait()
  cudaStream_t stream = nullptr;
};

// A refused launch is a bug in our code and stops the process; faults while it runs show at the stream's synchronize.
void launch_pointer(const void* kernel, const Launch& l, void** params);

template <class... Params, class... Args>
void launch_kernel(void (*kernel)(Params...), const Launch& l, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each kernel parameter");
  [&](std::remove_cv_t<Params>... values) {
    void* pointers[] = {static_cast<void*>(&values)..., nullptr};
    launch_pointer(reinterpret_cast<const void*>(kernel), l, pointers);
  }(std::forward<Args>(args)...);
}

// Clusters of such a launch that the calling thread's device holds at the same time; none where it has no room for one.
int clusters_at_once(const void* kernel, const Launch& l);

// SMs of the calling thread's device.
int n_sms();

// A number that is asked for once on each device, of which a process may use several that differ. Threads that ask at the
// same time may each compute it; they find the same.
class PerDevice {
 public:
  template <class Compute>
  int get(const Compute& compute) {
    std::atomic<int>& known = number_[device_index()];
    if (known.load(std::memory_order_relaxed) == 0) known.store(compute() + 1, std::memory_order_relaxed);
    return known.load(std::memory_order_relaxed) - 1;
  }

 private:
  static constexpr int kMaxDevices = 64;
  // Of the calling thread's device, below kMaxDevices.
  static size_t device_index();

  std::array<std::atomic<int>, kMaxDevices> number_{};  // and one more; 0: not asked for yet
};

}  // namespace levin::cuda
