#include "base/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace levin {
namespace {

constexpr Isa kAll[] = {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16};

TEST(CpuTest, ASetIsSupportedWithAllThoseBeforeIt) {
  const CpuInfo cpu = cpu_info();
  EXPECT_TRUE(cpu.supports(Isa::kPlain));
  EXPECT_TRUE(cpu.supports(cpu.best_isa()));
  for (const Isa isa : kAll) EXPECT_EQ(cpu.supports(isa), isa <= cpu.best_isa()) << isa_name(isa);
}

TEST(CpuTest, TheBestSetFollowsFromWhatTheProcessorHas) {
  CpuInfo cpu;
  EXPECT_EQ(cpu.best_isa(), Isa::kPlain);
  cpu.avx2 = true;
  EXPECT_EQ(cpu.best_isa(), Isa::kAvx2);
  cpu.avx512 = true;
  EXPECT_EQ(cpu.best_isa(), Isa::kAvx512);
  cpu.avx512_bf16 = true;
  EXPECT_EQ(cpu.best_isa(), Isa::kAvx512Bf16);
  EXPECT_EQ(cpu.preferred_isa(kAll), Isa::kAvx512Bf16);
  cpu.half_rate_bf16_dot = true;
  EXPECT_EQ(cpu.best_isa(), Isa::kAvx512Bf16);
  EXPECT_EQ(cpu.preferred_isa(kAll), Isa::kAvx512);
  cpu.amx_bf16 = true;
  EXPECT_EQ(cpu.best_isa(), Isa::kAmxBf16);
  EXPECT_EQ(cpu.preferred_isa(kAll), Isa::kAmxBf16);
}

TEST(CpuTest, OnlySetsThatWereBuiltArePreferred) {
  const CpuInfo cpu = {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .half_rate_bf16_dot = true};
  constexpr Isa kFew[] = {Isa::kPlain, Isa::kAvx2};
  EXPECT_EQ(cpu.preferred_isa(kFew), Isa::kAvx2);
  EXPECT_EQ(CpuInfo{}.preferred_isa(kFew), Isa::kPlain);
  constexpr Isa kWithoutAvx512[] = {Isa::kPlain, Isa::kAvx2, Isa::kAvx512Bf16};  // slow, but wider than what is left
  EXPECT_EQ(cpu.preferred_isa(kWithoutAvx512), Isa::kAvx512Bf16);
}

TEST(CpuTest, UsableSetsWereBuiltAndAreSupported) {
  EXPECT_EQ(built_isas().front(), Isa::kPlain);
  for (const Isa isa : kAll) {
    const bool built = std::ranges::find(built_isas(), isa) != built_isas().end();
    EXPECT_EQ(is_usable(isa), built && cpu_info().supports(isa)) << isa_name(isa);
  }
  EXPECT_TRUE(is_usable(cpu_info().preferred_isa()));
}

TEST(CpuTest, ThereIsAProcessor) {
  EXPECT_GE(cpu_info().n_cores, 1);
  EXPECT_FALSE(cpu_info().model_name.empty());
}

}  // namespace
}  // namespace levin
