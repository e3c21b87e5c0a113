#include "ops/support.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace levin::testing {

namespace {

// Sanitizers multiply the time of every run, so they leave out what adds nothing to them: two threads where three run too, and under
// the thread sanitizer a thread alone, which has nobody to race with; the oracle is one.
std::vector<int> thread_counts([[maybe_unused]] Isa isa) {
#if defined(__SANITIZE_THREAD__)
  if (isa != Isa::kPlain) return {3};
  return {1, 3};
#elif defined(__SANITIZE_ADDRESS__)
  return {1, 3};
#else
  return {1, 2, 3};
#endif
}

// The CUDA device, or why there is none. Made once.
struct CudaUnderTest {
  std::unique_ptr<TestDevice> device;
  std::string why_not;
};
const CudaUnderTest& cuda_under_test() {
  static const CudaUnderTest kCuda = [] {
    Result<std::unique_ptr<CudaBackend>> backend = open_cuda({.scratch_bytes = int64_t{256} << 20});
    if (!backend.ok()) return CudaUnderTest{nullptr, backend.error().message};
    return CudaUnderTest{std::make_unique<TestDevice>(std::move(backend).value()), ""};
  }();
  return kCuda;
}

constexpr int32_t kNoPage = (1 << 25) - 1;  // far outside of all memory

Buffer allocate_on(TestDevice& device, int64_t n_bytes) {
  Result<Buffer> buffer = device.cuda().allocate(n_bytes);
  LEVIN_CHECK(buffer.ok(), "{}", buffer.error().message);
  return std::move(buffer).value();
}

}  // namespace

TestDevice::TestDevice(Isa isa, int n_threads)
    : isa_(isa), pool_(n_threads), cpu_(pool_, arena_, isa), ctx_(op_context(cpu_)) {}

TestDevice::TestDevice(std::unique_ptr<CudaBackend> cuda)
    : isa_(Isa::kPlain), pool_(1), cpu_(pool_, arena_, isa_), cuda_(std::move(cuda)), ctx_(op_context(*cuda_)) {}

std::string TestDevice::name() const { return on_cuda() ? "cuda" : fmt::format("{} x{}", isa_name(isa_), n_threads()); }

const std::vector<std::unique_ptr<TestDevice>>& devices_under_test() {
  static const auto kDevices = [] {
    std::vector<std::unique_ptr<TestDevice>> devices;
    for (const Isa isa : usable_isas()) {
      for (const int n_threads : thread_counts(isa)) devices.push_back(std::make_unique<TestDevice>(isa, n_threads));
    }
    return devices;
  }();
  return kDevices;
}

const std::vector<TestDevice*>& backends_under_test() {
  static const auto kBackends = [] {
    std::vector<TestDevice*> backends;
    for (const auto& device : devices_under_test()) backends.push_back(device.get());
    if (cuda_under_test().device != nullptr) backends.push_back(cuda_under_test().device.get());
    return backends;
  }();
  return kBackends;
}

std::string why_no_cuda() { return cuda_under_test().why_not; }

View Args::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t n_bytes = dtype_bytes(dtype);
  for (const int64_t n : shape) n_bytes *= n;
  memory_.push_back(allocate_on(device_, std::max<int64_t>(n_bytes, 1)));
  return View(memory_.back().data(), dtype, shape, Device::kCuda);
}

View Args::allocate_like(const View& host) {
  switch (host.rank()) {
    case 1:
      return allocate(host.dtype(), {host.dim(0)});
    case 2:
      return allocate(host.dtype(), {host.dim(0), host.dim(1)});
    default:
      LEVIN_CHECK(host.rank() == 3, "argument of rank {}", host.rank());
      return allocate(host.dtype(), {host.dim(0), host.dim(1), host.dim(2)});
  }
}

View Args::in(const View& host) {
  if (!device_.on_cuda() || host.empty()) return host;
  const View device = allocate_like(host);
  device_.cuda().copy_in(device, host);
  return device;
}

// After a row of `guard`, so that reading the row before the first one shows.
View Args::in_after(int32_t guard, const View& host) {
  if (host.empty()) return host;
  const int64_t n_rows = host.dim(0), width = host.dim(1);
  Tensor guarded(DType::kI32, {n_rows + 1, width});
  std::fill_n(guarded.view().data<int32_t>(), width, guard);
  for (int64_t r = 0; r < n_rows; ++r) std::copy_n(host.row<int32_t>(r), width, guarded.view().row<int32_t>(r + 1));
  return in(guarded).slice_first(1, n_rows);
}

View Args::out(const View& host) {
  const View device = in(host);
  if (device_.on_cuda() && !host.empty()) outs_.push_back({device, host});
  return device;
}

PagedRows Args::in(const PagedRows& host) {
  if (!device_.on_cuda()) return host;
  PagedRows rows = host;
  const View pages(host.pages, DType::kI8, {host.n_pages * host.page_bytes});
  rows.pages = in(pages).bytes();
  rows.tables = in_after(kNoPage, host.tables);
  return rows;
}

PagedRows Args::out(const PagedRows& host) {
  const PagedRows rows = in(host);
  if (device_.on_cuda()) {
    const int64_t n_bytes = host.n_pages * host.page_bytes;
    outs_.push_back({View(rows.pages, DType::kI8, {n_bytes}, Device::kCuda), View(host.pages, DType::kI8, {n_bytes})});
  }
  return rows;
}

void Args::fetch() {
  for (const Copy& copy : outs_) {
    const Status status = device_.cuda().copy_out(copy.host, copy.device);
    LEVIN_CHECK(status.ok(), "{}", status.error().message);
  }
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
