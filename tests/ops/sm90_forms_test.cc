// The registry takes no form for cuda-sm90 that its kernels refuse.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/index/index_scores.h"
#include "kernels/cuda/index/topk.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/rows/row_chains.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"
#include "ops/kernel_registry.h"

namespace levin {
namespace {

bool takes(const OpForm& form) { return why_not_sm90(form).empty(); }

TEST(Sm90FormsTest, OfProductsAreThoseOfTheKernels) {
  for (int n = 0; n <= 64; ++n) {
    for (int k = 1; k <= 64; ++k) {
      const OpForm form{.op = "matmul", .weights = DType::kF8E4M3, .fp8_input = true, .n = n, .k = k};
      EXPECT_EQ(takes(form) && n > 0, cuda::gemm_fp8_support({.n = n, .k = k}).empty() && n > 0) << n << ", " << k;
      OpForm block = form;
      block.op = "ffn";
      if (takes(block) && n > 0) {
        EXPECT_TRUE(cuda::gemm_fp8_support({.n = n, .k = k}).empty() &&
                    cuda::gemm_fp8_support({.n = k, .k = n}).empty());
      }
    }
  }
  const OpForm experts{.op = "expert_ffn",
                       .n_experts = cuda::kMaxExperts,
                       .n_active = cuda::kMaxActive,
                       .weights = DType::kF8E4M3,
                       .fp8_input = true,
                       .n = 32,
                       .k = 64};
  EXPECT_TRUE(takes(experts));
  EXPECT_TRUE(cuda::gemm_fp8_support({.n = 32, .k = 64, .n_groups = cuda::kMaxExperts}).empty());
  for (const int n_experts : {1, cuda::kMaxExperts - 1, cuda::kMaxExperts}) {
    const bool one_more = cuda::gemm_fp8_support({.n = 32, .k = 64, .n_groups = n_experts + 1}).empty();
    EXPECT_EQ(cuda::shared_may_be_a_group(cuda::kMaxTokensOfShared, n_experts), one_more) << n_experts;
    EXPECT_FALSE(cuda::shared_may_be_a_group(cuda::kMaxTokensOfShared + 1, n_experts));
  }
  OpForm more = experts;
  more.n_experts += 1;
  EXPECT_FALSE(takes(more));
  more = experts;
  more.n_active += 1;
  EXPECT_FALSE(takes(more));
}

TEST(Sm90FormsTest, OfProductsWithF32RowsAreThoseOfTheKernel) {
  for (const DType weights : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kMxfp4, DType::kNvfp4}) {
    for (int k = 1; k <= 64; ++k) {
      for (const char* op : {"matmul", "matmul_per_head"}) {
        EXPECT_EQ(takes({.op = op, .weights = weights, .n = 5, .k = k}), cuda::gemm_f32_support(weights, k).empty())
            << op << " " << dtype_name(weights) << ", " << k;
      }
    }
  }
}

TEST(Sm90FormsTest, OfTheIndexerAreThoseOfTheKernels) {
  for (int n_heads = 1; n_heads <= 128; ++n_heads) {
    for (const int d_index : {64, 128}) {
      for (const int n_topk : {1, 63, 64, 100, 2048, 2112}) {
        const OpForm form{.op = "index_topk",
                          .keys = index_key_format(CacheDType::kFp8, d_index),
                          .n_heads = n_heads,
                          .n_topk = n_topk};
        EXPECT_EQ(takes(form), cuda::index_support({.n_heads = n_heads, .d_index = d_index}).empty() &&
                                   cuda::topk_support(n_topk).empty())
            << form.describe();
      }
    }
  }
}

TEST(Sm90FormsTest, OfAttentionAreThoseOfTheKernels) {
  for (const auto& [d_latent, d_rope] : {std::pair{512, 64}, {512, 32}, {448, 64}}) {
    const LatentFormat rows = latent_format(CacheDType::kFp8, d_latent, d_rope);
    EXPECT_EQ(takes({.op = "write_latent", .rows = rows}),
              cuda::chain_support({.d_model = 16, .d_latent = d_latent, .d_rope = d_rope}).empty());
    for (const int n_heads : {1, 128, 129}) {
      for (const int n_topk : {64, 96, 2048, 4096}) {
        const OpForm form{.op = "sparse_attention", .rows = rows, .n_heads = n_heads, .n_topk = n_topk};
        EXPECT_EQ(takes(form), cuda::sparse_mla_support(
                                   {.n_heads = n_heads, .d_latent = d_latent, .d_rope = d_rope, .n_topk = n_topk})
                                   .empty())
            << form.describe();
      }
    }
  }
}

}  // namespace
}  // namespace levin
