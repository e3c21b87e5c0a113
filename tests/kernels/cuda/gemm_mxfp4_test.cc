// MXFP4 products on the device against the plain CPU kernel, and against themselves in other tiles, batches and groups.
#include "kernels/cuda/gemm/gemm_mxfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/device_array.h"
#include "tensor/matrix.h"

namespace levin::cuda {
namespace {

constexpr int kTileRows[] = {8, 16, 32, 64, 128};

// Random bf16 rows and weights of every code; scales near 1 but for a few far ones, wide if asked for.
struct MxProblem {
  int n_tokens, n, k, n_groups;
  std::vector<uint16_t> x;
  std::vector<uint8_t> codes, scales;

  MxProblem(int tokens, int outputs, int inputs, int groups, uint64_t seed, bool wide = false)
      : n_tokens(tokens), n(outputs), k(inputs), n_groups(groups) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(n_tokens) * k);
    for (uint16_t& v : x) v = f32_to_bf16(normal(generator));
    codes.resize(static_cast<size_t>(groups) * n * k / 2);
    for (uint8_t& v : codes) v = static_cast<uint8_t>(generator());
    scales.resize(static_cast<size_t>(groups) * n * scales_of_row());
    for (uint8_t& v : scales) {
      const uint64_t draw = generator();
      v = static_cast<uint8_t>(draw % 50 == 0 ? 90 + draw / 50 % (wide ? 80 : 30) : 124 + draw / 50 % 5);
    }
  }

  int scales_of_row() const { return (k + 31) / 32; }
  Mxfp4Rows group(int g) const {
    return {codes.data() + int64_t{g} * n * k / 2, scales.data() + int64_t{g} * n * scales_of_row(), n, k};
  }
  double weight(int g, int row, int column) const {
    const Mxfp4Rows m = group(g);
    const uint8_t pair = m.codes[(int64_t{row} * k + column) / 2];
    return double{e2m1_to_f32(column % 2 == 0 ? pair & 0xF : pair >> 4)} *
           double{e8m0_to_f32(m.scales[int64_t{row} * scales_of_row() + column / 32])};
  }
};

class MxOnDevice {
 public:
  MxOnDevice(const Stream& stream, const MxProblem& p)
      : stream_(stream), p_(p), x_(stream, padded_x(p)), w_(stream, packed(p, &scales_)) {}

  GemmMxfp4 args(void* out, bool f32) const {
    GemmMxfp4 a;
    a.x = x_.data();
    a.x_ld = p_.k;
    a.w = reinterpret_cast<const std::byte*>(w_.data());
    a.scales = scales_;
    a.out = out;
    a.out_is_f32 = f32;
    a.n_tokens = p_.n_tokens;
    a.n = p_.n;
    a.k = p_.k;
    a.n_groups = p_.n_groups;
    return a;
  }

  // out [count, N] f32 of the rows from `first` alone, one more row of guard after.
  std::vector<float> run(int tile_rows, int first, int count, const int32_t* group_begin = nullptr) const {
    const DeviceArray<float> out(stream_, (int64_t{count} + 1) * p_.n);
    out.fill(0xFF);  // NaN
    GemmMxfp4 a = args(out.data(), true);
    a.x += int64_t{first} * p_.k;
    a.n_tokens = count;
    a.group_begin = group_begin;
    gemm_mxfp4(a, tile_rows, stream_.handle());
    std::vector<float> host = out.host();
    for (int64_t i = int64_t{count} * p_.n; i < (int64_t{count} + 1) * p_.n; ++i)
      EXPECT_TRUE(std::isnan(host[static_cast<size_t>(i)])) << "tiles of " << tile_rows << " wrote beyond their rows";
    host.resize(static_cast<size_t>(count) * p_.n);
    return host;
  }

 private:
  // Rows beyond T are NaN, so that a row that leaks into another shows.
  static std::vector<uint16_t> padded_x(const MxProblem& p) {
    std::vector<uint16_t> x = p.x;
    x.resize(x.size() + 128 * static_cast<size_t>(p.k), 0x7FFF);
    return x;
  }
  static std::vector<uint8_t> packed(const MxProblem& p, Mxfp4Scales* widest) {
    const int64_t bytes = packed_mxfp4_bytes(p.n, p.k);
    std::vector<uint8_t> out(static_cast<size_t>(bytes * p.n_groups));
    for (int g = 0; g < p.n_groups; ++g)
      *widest = std::max(*widest, pack_mxfp4(p.group(g), reinterpret_cast<std::byte*>(out.data()) + g * bytes));
    LEVIN_CHECK(*widest != Mxfp4Scales::kNotExact, "scales out of range");
    return out;
  }

  const Stream& stream_;
  const MxProblem& p_;
  Mxfp4Scales scales_ = Mxfp4Scales::kNarrow;
  DeviceArray<uint16_t> x_;
  DeviceArray<uint8_t> w_;
};

