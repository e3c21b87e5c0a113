// The experts' surroundings on the device: routing as the plain CPU kernel does it, rows sorted as a stable sort would,
// and a whole expert layer whose tokens do not notice their neighbours.
#include "kernels/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/numbers.h"
#include "gemm_problem.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/gemm/gemm_fp8.h"

namespace levin::cuda {
namespace {

struct RouteCase {
  int n_tokens, n_experts, n_active, n_groups, n_groups_kept;
  int n_values;  // few distinct logits make ties
  bool normalize;
};

class MoeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream_.emplace(must(Stream::create()));
  }
  std::optional<Stream> stream_;
};

std::vector<float> random_logits(const RouteCase& c, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_int_distribution<int> step(0, c.n_values - 1);
  std::vector<float> logits(static_cast<size_t>(c.n_tokens) * c.n_experts);
  for (float& x : logits)
    x = (static_cast<float>(step(generator)) - static_cast<float>(c.n_values) / 2) *
        (8.0f / static_cast<float>(c.n_values));
  return logits;
}

TEST_F(MoeTest, RoutesAsThePlainCpuKernel) {
  for (const RouteCase& c : {RouteCase{33, 256, 8, 8, 4, 1 << 20, true},
                             {17, 256, 8, 1, 1, 1 << 20, true},
                             {20, 256, 8, 8, 4, 3, true},
                             {5, 16, 2, 4, 2, 5, false},
                             {4, 384, 6, 1, 1, 100, true},
                             {6, 60, 4, 5, 3, 50, true},
                             {9, 96, 4, 32, 3, 1 << 20, true},
                             {3, 512, 16, 8, 4, 1 << 20, true},
                             {3, 40, 16, 1, 1, 4, true}}) {
    const std::vector<float> logits = random_logits(c, static_cast<uint64_t>(c.n_experts + c.n_values));
    std::vector<float> bias(static_cast<size_t>(c.n_experts)), weights(static_cast<size_t>(c.n_tokens) * c.n_active),
        scratch(3 * bias.size());
    for (size_t e = 0; e < bias.size(); ++e) bias[e] = static_cast<float>(e % 7) * 0.01f;
    std::vector<int32_t> topk(weights.size());
    kernels::RouteRows plain;
    plain.logits = logits.data();
    plain.logits_stride = c.n_experts;
    plain.bias = bias.data();
    plain.n_rows = c.n_tokens;
    plain.n_experts = c.n_experts;
    plain.n_groups = c.n_groups;
    plain.n_groups_kept = c.n_groups_kept;
    plain.n_active = c.n_active;
    plain.normalize = c.normalize;
    plain.factor = 2.5f;
    plain.topk = topk.data();
    plain.topk_stride = c.n_active;
    plain.weights = weights.data();
    plain.weights_stride = c.n_active;
    plain.scratch = scratch.data();
    ASSERT_EQ(kernels::cpu_kernels(Isa::kPlain).rows.route_experts(plain), kernels::kNoRow);

    const DeviceArray<float> device_logits(*stream_, logits), device_bias(*stream_, bias);
    const DeviceArray<float> device_weights(*stream_, static_cast<int64_t>(weights.size()));
    const DeviceArray<int32_t> device_topk(*stream_, static_cast<int64_t>(topk.size())),
        fault(*stream_, std::vector<int32_t>(static_cast<size_t>(c.n_tokens)));
    route_tokens({.logits = device_logits.data(),
                  .bias = device_bias.data(),
                  .topk = device_topk.data(),
                  .weights = device_weights.data(),
                  .fault = fault.data(),
                  .n_tokens = c.n_tokens,
                  .n_experts = c.n_experts,
                  .n_active = c.n_active,
                  .n_groups = c.n_groups,
                  .n_groups_kept = c.n_groups_kept,
                  .normalize = c.normalize,
                  .factor = 2.5f},
                 stream_->handle());
    EXPECT_EQ(device_topk.host(), topk) << c.n_experts << " experts, " << c.n_values << " values";
    EXPECT_EQ(device_weights.host(), weights) << c.n_experts << " experts, " << c.n_values << " values";
    EXPECT_EQ(fault.host(), std::vector<int32_t>(static_cast<size_t>(c.n_tokens)));
  }
}

