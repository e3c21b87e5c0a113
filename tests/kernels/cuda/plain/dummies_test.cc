// Dummy values that a device makes against those of the host, of all types, at any place and in any number.
#include "kernels/cuda/plain/dummies.h"

#include "kernels/cuda/plain/plain_test.h"

namespace levin::cuda::plain {
namespace {

using DummiesTest = PlainTest;

TEST_F(DummiesTest, HaveTheBitsOfTheHost) {
  constexpr std::byte kUntouched{0x5B};
  for (const DummyType type : {DummyType::kF32, DummyType::kBF16, DummyType::kE4M3, DummyType::kFp4Pairs}) {
    for (const int64_t n : {1, 7, 16, 4096, 100'003}) {
      for (const int64_t offset : {0, 1, 3, 8}) {
        const DummyTensor tensor{
            .type = type, .key = dummy_key("layers.3.weight") + static_cast<uint64_t>(n), .width = 0.07f};
        std::vector<std::byte> expected(static_cast<size_t>(offset + n * dummy_bytes(type) + 16), kUntouched);
        std::vector<std::byte> found = expected;
        draw_dummy_values(tensor, 0, n, expected.data() + offset);
        DeviceArgs args(*stream_);
        std::byte* device = args.in(found);
        make_dummies({.tensor = tensor, .n = n, .to = device + offset}, stream());
        copy_to_host(*stream_, found.data(), device, std::ssize(found));
        must(stream_->synchronize());
        EXPECT_TRUE(found == expected) << static_cast<int>(type) << ": " << n << " at " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace levin::cuda::plain
