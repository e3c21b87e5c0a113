#include "ops/matmul.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "ops/kernel_registry.h"
#include "ops/quantize.h"
#include "ops/support.h"
#include "ops/weights.h"

namespace levin::testing {
namespace {

constexpr int64_t kBlock = 128;

// Rows of activations in one of the three types, next to the values they stand for.
struct TestRows {
  Tensor x;
  Tensor scale;                // [T, ceil(K / 128)]; e4m3 only
  std::vector<double> values;  // [T, K], scales applied

  View scale_view() const { return x.view().dtype() == DType::kF8E4M3 ? scale.view() : View(); }
};

TestRows random_rows(Random& random, DType dtype, int64_t n_rows, int64_t k) {
  const int64_t n_scales = (k + kBlock - 1) / kBlock;
  TestRows rows{Tensor(dtype, {n_rows, k}), Tensor(DType::kF32, {n_rows, n_scales}), {}};
  const Tensor f32 = random_tensor(random, {n_rows, k});
  OpContext& ctx = plain_device().ctx();
  if (dtype == DType::kF32)
    rows.x = Tensor::of(std::vector<float>(&f32.view().data<float>()[0], f32.view().data<float>() + n_rows * k),
                        {n_rows, k});
  if (dtype == DType::kBF16) ops::round_to_bf16(ctx, {.x = f32, .out = rows.x});
  if (dtype == DType::kF8E4M3) ops::quantize_fp8(ctx, {.x = f32, .out = rows.x, .scale = rows.scale});
  for (int64_t i = 0; i < n_rows * k; ++i) {
    if (dtype == DType::kF32) rows.values.push_back(rows.x.at(i));
    if (dtype == DType::kBF16) rows.values.push_back(bf16_to_f32(rows.x.view().data<uint16_t>()[i]));
    if (dtype == DType::kF8E4M3) {
      const double scale = rows.scale.at(i / k * n_scales + i % k / kBlock);
      rows.values.push_back(scale * e4m3_to_f32(rows.x.view().data<uint8_t>()[i]));
    }
  }
  return rows;
}

struct Case {
  DType x, w;
  int64_t n, k;
  bool scaled = true;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}{}_n{}_k{}", dtype_name(c.x), dtype_name(c.w), c.scaled ? "" : "_unscaled", c.n, c.k);
}

std::vector<Case> all_cases() {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},    {15, 7},    {17, 20},  {16, 24},
                                                     {120, 40}, {132, 56},  {33, 127}, {64, 128},
                                                     {70, 129}, {132, 384}, {24, 7},   {136, 400}};
  std::vector<Case> cases;
  for (const DType x : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const DType w : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      for (const auto& [n, k] : kShapes) cases.push_back({x, w, n, k});
    }
    for (const auto& [n, k] : kShapes) {
      if (k % 2 == 0) cases.push_back({x, DType::kMxfp4, n, k});
    }
    cases.push_back({x, DType::kMxfp4, 70, 330});
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 16}, {15, 48}, {16, 128}, {33, 144}, {70, 336}, {136, 400}}) {
      cases.push_back({x, DType::kNvfp4, n, k});
    }
    cases.push_back({x, DType::kF8E4M3, 40, 200, false});
  }
  return cases;
}

// All kernels but those that multiply bf16 realise the tree of fused multiply-adds.
bool has_fma_tree(const TestDevice& device, const Case& c) {
  return device.isa() < Isa::kAvx512Bf16 || c.x == DType::kF32 || c.w == DType::kF32;
}

// Whether there is a kernel for the case.
bool runs(const TestDevice& device, const Case& c) {
  if (!device.on_cuda()) return true;
  if (c.x == DType::kF32) return !is_fp4(c.w) && c.scaled;
  if (c.x == DType::kBF16 && c.w == DType::kMxfp4) return c.n % 8 == 0 && c.k % 8 == 0;
  return c.x == DType::kF8E4M3 && c.scaled &&
         why_not_sm90({.op = "matmul", .weights = c.w, .fp8_input = true, .n = c.n, .k = c.k}).empty();
}