TEST_F(MoeTest, ARowWithNanTakesTheFirstExpertsAndPaddingNone) {
  const RouteCase c{9, 64, 4, 1, 1, 1000, true};
  std::vector<float> logits = random_logits(c, 1);
  logits[5 * 64 + 3] = logits[7 * 64] = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> device_logits(*stream_, logits), bias(*stream_, std::vector<float>(64)),
      weights(*stream_, 9 * 4);
  const DeviceArray<int32_t> topk(*stream_, 9 * 4), fault(*stream_, std::vector<int32_t>{0, 2, 0, 0, 0, 2, 0, 0, 0}),
      slot(*stream_, std::vector<int32_t>{4, 0, -1, 9, 9, 9, 9, 9, -1});
  topk.fill(0x77), weights.fill(0x77);
  route_tokens({.logits = device_logits.data(),
                .bias = bias.data(),
                .slot = slot.data(),
                .topk = topk.data(),
                .weights = weights.data(),
                .fault = fault.data(),
                .n_tokens = 9,
                .n_experts = 64,
                .n_active = 4},
               stream_->handle());
  EXPECT_EQ(fault.host(), (std::vector<int32_t>{0, 2, 0, 0, 0, 3, 0, 1, 0}));
  const std::vector<int32_t> picks = topk.host();
  const std::vector<float> weight = weights.host();
  const auto picks_of = [&](int t) { return std::vector<int32_t>(picks.begin() + 4 * t, picks.begin() + 4 * t + 4); };
  const auto weight_of = [&](int t) { return std::vector<float>(weight.begin() + 4 * t, weight.begin() + 4 * t + 4); };
  for (const int t : {2, 5, 7, 8}) {
    const bool padding = t == 2 || t == 8;
    EXPECT_EQ(picks_of(t), padding ? std::vector<int32_t>(4, -1) : (std::vector<int32_t>{0, 1, 2, 3})) << t;
    EXPECT_EQ(weight_of(t), std::vector<float>(4)) << t;
  }
  EXPECT_NE(weight_of(4), std::vector<float>(4));
}

std::vector<int32_t> random_topk(int n_tokens, int n_experts, int n_active, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> all(static_cast<size_t>(n_experts)), topk;
  for (int e = 0; e < n_experts; ++e) all[static_cast<size_t>(e)] = e;
  for (int t = 0; t < n_tokens; ++t) {
    std::shuffle(all.begin(), all.end(), generator);
    std::vector<int32_t> own(all.begin(), all.begin() + n_active);
    std::sort(own.begin(), own.end());
    topk.insert(topk.end(), own.begin(), own.end());
  }
  return topk;
}

struct PlanCase {
  int n_tokens, n_experts, n_active, first, here;
  bool shared;
};
constexpr PlanCase kPlans[] = {{1, 256, 8, 0, 256, false},   {1, 256, 8, 0, 256, true},  {100, 64, 6, 0, 64, true},
                               {517, 32, 8, 8, 16, false},   {40, 256, 8, 250, 6, true}, {128, 512, 16, 0, 512, true},
                               {2500, 160, 8, 0, 160, true}, {0, 16, 2, 0, 16, true}};

// A plan on the device, and what it is to be. Some tokens are padding, without an expert.
struct TestPlan {
  TestPlan(const Stream& stream, const PlanCase& c)
      : topk(random_topk(c.n_tokens, c.n_experts, c.n_active, 5)),
        device_topk(stream, padded(topk, c)),
        group_begin(stream, c.here + 2),
        token_of(stream, c.n_tokens * (c.n_active + 1) + 1),
        row_of(stream, c.n_tokens * c.n_active + 1),
        rows{.topk = device_topk.data(),
             .plan = {group_begin.data(), token_of.data(), row_of.data()},
             .n_tokens = c.n_tokens,
             .n_active = c.n_active,
             .first_expert = c.first,
             .n_experts_here = c.here,
             .has_shared = c.shared} {
    const int n_pairs = c.n_tokens * c.n_active;
    expected_row.assign(static_cast<size_t>(n_pairs), -1);
    for (int e = c.first; e < c.first + c.here; ++e) {
      for (int pair = 0; pair < n_pairs; ++pair) {
        if (topk[static_cast<size_t>(pair)] != e) continue;
        expected_row[static_cast<size_t>(pair)] = static_cast<int32_t>(expected_token.size());
        expected_token.push_back(pair / c.n_active);
      }
      expected_begin.push_back(static_cast<int32_t>(expected_token.size()));
    }
    if (!c.shared) return;
    for (int t = 0; t < c.n_tokens; ++t) expected_token.push_back(t);
    expected_begin.push_back(static_cast<int32_t>(expected_token.size()));
  }

