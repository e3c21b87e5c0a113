// Choices, log-sums and copies on the device against the rules on the host.
#include "kernels/cuda/plain/sampling.h"

#include <cstring>
#include <limits>

#include "decode/noise.h"
#include "decode/sampling.h"
#include "kernels/cuda/plain/copies.h"
#include "kernels/cuda/plain/plain_test.h"
#include "ops/logits.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

constexpr int64_t kVocabularies[] = {1, 5, 16, 1000, 129280};

class PlainSamplingTest : public PlainTest {
 protected:
  static Logits upload(DeviceArgs& args, const Tensor& x) {
    return {.x = args.in<float>(x), .ld = x.view().dim(1), .n_rows = x.view().dim(0), .n_vocab = x.view().dim(1)};
  }
  // out [T, kChosenTokenWords] of x [T, V].
  void choose(const Tensor& x, const std::vector<ChoiceRule>& rules, const Tensor& out) {
    DeviceArgs args(*stream_);
    const auto n_part_bytes = static_cast<int64_t>(rules.size() * kChoiceParts * sizeof(ChoicePart));
    choose_tokens({.logits = upload(args, x),
                   .rules = args.in(rules),
                   .out = reinterpret_cast<ChosenToken*>(args.out<int32_t>(out)),
                   .parts = reinterpret_cast<ChoicePart*>(args.scratch(n_part_bytes))},
                  stream());
    args.fetch();
  }
};

TEST_F(PlainSamplingTest, ArgmaxAndItsFault) {
  for (const int64_t v : kVocabularies) {
    SCOPED_TRACE(v);
    Random random(static_cast<uint64_t>(v));
    Tensor x = random_tensor(random, {4, v}, 3.0f);
    for (int64_t i = 0; i < v; ++i)
      x.at(v + i) = i % 2 == 0 ? -0.0f : 0.0f, x.at(2 * v + i) = -std::numeric_limits<float>::infinity();
    const Tensor expected(DType::kI32, {4});
    ops::argmax(cpu(), {.x = x, .out = expected});
    Tensor poisoned = copy_of(x), out = unset(DType::kI32, {4}), bad = unset(DType::kI32, {4}),
           fault = i32_tensor({0, 0, 0, 0});
    poisoned.at(v / 2) = std::numeric_limits<float>::quiet_NaN();
    DeviceArgs args(*stream_);
    argmax({.logits = upload(args, x), .out = args.out<int32_t>(out)}, stream());
    argmax({.logits = upload(args, poisoned), .out = args.out<int32_t>(bad), .fault = args.out<int32_t>(fault)},
           stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(fault, i32_tensor({kNanLogit, 0, 0, 0})));
    for (int64_t t = 0; t < 4; ++t)
      EXPECT_EQ(bad.view().data<int32_t>()[t], t == 0 ? 0 : expected.view().data<int32_t>()[t]);
  }
}

TEST_F(PlainSamplingTest, TokensEqualTheHosts) {
  for (const int64_t v : kVocabularies) {
    constexpr int64_t kRows = 12;
    Random random(static_cast<uint64_t>(v));
    Tensor x = random_tensor(random, {kRows, v}, 2.0f);
    for (int64_t i = 1; i < v; i += 3) x.at(3 * v + i) = -std::numeric_limits<float>::infinity();
    std::vector<ChoiceRule> rules;
    for (int64_t t = 0; t < kRows; ++t) {
      rules.push_back({.seed = random.bits(),
                       .temperature = t % 4 == 0 ? 0.0 : 0.3 * static_cast<double>(t),
                       .position = static_cast<uint32_t>(random.below(1 << 20)),
                       .choice = static_cast<uint32_t>(t % 3)});
    }
    x.at(5 * v + v / 2) = 100;  // as good as certain
    // The last three rows are not sound.
    x.at((kRows - 3) * v + v / 2) = std::numeric_limits<float>::quiet_NaN();
    x.at((kRows - 2) * v) = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < v; ++i) x.at((kRows - 1) * v + i) = -std::numeric_limits<float>::infinity();
    Tensor out = unset(DType::kI32, {kRows, kChosenTokenWords});
    const Tensor of_cpu(DType::kI32, {kRows, kChosenTokenWords}), words(DType::kI32, {kRows, kChoiceRuleWords});
    std::memcpy(words.view().bytes(), rules.data(), rules.size() * sizeof(ChoiceRule));
    ops::choose_tokens(cpu(), {.x = x, .rules = words, .out = of_cpu});
    choose(x, rules, out);
    for (int64_t t = 0; t < kRows; ++t) {
      const ChoiceRule& rule = rules[static_cast<size_t>(t)];
      SamplingParams params;
      params.temperature = rule.temperature, params.seed = rule.seed, params.choice = rule.choice;
      const std::span<const float> logits(x.view().row<float>(t), static_cast<size_t>(v));
      const Result<SamplingPlan> plan = SamplingPlan::make(params, v);
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      const Choice expected = choose_token(logits, *plan, {.position = rule.position});
      for (const Tensor* tensor : std::initializer_list<const Tensor*>{&out, &of_cpu}) {
        const auto* chosen = reinterpret_cast<const ChosenToken*>(tensor->view().row<int32_t>(t));
        EXPECT_EQ(chosen->sound, expected.ok() ? 1 : 0) << v << " row " << t;
        EXPECT_EQ(chosen->token, expected.ok() ? expected.token : 0) << v << " row " << t;
        EXPECT_NEAR(chosen->probability, max_prob(logits, 0), 2e-3) << v << " row " << t;
        EXPECT_LT(chosen->probability, 1) << v << " row " << t;
      }
    }
  }
}

