// What the tests of plain kernels share: arguments copied to the device, results copied back and compared with the ops on the
// CPU's plain kernel set, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/device_array.h"
#include "kernels/cuda/plain/paged_cache.h"
#include "ops/paged_cache.h"
#include "ops/support.h"

namespace levin::cuda::plain {

// Copies of a call's arguments on the device.
class DeviceArgs {
 public:
  explicit DeviceArgs(const Stream& stream) : stream_(stream) {}

  // A dense tensor. What an output holds goes along, so that what is not written can be seen.
  template <class T>
  T* in(const View& host) {
    LEVIN_CHECK(host.contiguous(), "argument {}", host.describe());
    return reinterpret_cast<T*>(copy(host.bytes(), host.n_elements() * dtype_bytes(host.dtype())));
  }
  template <class T>
  T* out(const View& host) {
    T* device = in<T>(host);
    outs_.push_back(
        {reinterpret_cast<std::byte*>(device), host.bytes(), host.n_elements() * dtype_bytes(host.dtype())});
    return device;
  }
  template <class T>
  T* in(const std::vector<T>& host) {
    return reinterpret_cast<T*>(copy(host.data(), static_cast<int64_t>(host.size() * sizeof(T))));
  }
  PagedCache in(const PagedRows& host) { return paged(host, copy(host.pages, host.n_pages * host.page_bytes)); }
  PagedCache out(const PagedRows& host) {
    const PagedCache cache = in(host);
    outs_.push_back({cache.pages, host.pages, host.n_pages * host.page_bytes});
    return cache;
  }
  std::byte* scratch(int64_t n_bytes) { return arrays_.emplace_back(stream_, std::max<int64_t>(n_bytes, 1)).data(); }

  // Fetches what `out` was called for.
  void fetch() const {
    for (const Copy& c : outs_) copy_to_host(stream_, c.host, c.device, c.n_bytes);
    must(stream_.synchronize());
  }

 private:
  struct Copy {
    std::byte* device;
    std::byte* host;
    int64_t n_bytes;
  };

  std::byte* copy(const void* host, int64_t n_bytes) {
    std::byte* device = scratch(n_bytes);
    copy_to_device(stream_, device, host, n_bytes);
    must(stream_.synchronize());
    return device;
  }
  PagedCache paged(const PagedRows& host, std::byte* pages) {
    return {.pages = pages,
            .page_bytes = host.page_bytes,
            .tables = in<int32_t>(host.tables),
            .tables_ld = host.tables.dim(1)};
  }

  const Stream& stream_;
  std::vector<DeviceArray<std::byte>> arrays_;
  std::vector<Copy> outs_;
};

class PlainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  StreamHandle stream() const { return stream_->handle(); }
  OpContext& cpu() const { return testing::plain_device().ctx(); }

  std::optional<Stream> stream_;
};

// A tensor filled with a byte that no result has everywhere.
inline testing::Tensor unset(DType dtype, std::initializer_list<int64_t> shape) {
  testing::Tensor t(dtype, shape);
  std::memset(t.view().bytes(), 0x5B, static_cast<size_t>(t.view().n_elements() * dtype_bytes(dtype)));
  return t;
}

inline testing::Tensor copy_of(const testing::Tensor& t) {
  const View& v = t.view();
  testing::Tensor out = v.rank() == 1   ? testing::Tensor(v.dtype(), {v.dim(0)})
                        : v.rank() == 2 ? testing::Tensor(v.dtype(), {v.dim(0), v.dim(1)})
                                        : testing::Tensor(v.dtype(), {v.dim(0), v.dim(1), v.dim(2)});
  std::memcpy(out.view().bytes(), v.bytes(), static_cast<size_t>(v.n_elements() * dtype_bytes(v.dtype())));
  return out;
}

}  // namespace levin::cuda::plain
