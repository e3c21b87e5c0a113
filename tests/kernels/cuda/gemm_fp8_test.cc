// FP8 products on the device: every instance against sums in double, and all instances against each other bit for bit.
#include "kernels/cuda/gemm/gemm_fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gemm_problem.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/rows/quantize_fp8.h"

namespace levin::cuda {
namespace {

std::vector<GemmFp8Plan> all_plans() {
  std::vector<GemmFp8Plan> plans;
  for (const int width : {32, 48, 56}) plans.push_back({GemmKernel::kGemv, kMaxGemvRows, width});
  for (const int width : {16, 32, 48, 56, 64}) plans.push_back({GemmKernel::kFewRows, 8, width});
  for (const int width : {16, 32, 64})
    for (const int rows : {16, 32, 64}) plans.push_back({GemmKernel::kRows, rows, width});
  for (const int width : {32, 64, 96, 128}) plans.push_back({GemmKernel::kTiles, 128, width});
  plans.push_back({GemmKernel::kTiles, 256, 128});
  plans.push_back({GemmKernel::kTiles, 256, 136});
  return plans;
}

// Whether the plan's kernel does `count` rows of k, dense.
bool does(const GemmFp8Plan& plan, int count, int64_t k) {
  return plan.kernel != GemmKernel::kGemv || (count <= kMaxGemvRows && k % 128 == 0);
}

// A problem on the device. Rows beyond T hold codes of NaN, so that a row that leaks into another shows.
class OnDevice {
 public:
  OnDevice(const Stream& stream, const GemmProblem& p)
      : stream_(stream),
        p_(p),
        x_(stream, padded_x(p)),
        x_scale_(stream, scales_of(0, p.n_tokens)),
        w_(stream, p.w),
        w_scale_(stream, p.w_scale) {}

  GemmFp8 args(void* out, bool out_is_f32) const {
    GemmFp8 a;
    a.x = x_.data();
    a.x_row_bytes = p_.k;
    a.x_scale = x_scale_.data();
    a.x_scale_ld = leading(p_.n_tokens);
    a.w = w_.data();
    a.w_scale = w_scale_.data();
    a.out = out;
    a.out_is_f32 = out_is_f32;
    a.n_tokens = static_cast<int>(p_.n_tokens);
    a.n = static_cast<int>(p_.n);
    a.k = static_cast<int>(p_.k);
    a.n_groups = static_cast<int>(p_.n_groups);
    return a;
  }

  // out [T, N] f32 of the rows first .. first+count-1 alone, one more row of guard after.
  std::vector<float> run(const GemmFp8Plan& plan, int first, int count, const int32_t* group_begin = nullptr) const {
    const DeviceArray<float> out(stream_, (count + 1) * p_.n);
    out.fill(0xFF);  // NaN
    GemmFp8 a = args(out.data(), true);
    const DeviceArray<float> x_scale(stream_, scales_of(first, count));
    a.x += first * p_.k;
    a.x_scale = x_scale.data();
    a.x_scale_ld = leading(count);
    a.n_tokens = count;
    a.group_begin = group_begin;
    gemm_fp8(a, plan, stream_.handle());
    std::vector<float> host = out.host();
    for (int64_t i = count * p_.n; i < (count + 1) * p_.n; ++i)
      EXPECT_TRUE(std::isnan(host[static_cast<size_t>(i)])) << plan.describe() << " wrote beyond its rows";
    host.resize(static_cast<size_t>(count * p_.n));
    return host;
  }

 private:
  static int64_t leading(int64_t n_tokens) { return (n_tokens + 3) / 4 * 4; }

  // Column major; the padding of the leading dimension holds NaN.
  std::vector<float> scales_of(int64_t first, int64_t count) const {
    const int64_t n_blocks = blocks_of(p_.k), ld = leading(count);
    std::vector<float> scales(static_cast<size_t>(n_blocks * ld), NAN);
    for (int64_t b = 0; b < n_blocks; ++b)
      for (int64_t t = 0; t < count; ++t)
        scales[static_cast<size_t>(b * ld + t)] = p_.x_scale[static_cast<size_t>((first + t) * n_blocks + b)];
    return scales;
  }

  static std::vector<uint8_t> padded_x(const GemmProblem& p) {
    std::vector<uint8_t> x = p.x;
    x.resize(x.size() + static_cast<size_t>(256 * p.k), 0x7F);
    return x;
  }