// Equal logits, and equal largest ones in different parts of the row: the lowest id. The probability too has the same bits whatever
// other rows there are.
TEST_F(PlainSamplingTest, ARowChoosesAloneAsInABatch) {
  for (const int64_t v : kVocabularies) {
    constexpr int64_t kRows = 5;
    Random random(static_cast<uint64_t>(v) + 1);
    Tensor x = random_tensor(random, {kRows, v}, 3.0f);
    for (int64_t i = 0; i < v; ++i) x.at(v + i) = i % 2 == 0 ? -0.0f : 0.0f;
    for (const int64_t i : {v / 3, v / 2, v - 1}) x.at(2 * v + i) = 50;
    const std::vector<ChoiceRule> rules(kRows, {.seed = 7, .temperature = 0});
    Tensor all = unset(DType::kI32, {kRows, kChosenTokenWords});
    choose(x, rules, all);
    EXPECT_EQ(reinterpret_cast<const ChosenToken*>(all.view().row<int32_t>(1))->token, 0);
    EXPECT_EQ(reinterpret_cast<const ChosenToken*>(all.view().row<int32_t>(2))->token, v / 3);
    for (int64_t t = 0; t < kRows; ++t) {
      const Tensor row(DType::kF32, {1, v});
      std::memcpy(row.view().bytes(), x.view().row<float>(t), static_cast<size_t>(v) * 4);
      Tensor alone = unset(DType::kI32, {1, kChosenTokenWords});
      choose(row, {rules[static_cast<size_t>(t)]}, alone);
      EXPECT_EQ(std::memcmp(alone.view().bytes(), all.view().row<int32_t>(t), sizeof(ChosenToken)), 0)
          << v << " row " << t;
    }
  }
}

TEST_F(PlainSamplingTest, Copies) {
  Random random(1);
  const Tensor x = random_tensor(random, {5, 37}, 1.0f), scale = random_tensor(random, {6, 37}, 1.0f);
  Tensor out = unset(DType::kF32, {6, 80}), scaled = unset(DType::kF32, {5, 37});
  DeviceArgs args(*stream_);
  const float* device_x = args.in<float>(x);
  float* device_out = args.out<float>(out);
  copy_rows({.x = device_x,
             .x_ld = 37,
             .rows = args.in(std::vector<int32_t>{4, 4, -1, 0, 2, 1}),
             .out = device_out,
             .out_ld = 80,
             .n_rows = 6,
             .d = 37},
            stream());
  copy_rows({.x = device_x, .x_ld = 37, .repeat = 2, .out = device_out + 40, .out_ld = 80, .n_rows = 6, .d = 36},
            stream());
  scale_rows({.x = device_x,
              .x_ld = 37,
              .factor = 0.3f,
              .scale = args.in<float>(scale),
              .out = args.out<float>(scaled),
              .out_ld = 37,
              .n_rows = 5,
              .d = 37},
             stream());
  args.fetch();
  const int64_t rows[] = {4, 4, -1, 0, 2, 1};
  const float unwritten = unset(DType::kF32, {1}).at(0);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t c = 0; c < 37; ++c) EXPECT_EQ(out.at(i * 80 + c), rows[i] < 0 ? unwritten : x.at(rows[i] * 37 + c));
    for (int64_t c = 0; c < 36; ++c) EXPECT_EQ(out.at(i * 80 + 40 + c), x.at(i / 2 * 37 + c));
    for (int64_t c = 76; c < 80; ++c) EXPECT_EQ(out.at(i * 80 + c), unwritten);
  }
  for (int64_t i = 0; i < 5 * 37; ++i) EXPECT_EQ(scaled.at(i), x.at(i) * 0.3f * scale.at(i));
}

}  // namespace
}  // namespace levin::cuda::plain
