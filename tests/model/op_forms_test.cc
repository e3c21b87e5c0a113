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
  EXPECT_TRUE(has(v32, "sparse_attention of 128 heads, fp8 rows of 512 + 64, 2048 indices"));
  EXPECT_TRUE(has(v32, "route_experts of 8 of 256 experts in 8 groups"));
  EXPECT_FALSE(has(v32, "read_streams of 4 streams"));
  EXPECT_TRUE(has(forms_of("deepseek-v3.2", NumericsMode::kReference), "write_latent of f32 rows of 512 + 64"));
}

TEST(OpFormsTest, OfLinearAttentionReadNoRows) {
  const std::vector<std::string> flash = forms_of("glm-5.3-flash", NumericsMode::kReference);
  EXPECT_TRUE(has(flash, "short_conv of 64 heads"));
  EXPECT_TRUE(has(flash, "delta_rule of 64 heads"));
  EXPECT_TRUE(has(flash, "expand_topk"));
  EXPECT_TRUE(has(flash, "index_topk of 32 heads, f32 keys of 128, top-k 512"));  // pools of 4 tokens
  EXPECT_TRUE(has(flash, "sparse_attention of 64 heads, f32 rows of 512 + 0, 2051 indices"));
  for (const std::string& form : flash) EXPECT_EQ(form.find("rows of 0 + 0"), std::string::npos) << form;
}

TEST(OpFormsTest, HaveAKernelOnEverySet) {
  for (const char* folder : {"deepseek-v3.2", "glm-5", "glm-5.3", "glm-5.3-flash", "deepseek-v4-flash"}) {
    const ModelConfig config =
        test::must(load_model_config(std::string(LEVIN_SOURCE_DIR "/tests/fixtures/") + folder)).config;
    for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast}) {
      const Numerics numerics = numerics_of_family(test::must(make_numerics(mode, "auto")), *config.family);
      const std::vector<OpForm> forms = op_forms(config, numerics);
      for (const Isa isa : built_isas()) {
        EXPECT_TRUE(choose_kernels(cpu_kernel_set(isa), forms).ok()) << folder;
      }
      for (const cuda::KernelSet set : {cuda::KernelSet::kPlain, cuda::KernelSet::kSm90}) {
        EXPECT_TRUE(choose_kernels(cuda_kernel_set(set), forms).ok()) << folder;
      }
    }
  }
}

// What runs on which kernels of a Hopper device, "op of form" each.
std::vector<std::string> tuned_forms(const std::string& folder) {
  const ModelConfig config = test::must(load_model_config(LEVIN_SOURCE_DIR "/tests/fixtures/" + folder)).config;
  const Numerics numerics =
      numerics_of_family(test::must(make_numerics(NumericsMode::kOfficial, "auto")), *config.family);
  std::vector<std::string> texts;
  for (const ChosenKernel& k :
       test::must(choose_kernels(cuda_kernel_set(cuda::KernelSet::kSm90), op_forms(config, numerics)))) {
    if (k.kernel == "cuda-sm90") texts.push_back(k.form.describe());
  }
  return texts;
}

TEST(OpFormsTest, ProductsAreThoseOfTheWeights) {
  const std::vector<std::string> v32 = forms_of("deepseek-v3.2", NumericsMode::kOfficial);
  EXPECT_TRUE(has(v32, "matmul of f8_e4m3 [1536, 7168] by e4m3 rows"));
  EXPECT_TRUE(has(v32, "matmul of bf16 [256, 7168]"));     // router
  EXPECT_TRUE(has(v32, "matmul of bf16 [129280, 7168]"));  // head
  EXPECT_TRUE(has(v32, "matmul_per_head of f8_e4m3 [512, 128]"));
  EXPECT_TRUE(has(v32, "ffn of f8_e4m3 [18432, 7168] by e4m3 rows"));
  EXPECT_TRUE(has(v32, "expert_ffn of 8 of 256 experts in 8 groups, f8_e4m3 [2048, 7168] by e4m3 rows"));
  EXPECT_TRUE(has(forms_of("deepseek-v3.2", NumericsMode::kFast), "matmul of f8_e4m3 [1536, 7168]"));
  EXPECT_TRUE(has(forms_of("deepseek-v4-flash", NumericsMode::kOfficial),
                  "route_experts of 6 of 256 experts, other scores than sigmoid"));
}

TEST(OpFormsTest, OfV32AndGlmRunOnTheTunedKernelsWhereTheyHaveThem) {
  for (const char* folder : {"deepseek-v3.2", "glm-5"}) {
    const std::vector<std::string> tuned = tuned_forms(folder);
    const auto has_op = [&](const std::string& op) {
      return std::ranges::any_of(tuned, [&](const std::string& text) { return text.starts_with(op + " of "); });
    };
    for (const char* op :
         {"write_latent", "index_queries", "write_index_keys", "index_topk", "sparse_attention", "route_experts"}) {
      EXPECT_TRUE(has_op(op)) << folder << " " << op;
    }
    EXPECT_TRUE(has_op("matmul_per_head")) << folder;
  }
  const std::vector<std::string> v32 = tuned_forms("deepseek-v3.2");
  EXPECT_TRUE(has(v32, "matmul of f8_e4m3 [576, 7168] by e4m3 rows"));
  EXPECT_TRUE(has(v32, "matmul of bf16 [256, 7168]"));     // router
  EXPECT_TRUE(has(v32, "matmul of bf16 [129280, 7168]"));  // head
  EXPECT_TRUE(has(v32, "expert_ffn of 8 of 256 experts in 8 groups, f8_e4m3 [2048, 7168] by e4m3 rows"));
  EXPECT_TRUE(has(v32, "ffn of f8_e4m3 [18432, 7168] by e4m3 rows"));
}

TEST(OpFormsTest, OfV4RunOnTheTunedKernelsInItsProductsAlone) {
  for (const std::string& text : tuned_forms("deepseek-v4-flash")) {
    EXPECT_TRUE(text.starts_with("matmul of ") || text.starts_with("matmul_per_head of ")) << text;
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
