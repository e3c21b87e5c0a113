// Device memory, streams, events, graphs and the arena, on a real device.
#include "tensor/cuda/device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <optional>
#include <vector>

#include "base/recovery.h"
#include "kernels/cuda/device_array.h"
#include "tensor/cuda/upload.h"

namespace levin::cuda {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

std::vector<int32_t> counting(int32_t n, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_F(DeviceTest, CopiesThereAndBack) {
  const std::vector<int32_t> values = counting(100'000, 7);
  EXPECT_EQ(DeviceArray<int32_t>(*stream_, values).host(), values);
}

// And not when they first run.
TEST_F(DeviceTest, KernelsAreLoadedWithTheContext) {
  constexpr int kEager = 1;  // CU_MODULE_EAGER_LOADING
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr);
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuModuleGetLoadingMode"));
  ASSERT_NE(ask, nullptr);
  int mode = 0;
  EXPECT_EQ(ask(&mode), 0);
  EXPECT_EQ(mode, kEager);
}

TEST_F(DeviceTest, TooLargeAnAllocationIsAnErrorThatNamesTheSize) {
  const Result<DeviceBuffer> buffer = DeviceBuffer::create(int64_t{1} << 50);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_NE(buffer.error().message.find("1125899906842624"), std::string::npos) << buffer.error().message;
  EXPECT_EQ(DeviceArray<int32_t>(*stream_, counting(5, 0)).host(), counting(5, 0));  // nothing else is broken
}

// The device is not taken for a lost one.
TEST_F(DeviceTest, AWrongCallIsToldByItsCheckAlone) {
  const Recovery recovery;
  const int32_t value = 7;
  EXPECT_THROW(copy_to_device(*stream_, nullptr, &value, sizeof(value)), CheckFailed);
  EXPECT_TRUE(stream_->synchronize().ok());
}

// Of all sizes, with gaps between them that are filled and others that are not, by several threads.
TEST_F(DeviceTest, AnUploadCopiesEveryByteToItsPlace) {
  constexpr int64_t kMost = int64_t{20} << 20;
  const DeviceArray<uint8_t> device(*stream_, 5 * kMost);
  device.fill(0x5B);
  std::vector<uint8_t> expected(static_cast<size_t>(5 * kMost), 0x5B);
  std::vector<std::vector<uint8_t>> sources;
  std::vector<CopyIn> copies;
  int64_t at = 0;
  const auto add = [&](int64_t gap, int64_t n) {
    std::vector<uint8_t>& source = sources.emplace_back(static_cast<size_t>(n));
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7 + i / 251 + sources.size());
    if (gap <= DeviceMemory::kCopyGap && at > 0) std::fill_n(expected.begin() + at, gap, uint8_t{0});
    at += gap;
    std::copy(source.begin(), source.end(), expected.begin() + at);
    copies.push_back({.to = reinterpret_cast<std::byte*>(device.data()) + at,
                      .from = reinterpret_cast<const std::byte*>(source.data()),
                      .n_bytes = n});
    at += n;
  };
  add(3, 1);
  for (int i = 0; i < 50; ++i) add(i % 5 == 0 ? 4096 : 37 * (i % 7), 1 + 40'000 * (i % 11));
  add(0, kMost + 5);  // three parts
  add(256, (int64_t{8} << 20) - 100);
  add(200, 64);  // the end of a part within a gap
  add(257, 1000);
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    must(upload(*stream_, 0, copies, pool));
    EXPECT_TRUE(device.host() == expected) << n_threads << " threads";
    device.fill(0x5B);
  }
  ThreadPool pool(2);
  must(upload(*stream_, 0, {}, pool));
}

TEST_F(DeviceTest, AnEventOrdersTwoStreams) {
  const Stream other = must(Stream::create());
  const Event ready = must(Event::create()), done = must(Event::create());
  const int64_t n = 1 << 24;
  const DeviceArray<uint8_t> buffer(*stream_, n);
  for (uint8_t round = 1; round < 20; ++round) {
    buffer.fill(round);
    ready.record(*stream_);
    other.wait(ready);
    std::vector<uint8_t> seen(static_cast<size_t>(n));
    copy_to_host(other, seen.data(), reinterpret_cast<const std::byte*>(buffer.data()), n);
    done.record(other);
    must(done.synchronize());
    ASSERT_EQ(seen.front(), round);
    ASSERT_EQ(seen.back(), round);
    EXPECT_GE(done.ms_since(ready), 0);
  }
}

TEST_F(DeviceTest, AGraphReplaysWithNewContents) {
  const PinnedBuffer source = must(PinnedBuffer::create(4000));
  auto* values = reinterpret_cast<int32_t*>(source.data());
  const DeviceArray<int32_t> target(*stream_, 1000);
  const Graph graph = must(Graph::capture(
      *stream_, [&] { copy_to_device(*stream_, reinterpret_cast<std::byte*>(target.data()), source.data(), 4000); }));
  for (int32_t first : {1, 500}) {
    std::iota(values, values + 1000, first);
    graph.launch(*stream_);
    EXPECT_EQ(target.host(), counting(1000, first));
  }
}

// Memory of the host may run out while a step is recorded. Its requests end, and the stream must not stay in the recording.
TEST_F(DeviceTest, ARecordingThatThrowsLeavesTheStreamAsItWas) {
  const auto run_out = [] { throw std::bad_alloc(); };
  EXPECT_THROW(static_cast<void>(Graph::capture(*stream_, run_out)), std::bad_alloc);
  must(stream_->synchronize());
  EXPECT_THROW(
      static_cast<void>(Graph::capture_if(*stream_, [&](GraphCondition) { run_out(); }, [] {})), std::bad_alloc);
  must(stream_->synchronize());
  EXPECT_EQ(DeviceArray<int32_t>(*stream_, counting(5, 0)).host(), counting(5, 0));
}

TEST_F(DeviceTest, TheArenaAlignsReusesAndRemembersItsPeak) {
  DeviceArena arena = must(DeviceArena::create(1 << 20));
  const std::byte* first = arena.allocate_bytes(3);
  const int64_t mark = arena.mark();
  const View view = arena.allocate(DType::kF32, {5, 7});
  EXPECT_EQ(view.bytes() - first, kDeviceAlignment);
  EXPECT_EQ(view.dim(1), 7);
  EXPECT_EQ(view.device(), Device::kCuda);
  arena.release(mark);
  EXPECT_EQ(arena.allocate_bytes(1), view.bytes());
  EXPECT_EQ(arena.peak_bytes(), kDeviceAlignment + 5 * 7 * 4);
  EXPECT_DEATH(arena.allocate_bytes(1 << 20), "device arena: 1048576 bytes wanted");
}

}  // namespace
}  // namespace levin::cuda