class MatmulTest : public ::testing::TestWithParam<Case> {
 protected:
  Tensor run(TestDevice& device, const TestRows& rows, const TestMatrix& w) {
    return run(device, rows, w, 0, rows.x.view().dim(0));
  }
  Tensor run(TestDevice& device, const TestRows& rows, const TestMatrix& w, int64_t begin, int64_t n) {
    Tensor out(DType::kF32, {n, w.packed.n()});
    const View scale = rows.scale_view().empty() ? View() : rows.scale_view().slice_first(begin, n);
    Matrix memory;
    Args args(device);
    ops::matmul(device.ctx(), {.x = args.in(rows.x.view().slice_first(begin, n)),
                               .x_scale = args.in(scale),
                               .w = on_device(device, w, memory),
                               .out = args.out(out)});
    args.fetch();
    return out;
  }
};

// What a sum may differ from the exact one, of the magnitude of its terms. The matrix unit of a CUDA device sums 32
// products of e4m3 with 13 bits after the largest, 2^-13 a step at worst, four steps a block; of bf16 it cuts the last of
// f32's bits a few times in each of K / 16 steps, which for K up to 1040 is below 2^-16.
double relative_error(const TestDevice& device, const Case& c) {
  if (device.on_cuda() && c.x != DType::kF32) return c.x == DType::kF8E4M3 ? 0x1p-11 : 0x1p-16;
  const double n_roundings = static_cast<double>(std::min(c.k, kBlock) + 2 * ((c.k + kBlock - 1) / kBlock) + 1);
  return 1.01 * n_roundings * 0x1p-24;
}

// A product's output in double.
struct ExactSum {
  double sum = 0;
  double magnitude = 0;  // of its terms together
};

std::vector<ExactSum> exact_sums(const TestRows& rows, const TestMatrix& w, int64_t n_rows, const Case& c) {
  std::vector<ExactSum> out(static_cast<size_t>(n_rows * c.n));
  for (int64_t i = 0; i < n_rows * c.n; ++i) {
    ExactSum& exact = out[static_cast<size_t>(i)];
    for (int64_t k = 0; k < c.k; ++k) {
      const double product = rows.values[i / c.n * c.k + k] * w.at(i % c.n, k);
      exact.sum += product;
      exact.magnitude += std::fabs(product);
    }
  }
  return out;
}

// Along the tree a product passes at most 128 roundings in its block and one per block fold, each at most half a unit
// (2^-24) of a partial sum, which never exceeds the sum of |x w| by more than those roundings; the scale of a fold is
// itself a rounded product. The dot instruction rounds twice a step of two, so that the count is the same, and drops
// what is below 2^-126.
TEST_P(MatmulTest, IsWithinRoundingOfTheSumInDouble) {
  const Case& c = GetParam();
  Random random(c.n * 1000 + c.k);
  const TestMatrix w = random_matrix(random, c.w, c.n, c.k, c.scaled);
  for (const int64_t n_rows : {1, 3, 8, 13}) {
    const TestRows rows = random_rows(random, c.x, n_rows, c.k);
    const std::vector<ExactSum> want = exact_sums(rows, w, n_rows, c);
    for (TestDevice* device : backends_under_test()) {
      if (!runs(*device, c)) continue;
      const Tensor out = run(*device, rows, w);
      for (int64_t i = 0; i < n_rows * c.n; ++i) {
        const ExactSum& exact = want[static_cast<size_t>(i)];
        const double tolerance = relative_error(*device, c) * exact.magnitude + 0x1p-120;
        ASSERT_NEAR(out.at(i), exact.sum, tolerance) << device->name() << ", row " << i / c.n << ", output " << i % c.n;
      }
    }
  }
}

