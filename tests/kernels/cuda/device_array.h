// Arrays on the device for tests and benchmarks of kernels: upload, download, and a device to run on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/probe.h"

namespace levin::cuda {

// The result's value; a failure stops the program with its message.
template <class T>
T must(Result<T> result) {
  LEVIN_CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

inline void must(const Status& status) { LEVIN_CHECK(status.ok(), "{}", status.error().message); }

// Why no test can run on a device here; empty if device 0 is usable, which is then the calling thread's device.
inline std::string why_no_device() {
  const Result<DeviceInfo> info = find_device(0);
  if (!info.ok()) return info.error().message;
  const Status status = use_device(0);
  return status.ok() ? std::string() : status.error().message;
}

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const Stream& stream, int64_t n)
      : stream_(&stream), n_(n), buffer_(must(DeviceBuffer::create(n * int64_t{sizeof(T)}))) {}
  DeviceArray(const Stream& stream, const std::vector<T>& values)
      : DeviceArray(stream, static_cast<int64_t>(values.size())) {
    copy_to_device(stream, buffer_.data(), values.data(), n_bytes());
    must(stream.synchronize());
  }

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  int64_t size() const { return n_; }
  int64_t n_bytes() const { return n_ * int64_t{sizeof(T)}; }
  void fill(uint8_t byte) const { fill_bytes(*stream_, buffer_.data(), byte, n_bytes()); }

  // The first n elements (all by default). Waits for the stream.
  std::vector<T> host() const { return host(n_); }
  std::vector<T> host(int64_t n) const {
    std::vector<T> values(static_cast<size_t>(n));
    copy_to_host(*stream_, values.data(), buffer_.data(), n * int64_t{sizeof(T)});
    must(stream_->synchronize());
    return values;
  }

 private:
  const Stream* stream_ = nullptr;
  int64_t n_ = 0;
  DeviceBuffer buffer_;
};

}  // namespace levin::cuda
