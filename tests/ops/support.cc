#include "ops/support.h"

#include <fmt/format.h>

#include <cstring>

namespace levin::testing {

TestDevice::TestDevice(Isa isa, int n_threads) : isa_(isa), pool_(n_threads), ctx_(cpu_context(pool_, arena_, isa)) {}

std::string TestDevice::name() const { return fmt::format("{} x{}", isa_name(isa_), n_threads()); }

const std::vector<std::unique_ptr<TestDevice>>& devices_under_test() {
  static const auto kDevices = [] {
    std::vector<std::unique_ptr<TestDevice>> devices;
    const CpuInfo cpu = cpu_info();
    for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      if (!cpu.supports(isa)) continue;
      for (const int n_threads : {1, 2, 3}) devices.push_back(std::make_unique<TestDevice>(isa, n_threads));
    }
    return devices;
  }();
  return kDevices;
}

TestDevice& plain_device() { return *devices_under_test().front(); }

uint64_t Random::bits() {  // splitmix64
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

float Random::normal() {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return static_cast<float>(sum);
}

std::vector<float> Random::normals(int64_t n, float scale) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = scale * normal();
  return values;
}

Tensor random_tensor(Random& random, std::initializer_list<int64_t> shape, float scale) {
  Tensor t(DType::kF32, shape);
  for (int64_t i = 0; i < t.view().n_elements(); ++i) t.at(i) = scale * random.normal();
  return t;
}

::testing::AssertionResult same_bits(const View& a, const View& b) {
  if (a.describe() != b.describe()) {
    return ::testing::AssertionFailure() << a.describe() << " against " << b.describe();
  }
  if (!a.contiguous() || !b.contiguous()) return ::testing::AssertionFailure() << "same_bits wants contiguous views";
  const int64_t width = dtype_bytes(a.dtype()), columns = a.dim(-1);
  for (int64_t i = 0; i < a.n_elements(); ++i) {
    if (std::memcmp(a.bytes() + i * width, b.bytes() + i * width, static_cast<size_t>(width)) == 0) continue;
    std::string values;
    if (a.dtype() == DType::kF32) values = fmt::format(": {} and {}", a.data<float>()[i], b.data<float>()[i]);
    if (a.dtype() == DType::kI32) values = fmt::format(": {} and {}", a.data<int32_t>()[i], b.data<int32_t>()[i]);
    return ::testing::AssertionFailure() << "row " << i / columns << ", column " << i % columns << " differ" << values;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace levin::testing