  void expect() const {
    EXPECT_EQ(group_begin.host(std::ssize(expected_begin)), expected_begin);
    EXPECT_EQ(row_of.host(std::ssize(expected_row)), expected_row);
    EXPECT_EQ(token_of.host(std::ssize(expected_token)), expected_token);
  }

  std::vector<int32_t> topk;
  DeviceArray<int32_t> device_topk, group_begin, token_of, row_of;
  PlanRows rows;
  std::vector<int32_t> expected_begin = {0}, expected_token, expected_row;

 private:
  static const std::vector<int32_t>& padded(std::vector<int32_t>& topk, const PlanCase& c) {
    for (int t = 3; t < c.n_tokens; t += 7) std::fill_n(topk.begin() + t * c.n_active, c.n_active, -1);
    return topk;
  }
};

TEST_F(MoeTest, SortsRowsByExpertAndToken) {
  for (const PlanCase& c : kPlans) {
    SCOPED_TRACE(std::to_string(c.n_tokens) + " tokens, " + std::to_string(c.n_experts) + " experts");
    const TestPlan plan(*stream_, c);
    plan_rows(plan.rows, stream_->handle());
    plan.expect();
  }
}

// Every seventh token is padding.
std::vector<int32_t> slots_with_padding(int n_tokens) {
  std::vector<int32_t> slots(static_cast<size_t>(n_tokens));
  for (int t = 0; t < n_tokens; ++t) slots[static_cast<size_t>(t)] = t % 7 == 6 ? -1 : t;
  return slots;
}

// The same plan and the same rows by one launch.
TEST_F(MoeTest, PlansAndRoundsFewTokensTogether) {
  constexpr int kD = 528, kBlocks = 5;
  for (const PlanCase& c : kPlans) {
    if (c.n_tokens > kMaxTokensTogether) continue;
    SCOPED_TRACE(std::to_string(c.n_tokens) + " tokens, " + std::to_string(c.n_experts) + " experts");
    std::mt19937_64 generator(4);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(c.n_tokens) * kD + 1);
    for (float& value : x) value = normal(generator);
    const DeviceArray<float> device_x(*stream_, x);
    const TestPlan apart(*stream_, c), together(*stream_, c);
    const int n_rows = apart.rows.n_rows(), ld = (c.n_tokens + 3) / 4 * 4, row_ld = (n_rows + 3) / 4 * 4;
    const DeviceArray<uint8_t> rounded(*stream_, c.n_tokens * kD + 1), want(*stream_, n_rows * kD + 1),
        got(*stream_, n_rows * kD + 1);
    const DeviceArray<float> scale(*stream_, kBlocks * ld + 1), want_scale(*stream_, kBlocks * row_ld + 1),
        got_scale(*stream_, kBlocks * row_ld + 1);
    want.fill(0x55), got.fill(0x55), want_scale.fill(0x55), got_scale.fill(0x55);
    QuantizeFp8 input{.x = device_x.data(),
                      .x_is_f32 = true,
                      .x_ld = kD,
                      .out = {rounded.data(), kD, scale.data(), ld},
                      .n_tokens = c.n_tokens,
                      .k = kD};
    quantize_fp8(input, stream_->handle());
    plan_rows(apart.rows, stream_->handle());
    gather_rows({.from = input.out,
                 .plan = apart.rows.plan,
                 .out = {want.data(), kD, want_scale.data(), row_ld},
                 .n_rows = n_rows,
                 .n_groups = apart.rows.n_groups(),
                 .k = kD},
                stream_->handle());
    input.out = {got.data(), kD, got_scale.data(), row_ld};
    plan_and_round({.plan = together.rows, .input = input}, stream_->handle());
    if (c.n_tokens > 0) together.expect();
    EXPECT_EQ(got.host(), want.host());
    EXPECT_EQ(got_scale.host(), want_scale.host());
  }
}

