// Memory of the host that says it is a device's: for what keeps data on a device and computes nothing there.
#pragma once

#include <cstdlib>
#include <cstring>

#include "tensor/device_memory.h"

namespace levin::test {

class PretendedDevice final : public DeviceMemory {
 public:
  Result<Buffer> allocate(int64_t n_bytes) override {
    if (n_bytes > available) return Error{ErrorKind::kOutOfMemory, "no room"};
    return Buffer::of_device(static_cast<std::byte*>(std::calloc(1, static_cast<size_t>(n_bytes))), n_bytes,
                             [](std::byte* data) { std::free(data); });
  }
  Result<Buffer> allocate_pinned(int64_t n_bytes) override { return Buffer(n_bytes); }
  int64_t available_bytes() const override { return available; }
  void copy_bytes_in(std::byte* to, const void* from, int64_t n_bytes) override {
    n_copied += n_bytes;
    std::memcpy(to, from, static_cast<size_t>(n_bytes));
  }
  Status copy_all_in(std::span<const CopyIn> copies, ThreadPool&) override {
    for (const CopyIn& copy : copies) copy_bytes_in(copy.to, copy.from, copy.n_bytes);
    return {};
  }
  void make_dummies(std::byte* to, const DummyTensor& tensor, int64_t n) override {
    draw_dummy_values(tensor, 0, n, to);
  }
  void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) override {
    std::memcpy(to, from, static_cast<size_t>(n_bytes));
  }
  Status synchronize() override { return {}; }

  int64_t available = int64_t{1} << 40;
  int64_t n_copied = 0;  // bytes that came from the host
};

}  // namespace levin::test
