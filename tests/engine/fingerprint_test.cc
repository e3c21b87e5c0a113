// What a fingerprint tells apart.
#include "engine/fingerprint.h"

#include <gtest/gtest.h>

#include "support/fixture.h"
#include "support/must.h"

namespace levin::test {
namespace {

// An override can change every row without a change of any file.
TEST(Fingerprint, HoldsTheOverridesOfTheConfig) {
  const auto with = [](const char* overrides) {
    return must(cache_fingerprint({.model_folder = fixture_folder("v32-shared"), .overrides = overrides}));
  };
  EXPECT_EQ(with(""), with(""));
  EXPECT_EQ(with("index_topk_freq=2"), with("index_topk_freq=2"));
  EXPECT_NE(with("index_topk_freq=2"), with(""));
  EXPECT_NE(with("index_topk_freq=2"), with("index_topk_freq=4"));
}

// The kernel sets of one device round and add differently.
TEST(Fingerprint, HoldsTheKernelSet) {
  const auto with = [](const char* kernels) {
    return must(cache_fingerprint({.model_folder = fixture_folder("v32-shared"), .kernels = kernels}));
  };
  EXPECT_EQ(with("cuda-sm90 on NVIDIA H100 (sm_90)"), with("cuda-sm90 on NVIDIA H100 (sm_90)"));
  EXPECT_NE(with("cuda-sm90 on NVIDIA H100 (sm_90)"), with("cuda-plain on NVIDIA H100 (sm_90)"));
}

}  // namespace
}  // namespace levin::test
