// What the CUDA backend is asked for beyond its tuned kernels: without a device it says what is missing, with one it runs the
// plain kernels, and marks the rows whose values are no numbers.
#include "ops/cuda_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

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

TEST_F(CudaBackendTest, StampsOfItsClockAscendInTheOrderOfTheWork) {
  CudaBackend& cuda = device_->cuda();
  Result<Buffer> pinned = cuda.allocate_pinned(3 * sizeof(int64_t));
  ASSERT_TRUE(pinned.ok()) << pinned.error().message;
  auto* stamps = reinterpret_cast<int64_t*>(pinned->data());
  const Tensor x(DType::kF32, {1000, 4096});
  Args args(*device_);
  cuda.stamp_time(&stamps[0]);
  ops::rms_norm(device_->ctx(), {.x = args.in(x), .weight = {}, .eps = 1e-6f, .out = args.out(x)});
  cuda.stamp_time(&stamps[1]);
  ASSERT_TRUE(cuda.synchronize().ok());
  cuda.stamp_time(&stamps[2]);
  args.fetch();
  EXPECT_GT(stamps[0], 0);
  EXPECT_GT(stamps[1], stamps[0]);
  EXPECT_GE(stamps[2], stamps[1]);
}

// ---- forms that the tuned kernels do not take ----

// Rows, product and weight of types and widths of which one at least has no tuned kernel.
TEST_F(CudaBackendTest, OtherProductsRunOnThePlainKernels) {
  Random random(1);
  for (const auto& [x_type, w_type, n, k] : {std::tuple{DType::kF32, DType::kF8E4M3, 24, 168},
                                             {DType::kF32, DType::kBF16, 33, 70},
                                             {DType::kF8E4M3, DType::kF8E4M3, 20, 144},
                                             {DType::kF8E4M3, DType::kF8E4M3, 16, 136},
                                             {DType::kBF16, DType::kF32, 8, 64},
                                             {DType::kBF16, DType::kMxfp4, 12, 64}}) {
    constexpr int64_t kRows = 5;
    const TestMatrix w = random_matrix(random, w_type, n, k);
    const Tensor values = random_tensor(random, {kRows, k});
    const Tensor x(x_type, {kRows, k}), scale(DType::kF32, {kRows, (k + 127) / 128});
    const bool is_fp8 = x_type == DType::kF8E4M3;
    OpContext& plain = plain_device().ctx();
    if (x_type == DType::kF32) std::copy_n(values.view().data<float>(), kRows * k, x.view().data<float>());
    if (x_type == DType::kBF16) ops::round_to_bf16(plain, {.x = values, .out = x});
    if (is_fp8) ops::quantize_fp8(plain, {.x = values, .out = x, .scale = scale});
    const Tensor want(DType::kF32, {kRows, n}), got(DType::kF32, {kRows, n});
    ops::matmul(plain, {.x = x, .x_scale = is_fp8 ? scale.view() : View(), .w = &w.packed, .out = want});
    Matrix memory;
    Args on(*device_);
    ops::matmul(device_->ctx(), {.x = on.in(x),
                                 .x_scale = is_fp8 ? on.in(scale) : View(),
                                 .w = on_device(*device_, w, memory),
                                 .out = on.out(got)});
    on.fetch();
    EXPECT_TRUE(same_bits(got, want)) << dtype_name(x_type) << " by " << dtype_name(w_type) << " " << n << ", " << k;
  }
}

// What a tuned product asks of its arguments beyond their form is arranged: rows that begin anywhere, and a slice of wider rows
// for the result.
TEST_F(CudaBackendTest, LayoutsOfRowsChangeNoBit) {
  constexpr int64_t kRows = 5, kN = 24, kK = 160;
  Random random(5);
  const TestMatrix w = random_matrix(random, DType::kF8E4M3, kN, kK);
  const Tensor x(DType::kF8E4M3, {kRows, kK}), scale(DType::kF32, {kRows, 2}), dense(DType::kF32, {kRows, kN});
  ops::quantize_fp8(plain_device().ctx(), {.x = random_tensor(random, {kRows, kK}), .out = x, .scale = scale});
  const Tensor wide_x(DType::kF8E4M3, {kRows, kK + 9}), wide(DType::kF32, {kRows, kN + 3});
  for (int64_t t = 0; t < kRows; ++t)
    std::copy_n(x.view().bytes() + t * kK, kK, wide_x.view().bytes() + t * (kK + 9) + 7);
  Matrix memory;
  Args on(*device_);
  const Matrix* weights = on_device(*device_, w, memory);
  ops::matmul(device_->ctx(), {.x = on.in(x), .x_scale = on.in(scale), .w = weights, .out = on.out(dense)});
  ops::matmul(device_->ctx(), {.x = on.in(wide_x).slice_last(7, kK),
                               .x_scale = on.in(scale),
                               .w = weights,
                               .out = on.out(wide).slice_last(2, kN)});
  on.fetch();
  for (int64_t t = 0; t < kRows; ++t) {
    EXPECT_TRUE(std::equal(dense.view().row<float>(t), dense.view().row<float>(t) + kN, wide.view().row<float>(t) + 2));
  }
}