TEST_P(MatmulTest, GivesTheSameBitsOnEveryDeviceWithTheSameTree) {
  const Case& c = GetParam();
  Random random(c.n * 1000 + c.k + 1);
  const TestMatrix w = random_matrix(random, c.w, c.n, c.k, c.scaled);
  for (const int64_t n_rows : {1, 2, 5, 8, 21}) {
    const TestRows rows = random_rows(random, c.x, n_rows, c.k);
    const Tensor fma = run(plain_device(), rows, w);
    std::map<Isa, Tensor> own_trees;
    for (const auto& device : devices_under_test()) {
      Tensor out = run(*device, rows, w);
      if (has_fma_tree(*device, c)) {
        ASSERT_TRUE(same_bits(out, fma)) << device->name() << ", " << n_rows << " rows";
      } else if (const auto own = own_trees.find(device->isa()); own != own_trees.end()) {
        ASSERT_TRUE(same_bits(out, own->second)) << device->name() << ", " << n_rows << " rows";
      } else {
        own_trees.emplace(device->isa(), std::move(out));
      }
    }
    for (TestDevice* device : backends_under_test()) {
      if (!device->on_cuda() || c.x != DType::kF32 || !runs(*device, c)) continue;
      ASSERT_TRUE(same_bits(run(*device, rows, w), fma)) << device->name() << ", " << n_rows << " rows";
    }
  }
}

TEST_P(MatmulTest, GivesARowTheSameBitsInAnyBatch) {
  const Case& c = GetParam();
  Random random(c.n * 1000 + c.k + 2);
  const TestMatrix w = random_matrix(random, c.w, c.n, c.k, c.scaled);
  const TestRows rows = random_rows(random, c.x, 29, c.k);
  for (TestDevice* device : backends_under_test()) {
    if (!runs(*device, c)) continue;
    const Tensor all = run(*device, rows, w);
    for (const auto& [begin, count] :
         {std::pair{0, 1}, {28, 1}, {5, 2}, {1, 3}, {7, 4}, {3, 7}, {11, 8}, {2, 9}, {0, 17}}) {
      const Tensor part = run(*device, rows, w, begin, count);
      ASSERT_TRUE(same_bits(part, all.view().slice_first(begin, count)))
          << device->name() << ", rows " << begin << " to " << begin + count - 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatmulTest, ::testing::ValuesIn(all_cases()), case_name);

// The tree of ops/matmul.h for the amx-bf16 set: x in bf16, so without scales of its own.
float tile_tree_sum(const TestRows& rows, const TestMatrix& w, int64_t row, int64_t n) {
  const int64_t n_k = w.packed.k();
  const auto product = [&](int64_t k) {  // exact in f32
    return k < n_k ? static_cast<float>(rows.values[row * n_k + k] * double{w.in_group(n, k)}) : 0.0f;
  };
  float total = 0;
  for (int64_t block = 0; block < n_k; block += kBlock) {
    float sum = 0;
    for (int64_t step = block; step < std::min(block + kBlock, n_k); step += 32) {
      float even = 0, odd = 0;
      for (int64_t k = step; k < std::min(step + 32, n_k); k += 2) {
        even += product(k);
        if (k + 1 < n_k) odd += product(k + 1);
      }
      sum += even + odd;
    }
    total = std::fma(sum, w.block_scale(n, block), total);
  }
  return total;
}

TEST(MatmulTileTest, SumsAsItsHeaderSays) {
  if (!is_usable(Isa::kAmxBf16)) GTEST_SKIP() << "no matrix unit";
  for (const DType w_type : {DType::kBF16, DType::kF8E4M3, DType::kMxfp4, DType::kNvfp4}) {
    for (const auto& [n, k] : {std::pair{5, 2}, {33, 130}, {70, 512}, {20, 2600}, {40, 208}}) {
      if (w_type == DType::kNvfp4 && k % kNvGroup != 0) continue;
      Random random(n + k);
      const TestMatrix w = random_matrix(random, w_type, n, k);
      for (const int64_t n_rows : {1, 3, 8, 9, 40}) {
        const TestRows rows = random_rows(random, DType::kBF16, n_rows, k);
        for (const auto& device : devices_under_test()) {
          if (device->isa() != Isa::kAmxBf16) continue;
          const Tensor out(DType::kF32, {n_rows, n});
          ops::matmul(device->ctx(), {.x = rows.x, .w = &w.packed, .out = out});
          for (int64_t i = 0; i < n_rows * n; ++i) {
            ASSERT_EQ(out.at(i), tile_tree_sum(rows, w, i / n, i % n))
                << device->name() << ", " << dtype_name(w_type) << ", row " << i / n << ", output " << i % n;
          }
        }
      }
    }
  }
}

// Values of mxfp4 are bf16 values, and multiplied as such, whatever multiplies them.
TEST(MatmulMxfp4Test, GivesTheSameBitsAsTheSameValuesInBf16) {
  for (const DType x : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [n, k] : {std::pair{16, 32}, {40, 96}, {33, 130}, {70, 512}}) {
      Random random(n + k);
      const TestMatrix w = random_matrix(random, DType::kMxfp4, n, k);
      std::vector<float> values;
      for (int64_t i = 0; i < int64_t{n} * k; ++i) values.push_back(static_cast<float>(w.at(i / k, i % k)));
      const Matrix bf16 = pack_matrix_exactly(values.data(), n, k);
      ASSERT_EQ(bf16.dtype(), DType::kBF16);
      for (const int64_t n_rows : {1, 2, 4, 7, 8, 40}) {
        const TestRows rows = random_rows(random, x, n_rows, k);
        for (const auto& device : devices_under_test()) {
          const Tensor a(DType::kF32, {n_rows, n}), b(DType::kF32, {n_rows, n});
          ops::matmul(device->ctx(), {.x = rows.x, .x_scale = rows.scale_view(), .w = &w.packed, .out = a});
          ops::matmul(device->ctx(), {.x = rows.x, .x_scale = rows.scale_view(), .w = &bf16, .out = b});
          ASSERT_TRUE(same_bits(a, b)) << device->name() << ", " << dtype_name(x) << ", " << n_rows << " rows";
        }
      }
    }
  }
}

// Codes times the scales of their groups are bf16 values, and the factor of the matrix is what other types have as the scale
// of every block.
TEST(MatmulNvfp4Test, GivesTheSameBitsAsTheSameValuesInBf16WhereTheFactorIsOne) {
  for (const DType x : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [n, k] : {std::pair{16, 16}, {40, 96}, {33, 144}, {70, 512}}) {
      Random random(n + k);
      const TestMatrix drawn = random_matrix(random, DType::kNvfp4, n, k);
      RowMajorWeights source = drawn.source();
      source.factor = 1;
      const Matrix w = pack_matrix(source);
      std::vector<float> values;
      for (int64_t i = 0; i < int64_t{n} * k; ++i) values.push_back(drawn.in_group(i / k, i % k));
      const Matrix bf16 = pack_matrix_exactly(values.data(), n, k);
      ASSERT_EQ(bf16.dtype(), DType::kBF16);
      for (const int64_t n_rows : {1, 2, 4, 7, 8, 40}) {
        const TestRows rows = random_rows(random, x, n_rows, k);
        for (const auto& device : devices_under_test()) {
          const Tensor a(DType::kF32, {n_rows, n}), b(DType::kF32, {n_rows, n});
          ops::matmul(device->ctx(), {.x = rows.x, .x_scale = rows.scale_view(), .w = &w, .out = a});
          ops::matmul(device->ctx(), {.x = rows.x, .x_scale = rows.scale_view(), .w = &bf16, .out = b});
          ASSERT_TRUE(same_bits(a, b)) << device->name() << ", " << dtype_name(x) << ", " << n_rows << " rows";
        }
      }
    }
  }
}