// Choices too: what the launch gives is what routing, planning and rounding give apart.
TEST_F(MoeTest, RoutesPlansAndRoundsTogether) {
  constexpr int kD = 528, kBlocks = 5;
  struct Case {
    int n_tokens, n_experts, n_active;
    bool shared;
  };
  for (const Case& c : {Case{1, 256, 8, true}, Case{2, 256, 8, false}, Case{8, 256, 8, true}, Case{9, 64, 6, true},
                        Case{19, 256, 8, false}, Case{kMaxTokensRouted, 256, 8, true},
                        Case{kMaxTokensRouted, kMaxExperts, kMaxActive, true}}) {
    const int n_tokens = c.n_tokens, n_pairs = n_tokens * c.n_active;
    SCOPED_TRACE(std::to_string(n_tokens) + " tokens, " + std::to_string(c.n_experts) + " experts");
    const DeviceArray<float> x(*stream_, random_scales(n_tokens * kD, 7)),
        logits(*stream_, random_logits({n_tokens, c.n_experts, c.n_active, 8, 4, 1 << 20, true}, 8)),
        bias(*stream_, random_scales(c.n_experts, 9));
    const DeviceArray<int32_t> slot(*stream_, slots_with_padding(n_tokens));
    struct Out {
      Out(const Stream& stream, const Case& c, int n_pairs)
          : n_rows(n_pairs + c.n_tokens),
            topk(stream, n_pairs),
            group_begin(stream, c.n_experts + 2),
            token_of(stream, n_rows),
            row_of(stream, n_pairs),
            weights(stream, n_pairs),
            codes(stream, n_rows * kD),
            scale(stream, kBlocks * scale_ld()) {
        group_begin.fill(0x55), token_of.fill(0x55), codes.fill(0x55), scale.fill(0x55);
      }
      int scale_ld() const { return (n_rows + 3) / 4 * 4; }
      int n_rows;
      DeviceArray<int32_t> topk, group_begin, token_of, row_of;
      DeviceArray<float> weights;
      DeviceArray<uint8_t> codes;
      DeviceArray<float> scale;
    };
    const auto parts_of = [&](const Out& out) {
      return PlanAndRound{.route = {.logits = logits.data(),
                                    .bias = bias.data(),
                                    .slot = slot.data(),
                                    .topk = out.topk.data(),
                                    .weights = out.weights.data(),
                                    .n_tokens = n_tokens,
                                    .n_experts = c.n_experts,
                                    .n_active = c.n_active,
                                    .n_groups = 8,
                                    .n_groups_kept = 4},
                          .plan = {.topk = out.topk.data(),
                                   .plan = {out.group_begin.data(), out.token_of.data(), out.row_of.data()},
                                   .n_tokens = n_tokens,
                                   .n_active = c.n_active,
                                   .n_experts_here = c.n_experts,
                                   .has_shared = c.shared},
                          .input = {.x = x.data(),
                                    .x_is_f32 = true,
                                    .x_ld = kD,
                                    .out = {out.codes.data(), kD, out.scale.data(), out.scale_ld()},
                                    .n_tokens = n_tokens,
                                    .k = kD}};
    };
    const Out apart(*stream_, c, n_pairs), together(*stream_, c, n_pairs);
    PlanAndRound parts = parts_of(apart);
    route_tokens(parts.route, stream_->handle());
    parts.route = {};
    plan_and_round(parts, stream_->handle());
    plan_and_round(parts_of(together), stream_->handle());
    EXPECT_EQ(together.topk.host(), apart.topk.host());
    EXPECT_EQ(together.weights.host(), apart.weights.host());
    EXPECT_EQ(together.group_begin.host(), apart.group_begin.host());
    EXPECT_EQ(together.token_of.host(), apart.token_of.host());
    EXPECT_EQ(together.row_of.host(), apart.row_of.host());
    EXPECT_EQ(together.codes.host(), apart.codes.host());
    EXPECT_EQ(together.scale.host(), apart.scale.host());
  }
}

// One expert layer from bf16 activations to the sum over experts.
class ExpertLayer {
 public:
  static constexpr int kD = 512, kF = 256, kExperts = 16, kActive = 4;