TEST_F(CudaBackendTest, OtherSelectionsRunOnThePlainKernels) {
  Random random(2);
  const Tensor score = random_tensor(random, {2, 256}), begin = i32_tensor({0, 3}), end = i32_tensor({256, 200});
  const Tensor want(DType::kI32, {2, 100}), got(DType::kI32, {2, 100});
  ops::select_topk(plain_device().ctx(), {.score = score, .begin = begin, .end = end, .topk = want});
  Args on(*device_);
  ops::select_topk(device_->ctx(),
                   {.score = on.in(score), .begin = on.in(begin), .end = on.in(end), .topk = on.out(got)});
  on.fetch();
  EXPECT_TRUE(same_bits(got, want));
}

TEST_F(CudaBackendTest, OtherIndexQueriesRunOnThePlainKernels) {
  constexpr int64_t kRows = 2, kHeads = 24, kSlots = 256;
  Random random(3);
  const IndexKeyFormat keys = index_key_format(CacheDType::kFp8, 128);
  const PagedCache cache(keys.page_bytes(), 1, kSlots, 0);
  Args on(*device_);
  const Tensor seq = i32_tensor({0, 0}), visible = i32_tensor({200, 256}), w = random_tensor(random, {kRows, kHeads});
  const Tensor q(DType::kF8E4M3, {kRows, kHeads, 128}), scale(DType::kF32, {kRows * kHeads, 1});
  ops::quantize_fp8(
      plain_device().ctx(),
      {.x = random_tensor(random, {kRows * kHeads, 128}), .out = q.view().merged_first(), .scale = scale});
  for (int64_t i = 0; i < cache.rows().n_pages * keys.page_bytes(); ++i)
    cache.rows().pages[i] = static_cast<std::byte>(random.below(2) != 0 ? 0x38 : 0x31);  // scales are finite, too
  const Tensor want(DType::kF32, {kRows, kSlots}), got(DType::kF32, {kRows, kSlots});
  for (int64_t i = 0; i < kRows * kSlots; ++i) want.view().data<float>()[i] = got.view().data<float>()[i] = -777.0f;
  const ops::IndexQuery query{.q = q, .w = w, .seq = seq, .visible = visible, .format = keys, .cache = cache.rows()};
  ops::index_scores(plain_device().ctx(), {.query = query, .score = want});
  ops::IndexQuery there = query;
  there.q = on.in(q), there.w = on.in(w), there.seq = on.in(seq), there.visible = on.in(visible);
  there.cache = on.in(cache.rows());
  ops::index_scores(device_->ctx(), {.query = there, .score = on.out(got)});
  on.fetch();
  EXPECT_TRUE(same_bits(got, want));
}

TEST_F(CudaBackendDeathTest, NamesATensorOfTheHost) {
  OpContext& ctx = device_->ctx();
  Args on(*device_);
  const auto zeros = [&](DType dtype, std::initializer_list<int64_t> shape) { return on.in(Tensor(dtype, shape)); };
  const View ids = zeros(DType::kI32, {2}), score = zeros(DType::kF32, {2, 256});
  const Tensor host(DType::kI32, {2, 64});
  EXPECT_DEATH(ops::select_topk(ctx, {.score = score, .begin = ids, .end = ids, .topk = host}),
               "topk is i32 .2, 64., expected it on cuda");
  EXPECT_DEATH(ops::rms_norm(ctx, {.x = score, .out = Tensor(DType::kF32, {2, 256})}),
               "rms_norm: out is f32 .2, 256., expected it on cuda");
}

// ---- NaN ----

TEST_F(CudaBackendTest, NanMarksItsRowAndNoOther) {
  Random random(4);
  Tensor score = random_tensor(random, {3, 256}), logits = random_tensor(random, {3, 20});
  score.at(256 + 99) = logits.at(45) = std::numeric_limits<float>::quiet_NaN();
  const Tensor begin = i32_tensor({0, 5, 0}), end = i32_tensor({256, 256, 256});
  const auto run = [&](TestDevice& device) {
    const Tensor topk(DType::kI32, {3, 64}), experts(DType::kI32, {3, 2}), weights(DType::kF32, {3, 2}),
        nan_scores = i32_tensor({0, 0, 0}), nan_logits = i32_tensor({0, 0, 0});
    Args on(device);
    ops::select_topk(device.ctx(), {.score = on.in(score),
                                    .begin = on.in(begin),
                                    .end = on.in(end),
                                    .topk = on.out(topk),
                                    .faults = on.out(nan_scores)});
    ops::route_experts(
        device.ctx(),
        {.logits = on.in(logits), .topk = on.out(experts), .weights = on.out(weights), .faults = on.out(nan_logits)});
    on.fetch();
    for (int32_t row = 0; row < 3; ++row) {
      EXPECT_EQ(nan_scores.view().data<int32_t>()[row] != 0, row == 1) << device.name() << " " << row;
      EXPECT_EQ(nan_logits.view().data<int32_t>()[row] != 0, row == 2) << device.name() << " " << row;
    }
    return std::array{topk.bytes(), experts.bytes(), weights.bytes()};
  };
  EXPECT_EQ(run(*device_), run(plain_device()));
}

}  // namespace
}  // namespace levin::testing
