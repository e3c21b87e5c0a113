// Memory of a device and the ways in and out of it, for what keeps data there and computes nothing: caches and weights.
//
// Order     everything is enqueued on one stream, in the order of the calls; but for copies to the host that have a stream of
//           their own (CopyStream)
// Threads   one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

// A place in the work of a stream: who waits for it does not wait for what was enqueued after it. Not to outlive the memory.
class WorkMark {
 public:
  virtual ~WorkMark() = default;
  virtual void set() = 0;      // after all work so far; again and again
  virtual bool is_past() = 0;  // wait() would not wait
  virtual Status wait() = 0;   // a fault of the device is an error
};

// A stream for copies to pinned memory of the host, in parallel with all other work. Not to outlive the memory.
class CopyStream {
 public:
  virtual ~CopyStream() = default;  // waits for the copies
  virtual void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) = 0;
  virtual Result<std::unique_ptr<WorkMark>> make_mark() = 0;  // of these copies
  virtual void follow() = 0;                                  // later copies begin after all other work so far
  virtual void hold() = 0;                                    // later other work begins after all copies so far
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
  // Null: copies have no stream of their own.
  virtual Result<std::unique_ptr<CopyStream>> open_copy_stream() { return std::unique_ptr<CopyStream>(); }
  // Waits for all of it; a fault of the device is an error.
  virtual Status synchronize() = 0;
};

// Waits; throws a DeviceFault.
inline void wait_for(DeviceMemory& memory) {
  if (const Status status = memory.synchronize(); !status.ok()) throw DeviceFault(status.error());
}

}  // namespace levin
