#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace levin {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; }

TEST(BufferTest, IsZeroedAndAligned) {
  for (const int64_t n : {int64_t{1}, int64_t{63}, int64_t{4096}, (int64_t{2} << 20) - 1, (int64_t{2} << 20) + 1}) {
    const Buffer buffer(n);
    EXPECT_EQ(buffer.n_bytes(), n);
    EXPECT_TRUE(aligned(buffer.data()));
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + n, [](std::byte b) { return b == std::byte{0}; })) << n;
  }
}

TEST(BufferTest, AMovedFromOneIsEmpty) {
  Buffer a(100);
  std::byte* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_TRUE(a.empty());  // NOLINT: what is tested
  a = std::move(b);
  EXPECT_EQ(a.data(), data);
  EXPECT_EQ(a.n_bytes(), 100);
  EXPECT_TRUE(Buffer().empty());
}

TEST(BufferTest, OfADeviceGoesBackToIt) {
  static int n_freed;
  static std::byte memory[16];
  n_freed = 0;
  {
    Buffer first = Buffer::of_device(memory, 16, [](std::byte* data) { n_freed += data == memory; });
    const Buffer second = std::move(first);
    EXPECT_EQ(second.device(), Device::kCuda);
    EXPECT_EQ(second.data(), memory);
    EXPECT_EQ(second.n_bytes(), 16);
    EXPECT_EQ(n_freed, 0);
  }
  EXPECT_EQ(n_freed, 1);
  EXPECT_EQ(Buffer(16).device(), Device::kCpu);
  EXPECT_EQ(Buffer().device(), Device::kCpu);
}

TEST(BufferTest, ForTensorCountsItsBytes) {
  EXPECT_EQ(Buffer::for_tensor(DType::kBF16, {3, 5}).n_bytes(), 30);
  EXPECT_EQ(Buffer::for_tensor(DType::kF32, {0, 5}).n_bytes(), 0);
}

TEST(ArenaTest, PiecesAreAlignedAndDoNotOverlap) {
  Arena arena;
  std::vector<std::pair<std::byte*, int64_t>> pieces;
  for (int64_t i = 0; i < 200; ++i) {
    const int64_t n = i * i * 37 % 100000;
    std::byte* data = arena.allocate_bytes(n);
    ASSERT_NE(data, nullptr);
    ASSERT_TRUE(aligned(data));
    std::memset(data, static_cast<int>(i), static_cast<size_t>(n));
    pieces.emplace_back(data, n);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [data, n] = pieces[i];
    ASSERT_TRUE(std::all_of(data, data + n, [&](std::byte b) { return b == static_cast<std::byte>(i); })) << i;
  }
}

TEST(ArenaTest, ScopesGiveBackWhatTheyTook) {
  Arena arena;
  std::byte* kept = arena.allocate_bytes(100);
  std::byte* inner = nullptr;
  {
    const ArenaScope scope(arena);
    inner = arena.allocate_bytes(1000);
    const ArenaScope nested(arena);
    EXPECT_NE(arena.allocate_bytes(10), inner);
  }
  EXPECT_EQ(arena.allocate_bytes(1000), inner);
  EXPECT_NE(inner, kept);
}

TEST(ArenaTest, BlocksComeFromItsSource) {
  std::vector<int64_t> asked;
  Arena arena(
      [&](int64_t n_bytes) {
        asked.push_back(n_bytes);
        return Buffer::of_device(static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(n_bytes))),
                                 n_bytes, [](std::byte* data) { std::free(data); });
      },
      256);
  arena.reserve(10000);
  EXPECT_EQ(asked, std::vector<int64_t>{10240});
  const View first = arena.allocate(DType::kF32, {10});
  EXPECT_EQ(first.device(), Device::kCuda);
  EXPECT_EQ(arena.allocate_bytes(1) - first.bytes(), 256);
  arena.reset();
  EXPECT_EQ(arena.allocate_bytes(10240), first.bytes());  // all of what was reserved, and nothing else
  EXPECT_EQ(arena.n_blocks(), 1);
  EXPECT_EQ(arena.allocate(DType::kF32, {4096}).device(), Device::kCuda);  // more than that is had all the same
  EXPECT_EQ(asked, (std::vector<int64_t>{10240, 16384}));
}

TEST(BufferTest, WhatIsBorrowedIsLeftAlone) {
  const std::vector<std::byte> owned(100, std::byte{7});
  {
    const Buffer borrowed = Buffer::borrowed(owned.data(), 100);
    EXPECT_EQ(borrowed.data(), owned.data());
    EXPECT_EQ(borrowed.device(), Device::kCpu);
    EXPECT_EQ(Buffer::borrowed(owned.data(), 10, Device::kCuda).device(), Device::kCuda);
  }
  EXPECT_EQ(owned[99], std::byte{7});
}

TEST(ArenaTest, ASecondStepOfTheSameSizesTakesNoMoreMemory) {
  Arena arena;
  int64_t after_first = 0;
  for (int step = 0; step < 3; ++step) {
    for (const int64_t megabytes : {1, 9, 3, 30, 2}) arena.allocate_bytes(megabytes << 20);
    if (step == 0) after_first = arena.peak_bytes();
    EXPECT_EQ(arena.peak_bytes(), after_first);
    arena.reset();
  }
  EXPECT_GE(after_first, int64_t{45} << 20);
}

TEST(ArenaTest, AllocatesTensors) {
  Arena arena;
  const View v = arena.allocate(DType::kI32, {2, 3});
  EXPECT_EQ(v.describe(), "i32 [2, 3]");
  v.row<int32_t>(1)[2] = 5;
  EXPECT_EQ(v.data<int32_t>()[5], 5);
}

}  // namespace
}  // namespace levin
