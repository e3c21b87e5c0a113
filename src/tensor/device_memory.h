// Memory of a device and the ways in and out of it, for what keeps data there and computes nothing: caches and weights.
//
// Order     everything is enqueued on one stream, in the order of the calls
// Threads   one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/device_fault.h"
#include "base/dummy_values.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace levin {

// Bytes of the host and their place on a device.
struct CopyIn {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t n_bytes = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Result<Buffer> allocate(int64_t n_bytes) = 0;  // of the device, cleared
  virtual Result<Buffer> allocate_pinned(
      int64_t n_bytes) = 0;                     // of the host, which copies go to and from at full speed
  virtual int64_t available_bytes() const = 0;  // of the device, that nobody has yet

  // From the host, through pinned memory; `from` may change once the call returns.
  virtual void copy_bytes_in(std::byte* to, const void* from, int64_t n_bytes) = 0;
  // Many copies, to ascending addresses, at the speed of the link: all threads read. What they read may change once the call
  // returns. Up to kCopyGap bytes between two of them become zero.
  static constexpr int64_t kCopyGap = 256;
  virtual Status copy_all_in(std::span<const CopyIn> copies, ThreadPool& pool) = 0;
  // n elements, as draw_dummy_values() makes them.
  virtual void make_dummies(std::byte* to, const DummyTensor& tensor, int64_t n) = 0;
  // To the host; there when synchronize() has returned.
  virtual void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) = 0;
  // Waits for all of it; a fault of the device is an error.
  virtual Status synchronize() = 0;
};

// Waits; throws a DeviceFault.
inline void wait_for(DeviceMemory& memory) {
  if (const Status status = memory.synchronize(); !status.ok()) throw DeviceFault(status.error());
}

}  // namespace levin