// More rows and a longer k than are cached together, and few enough outputs that rows are cut over the threads.
TEST(MatmulLargeTest, GivesARowTheSameBitsInABatchThatIsCutIntoChunks) {
  for (const auto& [x, w_type] : {std::pair{DType::kF32, DType::kF32},
                                  {DType::kBF16, DType::kBF16},
                                  {DType::kF8E4M3, DType::kF8E4M3},
                                  {DType::kF32, DType::kMxfp4},
                                  {DType::kBF16, DType::kMxfp4},
                                  {DType::kF32, DType::kNvfp4},
                                  {DType::kBF16, DType::kNvfp4}}) {
    Random random(17);
    constexpr int64_t kRows = 1100, kK = 1408, kN = 20;
    const TestMatrix w = random_matrix(random, w_type, kN, kK);
    const TestRows rows = random_rows(random, x, kRows, kK);
    for (const auto& device : devices_under_test()) {
      if (device->isa() == Isa::kPlain) continue;
      Tensor all(DType::kF32, {kRows, kN}), one(DType::kF32, {1, kN});
      ops::matmul(device->ctx(), {.x = rows.x, .x_scale = rows.scale_view(), .w = &w.packed, .out = all});
      for (const int64_t row : {0, 1, 511, 512, 519, 1023, 1024, 1099}) {
        const View scale = rows.scale_view().empty() ? View() : rows.scale_view().slice_first(row, 1);
        ops::matmul(device->ctx(),
                    {.x = rows.x.view().slice_first(row, 1), .x_scale = scale, .w = &w.packed, .out = one});
        ASSERT_TRUE(same_bits(one, all.view().slice_first(row, 1))) << device->name() << ", row " << row;
      }
    }
  }
}

