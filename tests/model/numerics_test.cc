#include "model/numerics.h"

#include <gtest/gtest.h>

#include "arch/deepseek_v4/architecture.h"
#include "arch/glm/architecture.h"
#include "support/must.h"

namespace levin {
namespace {

using ops::Operand;

TEST(NumericsTest, ReferenceRoundsNothing) {
  const Numerics n = test::must(make_numerics(NumericsMode::kReference, "auto"));
  EXPECT_EQ(n.fp8_input, Operand::kF32);
  EXPECT_EQ(n.input, Operand::kF32);
  EXPECT_EQ(n.absorbed, Operand::kF32);
  EXPECT_EQ(n.latent, CacheDType::kF32);
  EXPECT_EQ(n.index_keys, CacheDType::kF32);
  EXPECT_FALSE(n.hadamard());
  EXPECT_EQ(n.latent_norm_eps, 1e-6f);  // what transformers builds these norms with
}

TEST(NumericsTest, ElsewhereTheLatentNormsHaveTheModelsEpsilon) {
  EXPECT_EQ(test::must(make_numerics(NumericsMode::kOfficial, "auto")).latent_norm_eps, std::nullopt);
  EXPECT_EQ(test::must(make_numerics(NumericsMode::kFast, "auto")).latent_norm_eps, std::nullopt);
}

TEST(NumericsTest, OfficialRoundsInputsOfFp8MatricesAndBothCaches) {
  const Numerics n = test::must(make_numerics(NumericsMode::kOfficial, "auto"));
  EXPECT_EQ(n.fp8_input, Operand::kFp8);
  EXPECT_EQ(n.input, Operand::kF32);
  EXPECT_EQ(n.latent, CacheDType::kFp8);
  EXPECT_EQ(n.index_keys, CacheDType::kFp8);
  EXPECT_TRUE(n.hadamard());
}

TEST(NumericsTest, OfficialDiffersForDeepseekV4) {
  const Numerics official = test::must(make_numerics(NumericsMode::kOfficial, "auto"));
  EXPECT_FALSE(numerics_of_family(official, kGlmMoeDsa).weigh_hidden);
  const Numerics v4 = numerics_of_family(official, kDeepseekV4);
  EXPECT_TRUE(v4.fp4_index);
  EXPECT_TRUE(v4.weigh_hidden);
  for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kFast})
    EXPECT_FALSE(numerics_of_family(test::must(make_numerics(mode, "auto")), kDeepseekV4).weigh_hidden);
}

TEST(NumericsTest, FastTakesItsCachesFromTheOption) {
  EXPECT_EQ(test::must(make_numerics(NumericsMode::kFast, "auto")).latent, CacheDType::kBF16);
  EXPECT_EQ(test::must(make_numerics(NumericsMode::kFast, "bf16")).index_keys, CacheDType::kBF16);
  const Numerics fp8 = test::must(make_numerics(NumericsMode::kFast, "fp8"));
  EXPECT_EQ(fp8.latent, CacheDType::kFp8);
  EXPECT_TRUE(fp8.hadamard());
  EXPECT_EQ(fp8.input, Operand::kBF16);
}

TEST(NumericsTest, CacheDtypesElsewhereNameBothOptions) {
  for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial}) {
    const auto numerics = make_numerics(mode, "bf16");
    ASSERT_FALSE(numerics.ok());
    EXPECT_EQ(numerics.error().kind, ErrorKind::kUsage);
    EXPECT_NE(numerics.error().message.find("--kv-cache-dtype bf16 works only with --numerics fast"),
              std::string::npos);
  }
  EXPECT_FALSE(make_numerics(NumericsMode::kFast, "int3").ok());
}

TEST(NumericsTest, ADescriptionBeginsWithTheMode) {
  for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast}) {
    EXPECT_EQ(test::must(make_numerics(mode, "auto")).describe().find(numerics_mode_name(mode)), 0u);
  }
}

}  // namespace
}  // namespace levin
