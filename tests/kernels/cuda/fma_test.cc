// The trees of the kernels rest on -fmad=false: the compiler fuses nothing that is not written as one operation.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "fma_probe.h"
#include "kernels/cuda/device_array.h"

namespace levin::cuda {
namespace {

TEST(FmaTest, TheCompilerFusesNothing) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  const Stream stream = must(Stream::create());
  // The square of 1 + 2^-12 lies 2^-24 above the f32 that it is rounded to.
  constexpr float kA = 1 + 0x1p-12f, kSquare = 1 + 0x1p-11f;
  const DeviceArray<FmaTerms> terms(stream, std::vector<FmaTerms>{{kA, kA, -kSquare}});
  const DeviceArray<FmaResults> results(stream, 1);
  probe_fma(terms.data(), results.data(), stream.handle());
  EXPECT_EQ(results.host()[0].apart, 0.0f) << "kernels are compiled without -fmad=false";
  EXPECT_EQ(results.host()[0].fused, 0x1p-24f);
}

}  // namespace
}  // namespace levin::cuda