TEST(MatmulStridedTest, ReadsAndWritesSlicesOfWiderRows) {
  Random random(3);
  const TestMatrix w = random_matrix(random, DType::kBF16, 21, 36);
  const Tensor wide = random_tensor(random, {5, 100});
  Tensor x(DType::kF32, {5, 36});
  for (int64_t i = 0; i < 5 * 36; ++i) x.at(i) = wide.at(i / 36 * 100 + 7 + i % 36);
  for (const auto& device : devices_under_test()) {
    Tensor expected(DType::kF32, {5, 21}), out(DType::kF32, {5, 40});
    ops::matmul(device->ctx(), {.x = x, .w = &w.packed, .out = expected});
    ops::matmul(device->ctx(),
                {.x = wide.view().slice_last(7, 36), .w = &w.packed, .out = out.view().slice_last(3, 21)});
    for (int64_t i = 0; i < 5 * 40; ++i) {
      const int64_t column = i % 40 - 3;
      const float value = column >= 0 && column < 21 ? expected.at(i / 40 * 21 + column) : 0.0f;
      ASSERT_EQ(out.at(i), value) << device->name() << ", row " << i / 40 << ", column " << i % 40;
    }
  }
}

TEST(MatmulPerHeadTest, IsOneMatmulForEachHead) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t n_rows : {1, 6, 19}) {
      constexpr int64_t kHeads = 3, kN = 40, kK = 56;
      Random random(5);
      std::vector<Matrix> weights;
      for (int64_t h = 0; h < kHeads; ++h) weights.push_back(random_matrix(random, DType::kBF16, kN, kK).packed);
      const TestRows rows = random_rows(random, dtype, n_rows * kHeads, kK);
      const View x(rows.x.view().bytes(), dtype, {n_rows, kHeads, kK});
      for (const auto& device : devices_under_test()) {
        Tensor out(DType::kF32, {n_rows, kHeads, kN}), one(DType::kF32, {1, kN});
        ops::matmul_per_head(device->ctx(), {.x = x, .w = weights, .out = out});
        for (int64_t i = 0; i < n_rows * kHeads; ++i) {
          ops::matmul(device->ctx(), {.x = rows.x.view().slice_first(i, 1), .w = &weights[i % kHeads], .out = one});
          ASSERT_TRUE(same_bits(one, out.view().reshaped({n_rows * kHeads, kN}).slice_first(i, 1)))
              << device->name() << ", row " << i / kHeads << ", head " << i % kHeads;
        }
      }
    }
  }
}

// Matrices of bf16 one after another where the device can multiply with them.
struct HeadWeights {
  Buffer memory;
  std::vector<Matrix> matrices;
};
HeadWeights head_weights(TestDevice& device, uint64_t seed, int64_t n_heads, int64_t n, int64_t k) {
  Random random(seed);
  HeadWeights w;
  const int64_t n_bytes = n * k * 2;
  if (device.on_cuda()) {
    Result<Buffer> memory = device.cuda().allocate(n_heads * n_bytes);
    LEVIN_CHECK(memory.ok(), "{}", memory.error().message);
    w.memory = std::move(memory).value();
  }
  for (int64_t h = 0; h < n_heads; ++h) {
    TestMatrix head = random_matrix(random, DType::kBF16, n, k);
    if (!device.on_cuda()) {
      w.matrices.push_back(std::move(head.packed));
      continue;
    }
    std::vector<uint16_t> rows;
    for (const float value : head.values) rows.push_back(f32_to_bf16(value));
    std::byte* to = w.memory.data() + h * n_bytes;
    device.cuda().copy_bytes_in(to, rows.data(), n_bytes);
    LEVIN_CHECK(device.cuda().synchronize().ok(), "a copy failed");
    w.matrices.push_back(matrix_on_device(
        {.dtype = DType::kBF16, .n = n, .k = k, .data = Buffer::borrowed(to, n_bytes, Device::kCuda), .scales = {}}));
  }
  return w;
}

