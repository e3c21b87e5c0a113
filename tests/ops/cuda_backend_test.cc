// What the CUDA backend is asked for and does not have: without a device it says what is missing, with one it names the
// shape, the type or the NaN.
#include "ops/cuda_backend.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/index_topk.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/paged_cache.h"
#include "ops/quantize.h"
#include "ops/sparse_attention.h"
#include "ops/weights.h"

namespace levin::testing {
namespace {

TEST(OpenCudaTest, SaysInOneLineWhatIsMissing) {
  const Result<std::unique_ptr<CudaBackend>> none = open_cuda({.device_index = 1 << 20});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kNoDevice);
  EXPECT_EQ(none.error().message, cuda::find_device(1 << 20).error().message);
  EXPECT_EQ(none.error().message.find('\n'), std::string::npos);
}

class CudaBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process with a CUDA device cannot be forked
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
    device_ = backends_under_test().back();
  }
  TestDevice* device_ = nullptr;
};
using CudaBackendDeathTest = CudaBackendTest;

TEST_F(CudaBackendTest, IsUnderTest) { EXPECT_TRUE(device_->on_cuda()); }

TEST_F(CudaBackendTest, RefusesWeightsThatItsProductsCannotRead) {
  Random random(1);
  for (const auto& [dtype, n, k, why] : {std::tuple{DType::kF8E4M3, 20, 128, "multiples of 8, not 20"},
                                         {DType::kF8E4M3, 16, 24, "multiples of 16, not 24"},
                                         {DType::kMxfp4, 12, 64, "multiples of 8, not 12"}}) {
    const TestMatrix w = random_matrix(random, dtype, n, k);
    const Result<Matrix> uploaded = device_->cuda().upload(w.source());
    ASSERT_FALSE(uploaded.ok());
    EXPECT_NE(uploaded.error().message.find(why), std::string::npos) << uploaded.error().message;
  }
  const std::vector<float> f32(64);
  const Result<Matrix> plain = device_->cuda().upload({.data = f32.data(), .dtype = DType::kF32, .n = 8, .k = 8});
  ASSERT_FALSE(plain.ok());
  EXPECT_NE(plain.error().message.find("f8_e4m3 or mxfp4, not f32"), std::string::npos) << plain.error().message;
}

TEST_F(CudaBackendDeathTest, NamesTheShapeWithoutAKernel) {
  OpContext& ctx = device_->ctx();
  Args on(*device_);
  const auto zeros = [&](DType dtype, std::initializer_list<int64_t> shape) { return on.in(Tensor(dtype, shape)); };
  const View ids = zeros(DType::kI32, {2}), score = zeros(DType::kF32, {2, 256});
  EXPECT_DEATH(ops::select_topk(ctx, {.score = score, .begin = ids, .end = ids, .topk = zeros(DType::kI32, {2, 100})}),
               "a multiple of 64 up to 2048, not 100");
  const Tensor host(DType::kI32, {2, 64});
  EXPECT_DEATH(ops::select_topk(ctx, {.score = score, .begin = ids, .end = ids, .topk = host}),
               "topk is i32 .2, 64., expected it on cuda");
  EXPECT_DEATH(ops::rms_norm(ctx, {.x = score, .out = Tensor(DType::kF32, {2, 256})}),
               "rms_norm: out is f32 .2, 256., expected it on cuda");

  const IndexKeyFormat keys = index_key_format(CacheDType::kFp8, 128);
  const PagedCache cache(keys.page_bytes(), 1, 256, 0);
  const ops::IndexQuery query{.q = zeros(DType::kF8E4M3, {2, 24, 128}),
                              .w = zeros(DType::kF32, {2, 24}),
                              .seq = ids,
                              .visible = ids,
                              .format = keys,
                              .cache = on.in(cache.rows())};
  EXPECT_DEATH(ops::index_scores(ctx, {.query = query, .score = score}), "16, 32 or 64 heads, not 24");

  const LatentFormat rows = latent_format(CacheDType::kFp8, 512, 64);
  const PagedCache latent(rows.page_bytes(), 1, 256, 0);
  ops::SparseAttention attention{.q_latent = zeros(DType::kBF16, {2, 129, 512}),
                                 .q_rope = zeros(DType::kBF16, {2, 129, 64}),
                                 .seq = ids,
                                 .scale = 1,
                                 .format = rows,
                                 .rows = {.cache = on.in(latent.rows()), .topk = zeros(DType::kI32, {2, 64})},
                                 .out = zeros(DType::kF32, {2, 129, 512})};
  EXPECT_DEATH(ops::sparse_attention(ctx, attention), "1 to 128 heads, not 129");
  attention.q_latent = zeros(DType::kF32, {2, 129, 512});
  attention.q_rope = zeros(DType::kF32, {2, 129, 64});
  EXPECT_DEATH(ops::sparse_attention(ctx, attention), "on CUDA queries are bf16");
}

TEST_F(CudaBackendDeathTest, FindsNanWhenItWaits) {
  Tensor score(DType::kF32, {1, 256}), logits(DType::kF32, {3, 20});
  score.at(99) = logits.at(45) = std::numeric_limits<float>::quiet_NaN();
  OpContext& ctx = device_->ctx();
  Args on(*device_);
  const Tensor topk(DType::kI32, {1, 64}), experts(DType::kI32, {3, 2}), weights(DType::kF32, {3, 2});
  EXPECT_DEATH(
      {
        ops::select_topk(ctx, {.score = on.in(score),
                               .begin = on.in(i32_tensor({0})),
                               .end = on.in(i32_tensor({256})),
                               .topk = on.out(topk)});
        on.fetch();
      },
      "select_topk: a score is NaN");
  EXPECT_DEATH(
      {
        ops::route_experts(ctx, {.logits = on.in(logits), .topk = on.out(experts), .weights = on.out(weights)});
        on.fetch();
      },
      "route_experts: a score of row 2 is NaN");
}

}  // namespace
}  // namespace levin::testing