// The plain CPU kernel's product of all rows. It reads up to eight rows where they lie, more from an operand laid out.
std::vector<float> plain_product(const MxProblem& p) {
  const Matrix w = pack_matrix(
      {.data = p.codes.data(), .dtype = DType::kMxfp4, .n = p.n, .k = p.k, .group_scales = p.scales.data()});
  const kernels::MatmulKernels plain = kernels::matmul_kernels_plain();
  std::vector<float> rows, operand(p.x.size()), out(static_cast<size_t>(p.n_tokens) * p.n);
  for (const uint16_t v : p.x) rows.push_back(bf16_to_f32(v));
  plain.prepare({.x = p.x.data(),
                 .x_dtype = DType::kBF16,
                 .x_stride = p.k,
                 .row_end = p.n_tokens,
                 .n_rows = p.n_tokens,
                 .k = p.k,
                 .operand_dtype = DType::kF32,
                 .operand = operand.data()});
  kernels::ProductJob job{.operand = operand.data(),
                          .operand_dtype = DType::kF32,
                          .row_end = p.n_tokens,
                          .n_rows = p.n_tokens,
                          .panels = w.panel(0),
                          .panel_bytes = w.panel_bytes(),
                          .w_dtype = DType::kMxfp4,
                          .panel_end = w.n_panels(),
                          .n = p.n,
                          .k = p.k,
                          .out = out.data(),
                          .out_stride = p.n};
  for (int64_t t = 0; t < std::min<int64_t>(p.n_tokens, kernels::kRowGroup); ++t)
    job.plain_rows[static_cast<size_t>(t)] = rows.data() + t * p.k;
  plain.product(job);
  return out;
}

class GemmMxfp4Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

int count_different(const std::vector<float>& a, const float* b) {
  int n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return n;
}

// Products are exact in f32; each of K / 16 steps and of K / 128 additions rounds or cuts a few times in the last of
// f32's 24 bits, and so does the plain kernel K times: 2^-16 of the terms' magnitudes is the worst for K up to 1040.
TEST_F(GemmMxfp4Test, EqualsThePlainCpuKernel) {
  for (const auto& [n_tokens, n, k] :
       {std::tuple{1, 8, 16}, {3, 64, 128}, {9, 264, 136}, {33, 136, 512}, {70, 520, 1040}, {130, 392, 384}}) {
    const MxProblem p(n_tokens, n, k, 1, 3 * static_cast<uint64_t>(k + n));
    const MxOnDevice device(*stream_, p);
    const std::vector<float> expected = plain_product(p);
    const std::vector<float> out = device.run(plan_gemm_mxfp4(n_tokens, 1), 0, n_tokens);
    int n_wrong = 0;
    for (int t = 0; t < n_tokens; ++t) {
      for (int row = 0; row < n; ++row) {
        double magnitude = 0;
        for (int c = 0; c < k; ++c)
          magnitude += std::fabs(double{bf16_to_f32(p.x[static_cast<size_t>(t * k + c)])} * p.weight(0, row, c));
        const double got = out[static_cast<size_t>(t * n + row)], want = expected[static_cast<size_t>(t * n + row)];
        if (!(std::fabs(got - want) <= magnitude * 0x1p-16) && ++n_wrong <= 3)
          ADD_FAILURE() << "T=" << n_tokens << " N=" << n << " K=" << k << " at [" << t << ", " << row << "]: " << got
                        << ", not " << want;
      }
    }
    ASSERT_EQ(n_wrong, 0);
  }
}

// A row with a single one gives back a column of weights: every code with every scale.
TEST_F(GemmMxfp4Test, EveryCodeAndScaleIsExact) {
  MxProblem p(32, 256, 32, 1, 1);
  for (int row = 0; row < 256; ++row) {
    p.scales[static_cast<size_t>(row)] = static_cast<uint8_t>(std::clamp(row, int{kMxMinScale}, int{kMxMaxScale}));
    for (int c = 0; c < 16; ++c)
      p.codes[static_cast<size_t>(row * 16 + c)] = static_cast<uint8_t>((2 * c) % 16 | (2 * c + 1) % 16 << 4);
  }
  std::fill(p.x.begin(), p.x.end(), uint16_t{0});
  for (int t = 0; t < 32; ++t) p.x[static_cast<size_t>(t * 32 + t)] = f32_to_bf16(1);
  const std::vector<float> out = MxOnDevice(*stream_, p).run(32, 0, 32);
  for (int t = 0; t < 32; ++t)
    for (int row = 0; row < 256; ++row)
      ASSERT_EQ(double{out[static_cast<size_t>(t * 256 + row)]}, p.weight(0, row, t))
          << "scale " << int{p.scales[static_cast<size_t>(row)]} << " code " << t % 16;
}