TEST(MatmulPerHeadTest, RoundsWhatComesOutAsTheOpsForThatDo) {
  struct Shape {
    int64_t n_heads, n, k;
  };
  for (const auto& [n_heads, n, k] : {Shape{5, 128, 512}, {16, 512, 128}, {3, 40, 64}, {132, 128, 256}}) {
    HeadWeights w;  // the CPU's devices share theirs
    for (TestDevice* device : backends_under_test()) {
      if (!device->on_cuda() && n_heads > 16) continue;  // a case of the device's
      if (device->on_cuda() || w.matrices.empty()) w = head_weights(*device, 6, n_heads, n, k);
      for (const int64_t n_rows : {1, 8, 9, 40, 130}) {
        SCOPED_TRACE(fmt::format("{}: {} rows, {} heads [{}, {}]", device->name(), n_rows, n_heads, n, k));
        Random random(7);
        const Tensor x = random_tensor(random, {n_rows, n_heads, k});
        const int64_t width = n_heads * n;
        const Tensor sums(DType::kF32, {n_rows, n_heads, n}), bf16(DType::kBF16, {n_rows, n_heads, n}),
            got_bf16(DType::kBF16, {n_rows, n_heads, n}), codes(DType::kF8E4M3, {n_rows, width}),
            scale(DType::kF32, {n_rows, (width + 127) / 128}), got_codes(DType::kF8E4M3, {n_rows, width}),
            got_scale(DType::kF32, {n_rows, (width + 127) / 128});
        Args args(*device);
        OpContext& ctx = device->ctx();
        const View in = args.in(x), on_device = args.out(sums);
        ops::matmul_per_head(ctx, {.x = in, .w = w.matrices, .out = on_device});
        ops::round_to_bf16(ctx, {.x = on_device.merged_first(), .out = args.out(bf16).merged_first()});
        ops::quantize_fp8(ctx,
                          {.x = on_device.reshaped({n_rows, width}), .out = args.out(codes), .scale = args.out(scale)});
        ops::matmul_per_head(ctx, {.x = in, .w = w.matrices, .out = args.out(got_bf16)});
        ops::matmul_per_head(
            ctx, {.x = in, .w = w.matrices, .out = {}, .codes = args.out(got_codes), .scale = args.out(got_scale)});
        args.fetch();
        EXPECT_TRUE(same_bits(got_bf16, bf16));
        EXPECT_TRUE(same_bits(got_codes, codes));
        EXPECT_TRUE(same_bits(got_scale, scale));
      }
    }
  }
}

TEST(MatmulCheckTest, NamesTheArgumentThatDoesNotFit) {
  Random random(1);
  OpContext& ctx = plain_device().ctx();
  const TestMatrix w = random_matrix(random, DType::kF32, 8, 4);
  Tensor x(DType::kF32, {2, 5}), out(DType::kF32, {2, 8}), fits(DType::kF32, {2, 4}), narrow(DType::kF32, {2, 7});
  EXPECT_DEATH(ops::matmul(ctx, {.x = x, .w = &w.packed, .out = out}), "x is f32 \\[2, 5\\].*\\[8, 4\\]");
  EXPECT_DEATH(ops::matmul(ctx, {.x = fits, .w = &w.packed, .out = narrow}), "out is f32 \\[2, 7\\]");
  EXPECT_DEATH(ops::matmul(ctx, {.x = fits, .x_scale = fits, .w = &w.packed, .out = out}), "scale");
  EXPECT_DEATH(ops::matmul(ctx, {.x = fits, .out = out}), "no weight");
}

}  // namespace
}  // namespace levin::testing