  explicit ExpertLayer(const Stream& stream)
      : stream_(stream),
        gate_up_(stream, random_e4m3(int64_t{kExperts} * 2 * kF * kD, 1)),
        gate_up_scale_(stream, random_scales(kExperts * blocks_of(2 * kF) * blocks_of(kD), 2)),
        down_(stream, random_e4m3(int64_t{kExperts} * kD * kF, 3)),
        down_scale_(stream, random_scales(kExperts * blocks_of(kD) * blocks_of(kF), 4)) {}

  // out [T, D]; `plan` is used for both products.
  std::vector<float> run(const std::vector<uint16_t>& x, const std::vector<int32_t>& topk,
                         const std::vector<float>& weights, const GemmFp8Plan& plan) const {
    const int n_tokens = static_cast<int>(x.size()) / kD, n_pairs = n_tokens * kActive, ld = (n_tokens + 3) / 4 * 4;
    const DeviceArray<uint16_t> device_x(stream_, x);
    const DeviceArray<int32_t> device_topk(stream_, topk), begin(stream_, kExperts + 1), token_of(stream_, n_pairs),
        row_of(stream_, n_pairs);
    const DeviceArray<float> device_weights(stream_, weights), out(stream_, int64_t{n_tokens} * kD);
    const DeviceArray<uint8_t> codes(stream_, int64_t{n_tokens} * kD), sorted(stream_, int64_t{n_pairs} * kD),
        hidden(stream_, int64_t{n_pairs} * kF);
    const DeviceArray<float> scale(stream_, blocks_of(kD) * ld), sorted_scale(stream_, blocks_of(kD) * n_pairs),
        hidden_scale(stream_, blocks_of(kF) * n_pairs);
    const DeviceArray<uint16_t> gate_up_out(stream_, int64_t{n_pairs} * 2 * kF), y(stream_, int64_t{n_pairs} * kD);
    const RowPlan rows = {begin.data(), token_of.data(), row_of.data()};
    quantize_fp8(
        {.x = device_x.data(), .x_ld = kD, .out = {codes.data(), kD, scale.data(), ld}, .n_tokens = n_tokens, .k = kD},
        stream_.handle());
    plan_rows({.topk = device_topk.data(),
               .plan = rows,
               .n_tokens = n_tokens,
               .n_active = kActive,
               .n_experts_here = kExperts},
              stream_.handle());
    gather_rows({.from = {codes.data(), kD, scale.data(), ld},
                 .plan = rows,
                 .out = {sorted.data(), kD, sorted_scale.data(), n_pairs},
                 .n_rows = n_pairs,
                 .n_groups = kExperts,
                 .k = kD},
                stream_.handle());
    gemm_fp8(product(sorted, sorted_scale, gate_up_, gate_up_scale_, gate_up_out.data(), {n_pairs, 2 * kF, kD}, begin),
             plan, stream_.handle());
    silu_mul_quantize({.gate = gate_up_out.data(),
                       .up = gate_up_out.data() + kF,
                       .ld = 2 * kF,
                       .out = {hidden.data(), kF, hidden_scale.data(), n_pairs},
                       .n_tokens = n_pairs,
                       .d_hidden = kF},
                      stream_.handle());
    gemm_fp8(product(hidden, hidden_scale, down_, down_scale_, y.data(), {n_pairs, kD, kF}, begin), plan,
             stream_.handle());
    combine_rows({.y = y.data(),
                  .weights = device_weights.data(),
                  .row_of = row_of.data(),
                  .out = out.data(),
                  .n_tokens = n_tokens,
                  .n_active = kActive,
                  .d_model = kD},
                 stream_.handle());
    return out.host();
  }

 private:
  struct Extents {
    int rows, n, k;
  };
  GemmFp8 product(const DeviceArray<uint8_t>& x, const DeviceArray<float>& x_scale, const DeviceArray<uint8_t>& w,
                  const DeviceArray<float>& w_scale, void* out, const Extents& e,
                  const DeviceArray<int32_t>& begin) const {
    GemmFp8 a;
    a.x = x.data();
    a.x_row_bytes = e.k;
    a.x_scale = x_scale.data();
    a.x_scale_ld = e.rows;
    a.w = w.data();
    a.w_scale = w_scale.data();
    a.out = out;
    a.n_tokens = e.rows;
    a.n = e.n;
    a.k = e.k;
    a.n_groups = kExperts;
    a.group_begin = begin.data();
    return a;
  }

