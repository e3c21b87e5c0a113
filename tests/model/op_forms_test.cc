#include "model/op_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "arch/load_config.h"
#include "support/must.h"

namespace levin {
namespace {

std::vector<std::string> forms_of(const std::string& folder, NumericsMode mode) {
  const ModelConfig config = test::must(load_model_config(LEVIN_SOURCE_DIR "/tests/fixtures/" + folder)).config;
  const Numerics numerics = numerics_of_family(test::must(make_numerics(mode, "auto")), *config.family);
  std::vector<std::string> texts;
  for (const OpForm& form : op_forms(config, numerics)) texts.push_back(form.describe());
  return texts;
}

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::ranges::find(texts, text) != texts.end();
}

TEST(OpFormsTest, AreThoseOfTheReleasedModels) {
  const std::vector<std::string> v32 = forms_of("deepseek-v3.2", NumericsMode::kOfficial);
  EXPECT_TRUE(has(v32, "write_latent of fp8 rows of 512 + 64"));
  EXPECT_TRUE(has(v32, "index_topk of 64 heads, fp8 keys of 128, top-k 2048"));
  EXPECT_TRUE(has(v32, "sparse_attention of 128 heads, fp8 rows of 512 + 64, top-k 2048"));
  EXPECT_TRUE(has(v32, "route_experts of 8 of 256 experts in 8 groups"));
  EXPECT_FALSE(has(v32, "read_streams of 4 streams"));
  EXPECT_TRUE(has(forms_of("deepseek-v3.2", NumericsMode::kReference), "write_latent of f32 rows of 512 + 64"));
}

TEST(OpFormsTest, OfLinearAttentionReadNoRows) {
  const std::vector<std::string> flash = forms_of("glm-5.3-flash", NumericsMode::kReference);
  EXPECT_TRUE(has(flash, "short_conv of 64 heads"));
  EXPECT_TRUE(has(flash, "delta_rule of 64 heads"));
  EXPECT_TRUE(has(flash, "expand_topk"));
  EXPECT_TRUE(has(flash, "sparse_attention of 64 heads, f32 rows of 512 + 0, top-k 2051"));
  for (const std::string& form : flash) EXPECT_EQ(form.find("rows of 0 + 0"), std::string::npos) << form;
}

TEST(OpFormsTest, HaveAKernelOnEverySet) {
  for (const char* folder : {"deepseek-v3.2", "glm-5", "glm-5.3", "glm-5.3-flash", "deepseek-v4-flash"}) {
    const ModelConfig config =
        test::must(load_model_config(std::string(LEVIN_SOURCE_DIR "/tests/fixtures/") + folder)).config;
    for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast}) {
      const Numerics numerics = numerics_of_family(test::must(make_numerics(mode, "auto")), *config.family);
      for (const Isa isa : built_isas()) {
        EXPECT_TRUE(choose_kernels(cpu_kernel_set(isa), op_forms(config, numerics)).ok()) << folder;
      }
      EXPECT_TRUE(choose_kernels(cuda_kernel_set(), op_forms(config, numerics)).ok()) << folder;
    }
  }
}

TEST(OpFormsTest, OfAWideIndexerHaveNoneWithFp8Keys) {
  ModelConfig config = test::must(load_model_config(LEVIN_SOURCE_DIR "/tests/fixtures/deepseek-v3.2")).config;
  config.d_index = 256;
  const Numerics numerics = test::must(make_numerics(NumericsMode::kOfficial, "auto"));
  const Result<std::vector<ChosenKernel>> none =
      choose_kernels(cpu_kernel_set(Isa::kPlain), op_forms(config, numerics));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(none.error().message.find("fp8 keys of 256"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace levin
