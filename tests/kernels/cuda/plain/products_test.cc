// Products and rounding on the device against the CPU's plain kernels, bit for bit.
#include "kernels/cuda/plain/products.h"

#include "base/numbers.h"
#include "kernels/cuda/plain/plain_test.h"
#include "kernels/cuda/plain/quantize.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "ops/weights.h"

namespace levin::cuda::plain {
namespace {

using testing::Random;
using testing::random_matrix;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;
using testing::TestMatrix;

class PlainProductsTest : public PlainTest {
 protected:
  // The matrix as checkpoints hold it.
  static Weights upload(DeviceArgs& args, const TestMatrix& w) {
    Weights out{.dtype = w.packed.dtype(), .n = w.packed.n(), .k = w.packed.k()};
    if (!w.codes.empty()) {
      out.data = args.in(w.codes);
    } else if (w.packed.dtype() == DType::kF32) {
      out.data = args.in(w.values);
    } else {
      std::vector<uint16_t> values;
      for (const float v : w.values) values.push_back(f32_to_bf16(v));
      out.data = args.in(values);
    }
    if (!w.scales.empty()) out.scales = args.in(w.scales);
    if (!w.group_scales.empty()) out.group_scales = args.in(w.device_group_scales());
    return out;
  }

  struct Rows {
    Tensor x;
    Tensor scale;
  };
  Rows random_rows(Random& random, DType dtype, int64_t n_rows, int64_t k) {
    const Tensor x = random_tensor(random, {n_rows, k}, 1.0f);
    const int64_t n_scales = (k + 127) / 128;
    Rows rows{copy_of(x), Tensor(DType::kF32, {n_rows, n_scales})};
    if (dtype == DType::kF32) return rows;
    rows.x = Tensor(dtype, {n_rows, k});
    if (dtype == DType::kBF16) ops::round_to_bf16(cpu(), {.x = x, .out = rows.x});
    if (dtype == DType::kF8E4M3) ops::quantize_fp8(cpu(), {.x = x, .out = rows.x, .scale = rows.scale});
    return rows;
  }

  // Rows first_row .. of x on the device.
  Tensor product(const Rows& rows, const TestMatrix& w, int64_t first_row, int64_t n_rows) {
    DeviceArgs args(*stream_);
    const DType dtype = rows.x.view().dtype();
    const int64_t k = w.packed.k(), n_scales = rows.scale.view().dim(1);
    Tensor out = unset(DType::kF32, {n_rows, w.packed.n()});
    const bool scaled = dtype == DType::kF8E4M3;
    matmul({.x = {.x = args.in<std::byte>(rows.x) + first_row * k * dtype_bytes(dtype),
                  .dtype = dtype,
                  .ld = k,
                  .scale = scaled ? args.in<float>(rows.scale) + first_row * n_scales : nullptr,
                  .scale_ld = n_scales},
            .w = upload(args, w),
            .out = args.out<float>(out),
            .out_ld = w.packed.n(),
            .n_rows = n_rows},
           stream());
    args.fetch();
    return out;
  }

  void check(DType x_dtype, DType w_dtype, int64_t n_rows, int64_t n, int64_t k) {
    SCOPED_TRACE(
        fmt::format("{} rows {}, weights [{}, {}] {}", n_rows, dtype_name(x_dtype), n, k, dtype_name(w_dtype)));
    Random random(static_cast<uint64_t>(n_rows * 7 + n * 3 + k));
    const TestMatrix w = random_matrix(random, w_dtype, n, k);
    const Rows rows = random_rows(random, x_dtype, n_rows, k);
    const Tensor expected(DType::kF32, {n_rows, n});
    const View scale = x_dtype == DType::kF8E4M3 ? View(rows.scale) : View();
    ops::matmul(cpu(), {.x = rows.x, .x_scale = scale, .w = &w.packed, .out = expected});
    ASSERT_TRUE(same_bits(product(rows, w, 0, n_rows), expected));
    const int64_t last = n_rows - 1;
    ASSERT_TRUE(same_bits(product(rows, w, last, 1),
                          View(const_cast<float*>(expected.view().row<float>(last)), DType::kF32, {1, n})))
        << "the last row alone";
  }
};

TEST_F(PlainProductsTest, EqualsTheCpuForEveryPairOfTypes) {
  for (const DType x : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const DType w : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kMxfp4}) {
      check(x, w, 1, 1, 2);
      check(x, w, 3, 33, 130);
      check(x, w, 17, 200, 384);
      check(x, w, 40, 131, 1026);
    }
    check(x, DType::kF8E4M3, 5, 129, 127);  // an odd K
    check(x, DType::kNvfp4, 1, 1, 16);
    check(x, DType::kNvfp4, 17, 33, 144);
    check(x, DType::kNvfp4, 40, 131, 1040);
  }
}

TEST_F(PlainProductsTest, EqualsTheCpuAtTheModelsWidths) {
  check(DType::kF8E4M3, DType::kF8E4M3, 2, 2112, 7168);
  check(DType::kF8E4M3, DType::kMxfp4, 2, 1024, 4096);
  check(DType::kBF16, DType::kBF16, 2, 512, 16384);
}