  const Stream& stream_;
  DeviceArray<uint8_t> gate_up_;
  DeviceArray<float> gate_up_scale_;
  DeviceArray<uint8_t> down_;
  DeviceArray<float> down_scale_;
};

TEST_F(MoeTest, AnExpertLayersTokensDoNotNoticeTheirNeighbours) {
  constexpr int kTokens = 150, kD = ExpertLayer::kD, kActive = ExpertLayer::kActive;
  const ExpertLayer layer(*stream_);
  std::mt19937_64 generator(8);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(kTokens * kD);
  for (uint16_t& value : x) value = f32_to_bf16(normal(generator));
  const std::vector<int32_t> topk = random_topk(kTokens, ExpertLayer::kExperts, kActive, 9);
  std::vector<float> weights(kTokens * kActive);
  for (float& w : weights) w = std::fabs(normal(generator));
  const std::vector<float> all = layer.run(x, topk, weights, {GemmKernel::kTiles, 256, 128});
  ASSERT_TRUE(std::isfinite(all[0]) && all[0] != 0);
  for (const auto& [first, count] : {std::pair{0, 1}, {77, 1}, {10, 5}, {60, 64}}) {
    const auto part = [&](const auto& values, int width) {
      return std::vector(values.begin() + first * width, values.begin() + (first + count) * width);
    };
    const std::vector<float> some =
        layer.run(part(x, kD), part(topk, kActive), part(weights, kActive), {GemmKernel::kFewRows, 8, 64});
    int n_different = 0;
    for (int i = 0; i < count * kD; ++i)
      n_different += std::bit_cast<uint32_t>(some[static_cast<size_t>(i)]) !=
                     std::bit_cast<uint32_t>(all[static_cast<size_t>(first * kD + i)]);
    EXPECT_EQ(n_different, 0) << "tokens " << first << "+" << count;
  }
}

TEST_F(MoeTest, CombinesInAscendingOrderThenAddsTheShared) {
  constexpr int kD = 264, kTokens = 3, kActive = 4;
  std::mt19937_64 generator(2);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> y(kTokens * kActive * kD), shared(kTokens * kD);
  for (auto* values : {&y, &shared})
    for (uint16_t& value : *values) value = f32_to_bf16(normal(generator));
  std::vector<float> weights(kTokens * kActive);
  for (float& w : weights) w = normal(generator);
  const std::vector<int32_t> row_of = {3, -1, 0, 11, 5, 6, 7, 8, -1, -1, -1, -1};
  const DeviceArray<uint16_t> device_y(*stream_, y), device_shared(*stream_, shared);
  const DeviceArray<float> device_weights(*stream_, weights), out(*stream_, kTokens * kD);
  const DeviceArray<int32_t> rows(*stream_, row_of);
  CombineRows combined{.y = device_y.data(),
                       .weights = device_weights.data(),
                       .row_of = rows.data(),
                       .shared = device_shared.data(),
                       .out = out.data(),
                       .n_tokens = kTokens,
                       .n_active = kActive,
                       .d_model = kD};
  combine_rows(combined, stream_->handle());
  const std::vector<float> got = out.host();
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kD; ++c) {
      float total = 0;
      for (int i = 0; i < kActive; ++i)
        if (const int row = row_of[static_cast<size_t>(t * kActive + i)]; row >= 0)
          total = std::fma(weights[static_cast<size_t>(t * kActive + i)],
                           bf16_to_f32(y[static_cast<size_t>(row * kD + c)]), total);
      ASSERT_EQ(got[static_cast<size_t>(t * kD + c)], total + bf16_to_f32(shared[static_cast<size_t>(t * kD + c)]))
          << t << ", " << c;
    }
  }
  std::vector<uint16_t> with_shared = y;  // whose rows stand after those of the experts
  with_shared.insert(with_shared.end(), shared.begin(), shared.end());
  const DeviceArray<uint16_t> device_with_shared(*stream_, with_shared);
  const DeviceArray<int32_t> first_shared(*stream_, std::vector<int32_t>{kTokens * kActive});
  combined.y = device_with_shared.data();
  combined.shared = nullptr;
  combined.first_shared = first_shared.data();
  out.fill(0xFF);
  combine_rows(combined, stream_->handle());
  EXPECT_EQ(out.host(), got);
}

}  // namespace
}  // namespace levin::cuda