TEST_F(GemmMxfp4Test, ARowHasTheSameBitsInEveryTileAndBatch) {
  const int n_tokens = 300, n = 328;
  const MxProblem p(n_tokens, n, 1064, 1, 99, true);
  const MxOnDevice device(*stream_, p);
  const std::vector<float> all = device.run(128, 0, n_tokens);
  for (const int rows : kTileRows) {
    for (const auto& [first, count] :
         {std::pair{0, n_tokens}, {0, 1}, {17, 1}, {299, 1}, {5, 2}, {64, 7}, {100, 64}, {31, 130}})
      EXPECT_EQ(count_different(device.run(rows, first, count), all.data() + first * n), 0)
          << "tiles of " << rows << ", rows " << first << "+" << count;
  }
}

TEST_F(GemmMxfp4Test, GroupsEqualTheirOwnDenseProducts) {
  for (const std::vector<int32_t>& begin : std::vector<std::vector<int32_t>>{
           {0, 1, 1, 4, 20}, {0, 0, 0, 0, 1}, {0, 200, 201, 330, 330}, {0, 5, 70, 200, 264}}) {
    const int n_groups = static_cast<int>(begin.size()) - 1, n_tokens = begin.back(), n = 200, k = 256;
    const MxProblem p(n_tokens, n, k, n_groups, 1000 + static_cast<uint64_t>(n_tokens));
    const MxOnDevice device(*stream_, p);
    std::vector<float> expected;
    for (int g = 0; g < n_groups; ++g) {
      if (begin[static_cast<size_t>(g) + 1] == begin[static_cast<size_t>(g)]) continue;
      MxProblem one = p;
      one.n_groups = 1;
      one.codes.assign(p.group(g).codes, p.group(g).codes + n * k / 2);
      one.scales.assign(p.group(g).scales, p.group(g).scales + n * p.scales_of_row());
      const int first = begin[static_cast<size_t>(g)], count = begin[static_cast<size_t>(g) + 1] - first;
      const std::vector<float> rows = MxOnDevice(*stream_, one).run(64, first, count);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    const DeviceArray<int32_t> group_begin(*stream_, begin);
    for (const int rows : kTileRows)
      EXPECT_EQ(count_different(device.run(rows, 0, n_tokens, group_begin.data()), expected.data()), 0)
          << "tiles of " << rows << ", " << n_tokens << " rows in groups";
  }
}

TEST_F(GemmMxfp4Test, RoundsToBf16AtTheEnd) {
  const MxProblem p(75, 328, 640, 1, 5);
  const MxOnDevice device(*stream_, p);
  for (const int rows : kTileRows) {
    const std::vector<float> wide = device.run(rows, 0, 75);
    const DeviceArray<uint16_t> out(*stream_, 75 * 328);
    gemm_mxfp4(device.args(out.data(), false), rows, stream_->handle());
    const std::vector<uint16_t> narrow = out.host();
    int n_wrong = 0;
    for (size_t i = 0; i < narrow.size(); ++i) n_wrong += narrow[i] != f32_to_bf16(wide[i]);
    EXPECT_EQ(n_wrong, 0) << "tiles of " << rows;
  }
}

TEST(GemmMxfp4PlanTest, RefusesByName) {
  EXPECT_EQ(gemm_mxfp4_support({.n = 4096, .k = 7168, .n_groups = 256}), "");
  EXPECT_NE(gemm_mxfp4_support({.n = 4097, .k = 7168}).find("4097"), std::string::npos);
  EXPECT_NE(gemm_mxfp4_support({.n = 4096, .k = 7170}).find("7170"), std::string::npos);
  EXPECT_NE(gemm_mxfp4_support({.n = 4096, .k = 7168, .n_groups = 513}).find("513"), std::string::npos);
}

TEST(GemmMxfp4PlanTest, HasTilesForTheRowsThatChanceGivesToMostGroups) {
  constexpr int kExperts = 256;
  EXPECT_EQ(plan_gemm_mxfp4(4, kExperts), 8);
  EXPECT_EQ(plan_gemm_mxfp4(8, kExperts), 16);
  EXPECT_EQ(plan_gemm_mxfp4(12, kExperts), 16);
  EXPECT_EQ(plan_gemm_mxfp4(16, kExperts), 32);
  EXPECT_EQ(plan_gemm_mxfp4(48, kExperts), 64);
  EXPECT_EQ(plan_gemm_mxfp4(64, kExperts), 128);
  EXPECT_EQ(plan_gemm_mxfp4(16, 1), 16);
}

TEST(GemmMxfp4PlanTest, PackingNamesScalesThatAreNotExact) {
  MxProblem p(1, 8, 32, 1, 2);
  std::vector<std::byte> out(static_cast<size_t>(packed_mxfp4_bytes(8, 32)));
  EXPECT_EQ(pack_mxfp4(p.group(0), out.data()), Mxfp4Scales::kNarrow);
  p.scales[7] = 129;
  EXPECT_EQ(pack_mxfp4(p.group(0), out.data()), Mxfp4Scales::kWide);
  for (const int scale : {0, 1, 253, 254, 255}) {
    p.scales[5] = static_cast<uint8_t>(scale);
    EXPECT_EQ(pack_mxfp4(p.group(0), out.data()), Mxfp4Scales::kNotExact) << scale;
  }
}

}  // namespace
}  // namespace levin::cuda