  const Stream& stream_;
  const GemmProblem& p_;
  DeviceArray<uint8_t> x_;
  DeviceArray<float> x_scale_;
  DeviceArray<uint8_t> w_;
  DeviceArray<float> w_scale_;
};

class GemmFp8Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

// Products are exact; the matrix unit sums 32 of them and the running sum with 13 bits after the largest, so an error
// of 2^-13 of the terms' magnitudes would be the worst of one step; four steps a block, and most errors cancel.
double tolerance(const GemmProblem::Exact& e) { return e.absolute * 0x1p-11 + 1e-30; }

TEST_F(GemmFp8Test, EqualsSumsInDouble) {
  struct Case {
    int n_tokens, n, k;
  };
  for (const Case& c : {Case{1, 8, 16}, Case{3, 64, 128}, Case{2, 136, 1152}, Case{9, 264, 144}, Case{33, 136, 512},
                        Case{70, 520, 1040}, Case{300, 392, 384}}) {
    const GemmProblem p(c.n_tokens, c.n, c.k, 1, 7 * static_cast<uint64_t>(c.k + c.n));
    const OnDevice device(*stream_, p);
    for (const GemmFp8Plan& plan : all_plans()) {
      if (!does(plan, c.n_tokens, c.k)) continue;
      const std::vector<float> out = device.run(plan, 0, c.n_tokens);
      int n_wrong = 0;
      for (int row = 0; row < c.n_tokens; row += c.n_tokens > 64 ? 13 : 1) {
        for (int column = 0; column < c.n; ++column) {
          const GemmProblem::Exact e = p.exact(row, 0, column);
          const double got = out[static_cast<size_t>(row * c.n + column)];
          if (!(std::fabs(got - e.value) <= tolerance(e)) && ++n_wrong <= 3) {
            ADD_FAILURE() << plan.describe() << " T=" << c.n_tokens << " N=" << c.n << " K=" << c.k << " at [" << row
                          << ", " << column << "]: " << got << ", not " << e.value << " +- " << tolerance(e);
          }
        }
      }
      ASSERT_EQ(n_wrong, 0) << plan.describe();
    }
  }
}

int count_different(const std::vector<float>& a, const float* b) {
  int n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return n;
}

TEST_F(GemmFp8Test, ARowHasTheSameBitsInEveryKernelAndBatch) {
  const int n_tokens = 300, n = 656;
  for (const int k : {1552, 1664}) {
    const GemmProblem p(n_tokens, n, k, 1, 99);
    const OnDevice device(*stream_, p);
    const std::vector<float> all = device.run({GemmKernel::kTiles, 256, 128}, 0, n_tokens);
    for (const GemmFp8Plan& plan : all_plans()) {
      for (const auto& [first, count] :
           {std::pair{0, n_tokens}, {0, 1}, {17, 1}, {299, 1}, {5, 2}, {64, 7}, {100, 64}, {31, 130}}) {
        if (!does(plan, count, k)) continue;
        const std::vector<float> some = device.run(plan, first, count);
        EXPECT_EQ(count_different(some, all.data() + first * n), 0)
            << plan.describe() << " rows " << first << "+" << count << " K=" << k;
      }
    }
  }
}

// Several strips a block, more stages than the ring has, and a ring of few stages next to many activations.
TEST_F(GemmFp8Test, FewRowsOfLargeProductsHaveTheSameBits) {
  struct Case {
    int n, k;
  };
  for (const Case& c : {Case{17000, 384}, Case{2112, 7168}, Case{1000, 16384}, Case{600, 18432}}) {
    const GemmProblem p(8, c.n, c.k, 1, 31);
    const OnDevice device(*stream_, p);
    const std::vector<float> all = device.run({GemmKernel::kRows, 16, 64}, 0, 8);
    for (const GemmFp8Plan& plan : all_plans()) {
      if (plan.kernel != GemmKernel::kGemv && plan.kernel != GemmKernel::kFewRows) continue;
      for (const auto& [first, count] : {std::pair{0, 1}, {7, 1}, {3, 2}, {0, 2}, {1, 5}, {0, 8}}) {
        if (!does(plan, count, c.k)) continue;
        const std::vector<float> some = device.run(plan, first, count);
        EXPECT_EQ(count_different(some, all.data() + int64_t{first} * c.n), 0)
            << plan.describe() << " rows " << first << "+" << count << " N=" << c.n << " K=" << c.k;
      }
    }
  }
}

// Of groups that begin at these rows, the last number being the end of them all.
void expect_groups_equal_dense_products(const Stream& stream, const std::vector<int32_t>& begin, int n, int k) {
  const int n_groups = static_cast<int>(begin.size()) - 1, n_tokens = begin.back();
  const int64_t n_weights = int64_t{n} * k, n_scales = int64_t{(n + 127) / 128} * ((k + 127) / 128);
  const GemmProblem p(n_tokens, n, k, n_groups, 1000 + static_cast<uint64_t>(n_tokens));
  const OnDevice device(stream, p);
  const DeviceArray<int32_t> group_begin(stream, begin);
  std::vector<float> expected;
  for (int g = 0; g < n_groups; ++g) {
    const int count = begin[g + 1] - begin[g];
    if (count == 0) continue;
    GemmProblem one = p;
    one.n_groups = 1;
    one.w.assign(p.w.begin() + g * n_weights, p.w.begin() + (g + 1) * n_weights);
    one.w_scale.assign(p.w_scale.begin() + g * n_scales, p.w_scale.begin() + (g + 1) * n_scales);
    const std::vector<float> rows = OnDevice(stream, one).run({GemmKernel::kRows, 64, 64}, begin[g], count);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  for (const GemmFp8Plan& plan : all_plans()) {
    if (plan.kernel == GemmKernel::kGemv) continue;  // of dense products only
    const std::vector<float> out = device.run(plan, 0, n_tokens, group_begin.data());
    EXPECT_EQ(count_different(out, expected.data()), 0)
        << plan.describe() << ", " << n_tokens << " rows in " << n_groups << " groups";
  }
}

TEST_F(GemmFp8Test, GroupsEqualTheirOwnDenseProducts) {
  const std::vector<std::vector<int32_t>> cases = {
      {0, 1, 1, 4, 20}, {0, 0, 0, 0, 1}, {0, 300, 301, 430, 430}, {0, 5, 70, 326, 390}, {0, 200, 392, 512, 769}};
  for (const std::vector<int32_t>& begin : cases) expect_groups_equal_dense_products(*stream_, begin, 320, 768);
}

// A lane that prepares the walk over groups has several of them, most without rows; the last group has some or none.
TEST_F(GemmFp8Test, ManyGroupsEqualTheirOwnDenseProducts) {
  for (const int n_groups : {31, 33, 257, kMaxGroups}) {
    std::vector<int32_t> begin = {0};
    for (int g = 0; g < n_groups; ++g) {
      const bool has_rows = g * 5 % 13 == 0 || g == 256;
      begin.push_back(begin.back() + (has_rows ? 1 + g % 19 : 0));
    }
    expect_groups_equal_dense_products(*stream_, begin, 64, 256);
  }
}

TEST_F(GemmFp8Test, RoundsToBf16AtTheEnd) {
  const GemmProblem p(75, 328, 640, 1, 5);
  const OnDevice device(*stream_, p);
  for (const GemmFp8Plan& plan : all_plans()) {
    const int n_tokens = does(plan, 75, 640) ? 75 : kMaxGemvRows;
    const std::vector<float> wide = device.run(plan, 0, n_tokens);
    const DeviceArray<uint16_t> out(*stream_, n_tokens * 328);
    GemmFp8 a = device.args(out.data(), false);
    a.n_tokens = n_tokens;
    gemm_fp8(a, plan, stream_->handle());
    const std::vector<uint16_t> narrow = out.host();
    int n_wrong = 0;
    for (size_t i = 0; i < narrow.size(); ++i) n_wrong += narrow[i] != f32_to_bf16(wide[i]);
    EXPECT_EQ(n_wrong, 0) << plan.describe();
  }
}

// A chain in a graph, each product handed over early: the second takes its scales from the first.
TEST_F(GemmFp8Test, ChainsThatOverlapGiveTheSameBits) {
  const GemmProblem p(16, 512, 512, 1, 11);
  const OnDevice device(*stream_, p);
  const DeviceArray<float> first(*stream_, 16 * 512), second(*stream_, 16 * 512);
  for (const GemmFp8Plan& plan : {GemmFp8Plan{GemmKernel::kRows, 16, 32},
                                  {GemmKernel::kFewRows, 8, 48},
                                  {GemmKernel::kGemv, kMaxGemvRows, 32},
                                  {GemmKernel::kGemv, kMaxGemvRows, 56}}) {
    GemmFp8 a = device.args(first.data(), true), b = device.args(second.data(), true);
    if (plan.kernel == GemmKernel::kGemv) a.n_tokens = b.n_tokens = kMaxGemvRows;
    b.x_scale = first.data();
    b.x_scale_ld = 512;
    const auto chain = [&] {
      gemm_fp8(a, plan, stream_->handle());
      gemm_fp8(b, plan, stream_->handle());
    };
    first.fill(0xFF);
    second.fill(0xFF);
    chain();
    const std::vector<float> expected = second.host();
    a.pdl = b.pdl = true;
    const Graph graph = must(Graph::capture(*stream_, [&] {
      for (int i = 0; i < 20; ++i) chain();
    }));
    for (int repeat = 0; repeat < 10; ++repeat) {
      first.fill(0xFF);
      second.fill(0xFF);
      graph.launch(*stream_);
      EXPECT_EQ(count_different(second.host(), expected.data()), 0) << plan.describe() << ", repeat " << repeat;
    }
  }
}

// As a layer's experts: rows planned anew each time, a product, the rounding of what it gives, and a product that reads the
// groups before that rounding ends. Plans alternate, so that the groups of the one before would show.
TEST_F(GemmFp8Test, ProductsThatOverlapTheirPlanGiveTheSameBits) {
  constexpr int kTokens = 6, kActive = 3, kExperts = 40, kGroups = kExperts + 1, kWide = 512, kHidden = 256;
  constexpr int kRows = kTokens * (kActive + 1);
  const GemmProblem up(kRows, kWide, kHidden, kGroups, 51), down(kRows, 320, kWide, kGroups, 52);
  const OnDevice up_device(*stream_, up), down_device(*stream_, down);
  const DeviceArray<float> wide(*stream_, kRows * kWide), out(*stream_, 2 * kRows * 320);
  const DeviceArray<uint8_t> codes(*stream_, kRows * kWide);
  const DeviceArray<float> scale(*stream_, kWide / 128 * kRows);
  const DeviceArray<int32_t> group_begin(*stream_, kGroups + 1), token_of(*stream_, kRows),
      row_of(*stream_, kTokens * kActive);
  std::vector<int32_t> picks[2];
  for (int t = 0; t < kTokens; ++t)
    for (int i = 0; i < kActive; ++i) picks[0].push_back(3 * i + t % 3), picks[1].push_back(39 - 5 * (2 - i) - t % 2);
  const DeviceArray<int32_t> topk[2] = {{*stream_, picks[0]}, {*stream_, picks[1]}};
  const auto layer = [&](const GemmFp8Plan& plan, int which, bool overlaps) {
    plan_rows({.topk = topk[which].data(),
               .plan = {group_begin.data(), token_of.data(), row_of.data()},
               .n_tokens = kTokens,
               .n_active = kActive,
               .n_experts_here = kExperts,
               .has_shared = true},
              stream_->handle());
    GemmFp8 a = up_device.args(wide.data(), true);
    a.group_begin = group_begin.data();
    a.pdl = overlaps;
    gemm_fp8(a, plan, stream_->handle());
    const QuantizedRows rounded{
        .codes = codes.data(), .code_row_bytes = kWide, .scale = scale.data(), .scale_ld = kRows};
    quantize_fp8({.x = wide.data(),
                  .x_is_f32 = true,
                  .x_ld = kWide,
                  .out = rounded,
                  .n_tokens = kRows,
                  .k = kWide,
                  .pdl = overlaps},
                 stream_->handle());
    GemmFp8 b = down_device.args(out.data() + which * kRows * 320, true);
    b.x = codes.data();
    b.x_scale = scale.data();
    b.group_begin = group_begin.data();
    b.pdl = b.groups_settled = overlaps;
    gemm_fp8(b, plan, stream_->handle());
  };
  for (const GemmFp8Plan& plan : {GemmFp8Plan{GemmKernel::kFewRows, 8, 64}, {GemmKernel::kRows, 16, 64}}) {
    layer(plan, 0, false), layer(plan, 1, false);
    const std::vector<float> expected = out.host();
    const Graph graph = must(Graph::capture(*stream_, [&] {
      for (int i = 0; i < 20; ++i) layer(plan, i % 2, true);
    }));
    for (int repeat = 0; repeat < 20; ++repeat) {
      out.fill(0xFF);
      graph.launch(*stream_);
      EXPECT_EQ(count_different(out.host(), expected.data()), 0) << plan.describe() << ", repeat " << repeat;
    }
  }
}

TEST(GemmFp8PlanTest, RefusesByName) {
  EXPECT_EQ(gemm_fp8_support({.n = 2112, .k = 7168}), "");
  EXPECT_NE(gemm_fp8_support({.n = 2113, .k = 7168}).find("2113"), std::string::npos);
  EXPECT_NE(gemm_fp8_support({.n = 2112, .k = 7170}).find("7170"), std::string::npos);
  EXPECT_NE(gemm_fp8_support({.n = 2112, .k = 7168, .n_groups = 513}).find("513"), std::string::npos);
}

TEST(GemmFp8PlanTest, FillsTheSms) {
  EXPECT_EQ(plan_gemm_fp8({1, 2112, 7168, 1, 132}).describe(), "GEMV 2x32");
  EXPECT_EQ(plan_gemm_fp8({3, 2112, 7168, 1, 132}).describe(), "few rows 8x16");
  EXPECT_EQ(plan_gemm_fp8({1, 7168, 16384, 1, 132}).describe(), "GEMV 2x56");
  EXPECT_EQ(plan_gemm_fp8({16, 7168, 2048, 1, 132}).describe(), "rows 16x64");
  EXPECT_EQ(plan_gemm_fp8({16, 7168, 16384, 1, 132}).describe(), "rows 64x64");
  EXPECT_EQ(plan_gemm_fp8({32, 2112, 7168, 1, 132}).describe(), "rows 32x16");
  EXPECT_EQ(plan_gemm_fp8({128, 2112, 7168, 1, 132}).describe(), "rows 64x32");
  EXPECT_EQ(plan_gemm_fp8({128, 7168, 16384, 1, 132}).describe(), "tiles 128x64");
  EXPECT_EQ(plan_gemm_fp8({128, 24576, 1536, 1, 132}).describe(), "tiles 128x96");
  EXPECT_EQ(plan_gemm_fp8({512, 7168, 16384, 1, 132}).describe(), "tiles 256x128");
  EXPECT_EQ(plan_gemm_fp8({4096, 2112, 7168, 1, 132}).describe(), "tiles 256x136");
  EXPECT_EQ(plan_gemm_fp8({4096, 7168, 2048, 1, 132}).describe(), "tiles 256x128");
}

TEST(GemmFp8PlanTest, HasTilesForTheRowsThatChanceGivesToMostGroups) {
  const auto plan = [](int rows_per_group) { return plan_gemm_fp8({rows_per_group, 7168, 2048, 256, 132}).describe(); };
  EXPECT_EQ(plan(1), "few rows 8x48");
  EXPECT_EQ(plan(4), "few rows 8x48");
  EXPECT_EQ(plan(8), "rows 16x64");
  EXPECT_EQ(plan(16), "rows 64x64");
  EXPECT_EQ(plan(48), "rows 64x64");
  EXPECT_EQ(plan(64), "tiles 128x128");
  EXPECT_EQ(plan(128), "tiles 256x128");
}

// Whose scales would leave no room for its ring.
TEST(GemmFp8PlanTest, HasAnotherKernelForRowsOfVeryManyOutputs) {
  EXPECT_EQ(plan_gemm_fp8({1, 129'280, 7168, 1, 132}).kernel, GemmKernel::kGemv);
  EXPECT_EQ(plan_gemm_fp8({1, 129'280, 7168, 1, 16}).kernel, GemmKernel::kGemv);
  EXPECT_EQ(plan_gemm_fp8({1, 1 << 18, 16'384, 1, 16}).kernel, GemmKernel::kFewRows);
  EXPECT_EQ(plan_gemm_fp8({2, 1 << 21, 16'384, 1, 132}).kernel, GemmKernel::kFewRows);
}

}  // namespace
}  // namespace levin::cuda