TEST_F(PlainProductsTest, PerHead) {
  for (const auto& [n_rows, n_heads, n, k] :
       {std::array<int64_t, 4>{1, 3, 40, 128}, {9, 4, 33, 70}, {20, 2, 129, 192}}) {
    Random random(static_cast<uint64_t>(n + k));
    std::vector<TestMatrix> w;
    std::vector<Matrix> packed;
    std::vector<uint16_t> values;
    for (int64_t h = 0; h < n_heads; ++h) {
      w.push_back(random_matrix(random, DType::kBF16, n, k));
      for (const float v : w.back().values) values.push_back(f32_to_bf16(v));
      packed.push_back(std::move(w.back().packed));
    }
    const Tensor x = random_tensor(random, {n_rows, n_heads, k}, 1.0f);
    const Tensor expected(DType::kF32, {n_rows, n_heads, n});
    ops::matmul_per_head(cpu(), {.x = x, .w = packed, .out = expected});
    Tensor out = unset(DType::kF32, {n_rows, n_heads, n});
    DeviceArgs args(*stream_);
    matmul_per_head({.x = {.x = args.in<float>(x), .ld = n_heads * k},
                     .x_head_ld = k,
                     .w = {.data = args.in(values), .dtype = DType::kBF16, .n = n, .k = k},
                     .out = args.out<float>(out),
                     .out_ld = n_heads * n,
                     .out_head_ld = n,
                     .n_rows = n_rows,
                     .n_heads = n_heads},
                    stream());
    args.fetch();
    ASSERT_TRUE(same_bits(out, expected)) << n_rows << " rows, " << n_heads << " heads";
  }
}

TEST_F(PlainProductsTest, Rounding) {
  for (const auto& [n_rows, k] : {std::pair<int64_t, int64_t>{1, 1}, {3, 127}, {5, 128}, {2, 300}, {9, 7168}}) {
    SCOPED_TRACE(k);
    Random random(static_cast<uint64_t>(k));
    Tensor x = random_tensor(random, {n_rows, k}, 30.0f);
    x.at(0) = -0.0f;
    if (k > 130) {
      for (int64_t i = 128; i < 130; ++i) x.at(i) = 1e30f;
    }
    const int64_t n_scales = (k + 127) / 128;
    const Tensor bf16(DType::kBF16, {n_rows, k}), codes(DType::kF8E4M3, {n_rows, k}), values(DType::kBF16, {n_rows, k});
    const Tensor scale(DType::kF32, {n_rows, n_scales}), fp4 = copy_of(x);
    ops::round_to_bf16(cpu(), {.x = x, .out = bf16});
    ops::quantize_fp8(cpu(), {.x = x, .out = codes, .scale = scale});
    ops::quantize_fp8(cpu(), {.x = x, .out = values});
    ops::round_to_fp4(cpu(), {.x = fp4});

    Tensor bf16_out = unset(DType::kBF16, {n_rows, k}), codes_out = unset(DType::kF8E4M3, {n_rows, k});
    Tensor values_out = unset(DType::kBF16, {n_rows, k}), scale_out = unset(DType::kF32, {n_rows, n_scales});
    Tensor fp4_out = copy_of(x);
    DeviceArgs args(*stream_);
    const float* in = args.in<float>(x);
    round_to_bf16({.x = in, .x_ld = k, .out = args.out<uint16_t>(bf16_out), .out_ld = k, .n_rows = n_rows, .k = k},
                  stream());
    quantize_fp8({.x = in,
                  .x_ld = k,
                  .codes = args.out<uint8_t>(codes_out),
                  .out_ld = k,
                  .scale = args.out<float>(scale_out),
                  .scale_ld = n_scales,
                  .n_rows = n_rows,
                  .k = k},
                 stream());
    quantize_fp8({.x = in, .x_ld = k, .values = args.out<uint16_t>(values_out), .out_ld = k, .n_rows = n_rows, .k = k},
                 stream());
    round_to_fp4({.x = args.out<float>(fp4_out), .x_ld = k, .n_rows = n_rows, .k = k}, stream());
    args.fetch();
    EXPECT_TRUE(same_bits(bf16_out, bf16));
    EXPECT_TRUE(same_bits(codes_out, codes));
    EXPECT_TRUE(same_bits(scale_out, scale));
    EXPECT_TRUE(same_bits(values_out, values));
    EXPECT_TRUE(same_bits(fp4_out, fp4));
  }
}

TEST_F(PlainProductsTest, HadamardOfEveryWidth) {
  for (int64_t d = 1; d <= 2048; d *= 2) {
    Random random(static_cast<uint64_t>(d));
    const Tensor x = random_tensor(random, {3, 2, d}, 1.0f), expected = copy_of(x);
    Tensor out = copy_of(x);
    ops::hadamard(cpu(), {.x = expected});
    DeviceArgs args(*stream_);
    hadamard({.x = args.out<float>(out), .x_ld = 2 * d, .head_ld = d, .n_rows = 3, .n_heads = 2, .d = d}, stream());
    args.fetch();
    ASSERT_TRUE(same_bits(out, expected)) << "width " << d;
  }
}

}  // namespace
}  // namespace levin::cuda::plain
