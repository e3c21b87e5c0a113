// Memory of a device and the ways in and out of it, for what keeps data there and computes nothing: caches and weights.
//
// Order     everything is enqueued on one stream, in the order of the calls
// Threads   one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "base/result.h"
#include "tensor/buffer.h"

namespace levin {

// The device failed in a way that nothing there survives. Thrown from wherever it shows, since no request can continue and
// there is nothing to give back; the program ends with its message.
class DeviceFault : public std::runtime_error {
 public:
  explicit DeviceFault(const Error& error) : std::runtime_error(error.message) {}
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
