// What op tests share: the devices to run on, tensors filled from a seed, and comparisons that say where they fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/cpu_backend.h"
#include "ops/cuda_backend.h"
#include "tensor/buffer.h"
#include "tensor/formats.h"
#include "tensor/view.h"

namespace levin::testing {

// One way to run an op: a kernel set on a number of threads, with its own pool and scratch; or a CUDA device.
class TestDevice {
 public:
  TestDevice(Isa isa, int n_threads);
  explicit TestDevice(std::unique_ptr<CudaBackend> cuda);

  OpContext& ctx() { return ctx_; }
  CpuBackend& cpu() { return cpu_; }      // of a device on the CPU
  CudaBackend& cuda() { return *cuda_; }  // of one on CUDA
  bool on_cuda() const { return cuda_ != nullptr; }
  Isa isa() const { return isa_; }
  int n_threads() const { return pool_.n_threads(); }
  std::string name() const;  // "avx512 x2", "cuda"

 private:
  Isa isa_;
  ThreadPool pool_;
  Arena arena_;
  CpuBackend cpu_;
  std::unique_ptr<CudaBackend> cuda_;
  OpContext ctx_;
};

// Every kernel set this processor has, each on 1, 2 and 3 threads (under a sanitizer fewer); the plain set on one thread comes
// first. Made once.
const std::vector<std::unique_ptr<TestDevice>>& devices_under_test();

// The same, and a CUDA device where this build and this machine have one: for ops that have a kernel there. Bodies leave
// out the cases that it refuses.
const std::vector<TestDevice*>& backends_under_test();
std::string why_no_cuda();  // empty if there is one

// The plain set on one thread.
TestDevice& plain_device();

// A tensor that owns its memory.
class Tensor {
 public:
  Tensor(DType dtype, std::initializer_list<int64_t> shape)
      : buffer_(Buffer::for_tensor(dtype, shape)), view_(buffer_.data(), dtype, shape) {}
  template <class T>
  static Tensor of(const std::vector<T>& values, std::initializer_list<int64_t> shape);

  const View& view() const { return view_; }
  operator View() const { return view_; }  // NOLINT: implicit on purpose, args are Views
  float& at(int64_t i) { return view_.data<float>()[i]; }
  float at(int64_t i) const { return view_.data<float>()[i]; }
  std::vector<std::byte> bytes() const { return {buffer_.data(), buffer_.data() + buffer_.n_bytes()}; }

 private:
  Buffer buffer_;
  View view_;
};

template <class T>
Tensor Tensor::of(const std::vector<T>& values, std::initializer_list<int64_t> shape) {
  Tensor t(DTypeOf<T>::value, shape);
  std::copy(values.begin(), values.end(), t.view().template data<T>());
  return t;
}

// The arguments of an op, where its device can read them: on the CPU the tensors of the test themselves, on a CUDA device
// copies that last as long as this.
//
//   Args args(device);
//   ops::silu(device.ctx(), {.x = args.in(x), .out = args.out(y)});
//   args.fetch();  // y holds the result
class Args {
 public:
  explicit Args(TestDevice& device) : device_(device) {}
  Args(const Args&) = delete;
  Args& operator=(const Args&) = delete;

  View in(const View& host);            // dense; an empty one stays empty
  View out(const View& host);           // what it holds goes along, so that what is not written can be seen
  PagedRows in(const PagedRows& host);  // pages and tables
  PagedRows out(const PagedRows& host);
  void fetch();

 private:
  struct Copy {
    View device, host;
  };
  View allocate(DType dtype, std::initializer_list<int64_t> shape);
  View allocate_like(const View& host);
  View in_after(int32_t guard, const View& host);  // [N, M] i32

  TestDevice& device_;
  std::vector<Buffer> memory_;
  std::vector<Copy> outs_;
};

// Numbers from a seed: the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits();
  double uniform();  // [0, 1)
  float normal();    // about normal: 12 uniforms summed, less 6
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  std::vector<float> normals(int64_t n, float scale = 1.0f);

 private:
  uint64_t state_;
};

Tensor random_tensor(Random& random, std::initializer_list<int64_t> shape, float scale = 1.0f);  // f32

// Success iff both hold the same bits; otherwise names the first element that differs.
::testing::AssertionResult same_bits(const View& a, const View& b);

}  // namespace levin::testing
