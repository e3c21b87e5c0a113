// Linear attention on the device against the CPU's plain kernels, bit for bit: outputs and everything the rings keep.
#include "ops/linear_attention.h"

#include "kernels/cuda/plain/linear_attention.h"
#include "kernels/cuda/plain/plain_test.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

constexpr int64_t kPadding = 3;  // rows of a step, after those of its sequences
constexpr int64_t kBlock = 64;
constexpr float kLower = -5;

class PlainLinearAttentionTest : public PlainTest {};

struct Shape {
  int64_t n_heads, d_head, n_taps, n_undone;
};

// The rings of three sequences, of which a step's two have the last and the first, on the CPU and as the device left them.
struct Rings {
  RecurrentFormat format;
  int64_t n_undone, n_ends = 2;
  Tensor cpu, device, ids = i32_tensor({2, 0});

  explicit Rings(const Shape& s)
      : format{.n_heads = s.n_heads, .d_head = s.d_head, .n_taps = s.n_taps, .n_block_tokens = kBlock},
        n_undone(s.n_undone),
        cpu(unset(DType::kF32, {3 * format.ring_bytes(n_undone, n_ends) / 4})),
        device(copy_of(cpu)) {}

  levin::RecurrentRings on_cpu() const {
    return {.rings = cpu.view().bytes(),
            .n_undone = n_undone,
            .n_ends = n_ends,
            .n_block_tokens = kBlock,
            .format = format,
            .ids = ids};
  }
  RecurrentRings on_device(DeviceArgs& args) const {
    return {.rings = args.out<std::byte>(device),
            .n_undone = n_undone,
            .n_ends = n_ends,
            .n_block_tokens = kBlock,
            .format = format,
            .ids = args.in(std::vector<int32_t>{2, 0, 0})};
  }
};

// A step of two sequences; on the device with room for a third, and with padding.
struct Step {
  int32_t n_first, n_rows;
  std::vector<int32_t> length;
  Tensor first_row, end_row, first_position;

  Step(const std::vector<int32_t>& n_new, const std::vector<int32_t>& n_before)
      : n_first(n_new[0]),
        n_rows(n_new[0] + n_new[1]),
        length(n_before),
        first_row(i32_tensor({0, n_first})),
        end_row(i32_tensor({n_first, n_rows})),
        first_position(i32_tensor(length)) {}

  ops::RecurrentTokens on_cpu(const Rings& rings) const {
    return {.first_row = first_row, .end_row = end_row, .first_position = first_position, .rings = rings.on_cpu()};
  }
  RecurrentTokens on_device(DeviceArgs& args, const Rings& rings) const {
    return {.first_row = args.in(std::vector<int32_t>{0, n_first, 0}),
            .end_row = args.in(std::vector<int32_t>{n_first, n_rows, 0}),
            .first_position = args.in(std::vector<int32_t>{length[0], length[1], 0}),
            .n_seqs = 3,
            .rings = rings.on_device(args)};
  }
};

// Rows of padding are zeros, those before them the CPU's.
void expect_rows(const Tensor& device, const Tensor& cpu) {
  const int64_t n_rows = cpu.view().dim(0), width = cpu.view().dim(1);
  ASSERT_TRUE(same_bits(View(device).slice_first(0, n_rows), cpu));
  ASSERT_TRUE(same_bits(View(device).slice_first(n_rows, kPadding), Tensor(DType::kF32, {kPadding, width})));
}

View without_padding(const Tensor& rows) { return View(rows).slice_first(0, rows.view().dim(0) - kPadding); }

constexpr Shape kShapes[] = {{3, 16, 4, 3}, {1, 5, 1, 0}, {2, 33, 3, 20}, {2, 128, 4, 3}, {1, 300, 16, 6}};
// Steps of the two sequences: beyond a ring, to the ends of blocks and over several of them, and none of one.
constexpr std::pair<int, int> kSteps[] = {{5, 1}, {59, 15}, {1, 300}, {2, 0}, {0, 7}, {17, 1}, {1, 1}};

TEST_F(PlainLinearAttentionTest, TheConvolutionAndItsRingsStepByStep) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(fmt::format("{} heads of {}", s.n_heads, s.d_head));
    Random random(static_cast<uint64_t>(s.d_head));
    const Rings rings(s);
    const int64_t n_channels = rings.format.d_heads(), first_channel = n_channels;  // those of k
    const Tensor weight = random_tensor(random, {n_channels, s.n_taps}, 0.5f);
    std::vector<int32_t> length = {0, 0};
    for (const auto& [first, second] : kSteps) {
      const Step step({first, second}, length);
      const Tensor x = random_tensor(random, {step.n_rows + kPadding, n_channels}, 1.0f);
      const Tensor expected(DType::kF32, {step.n_rows, n_channels});
      ops::short_conv(cpu(), {.x = without_padding(x),
                              .weight = weight,
                              .tokens = step.on_cpu(rings),
                              .first_channel = first_channel,
                              .out = expected});
      Tensor out = unset(DType::kF32, {step.n_rows + kPadding, n_channels});
      DeviceArgs args(*stream_);
      short_conv({.x = args.in<float>(x),
                  .x_ld = n_channels,
                  .weight = args.in<float>(weight),
                  .tokens = step.on_device(args, rings),
                  .first_channel = first_channel,
                  .out = args.out<float>(out),
                  .out_ld = n_channels,
                  .n_rows = step.n_rows + kPadding,
                  .n_channels = n_channels},
                 stream());
      args.fetch();
      expect_rows(out, expected);
      ASSERT_TRUE(same_bits(rings.device, rings.cpu));
      length[0] += first, length[1] += second;
    }
  }
}

TEST_F(PlainLinearAttentionTest, TheDeltaRuleAndItsRingsStepByStep) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(fmt::format("{} heads of {}", s.n_heads, s.d_head));
    Random random(static_cast<uint64_t>(s.d_head) + 1);
    const Rings rings(s);
    const int64_t d = rings.format.d_heads();
    const Tensor bias = random_tensor(random, {d}, 0.5f), log_rate = random_tensor(random, {s.n_heads}, 0.5f);
    std::vector<int32_t> length = {0, 0};
    for (const auto& [first, second] : kSteps) {
      const Step step({first, second}, length);
      const int64_t n_rows = step.n_rows + kPadding;
      const Tensor q = random_tensor(random, {n_rows, d}), k = random_tensor(random, {n_rows, d}),
                   v = random_tensor(random, {n_rows, d}), decay = random_tensor(random, {n_rows, d}, 2.0f),
                   beta = random_tensor(random, {n_rows, s.n_heads});
      const Tensor expected(DType::kF32, {step.n_rows, d});
      ops::delta_rule(cpu(), {.q = without_padding(q),
                              .k = without_padding(k),
                              .v = without_padding(v),
                              .decay = without_padding(decay),
                              .decay_bias = bias,
                              .log_rate = log_rate,
                              .lower = kLower,
                              .beta = without_padding(beta),
                              .tokens = step.on_cpu(rings),
                              .out = expected});
      Tensor out = unset(DType::kF32, {n_rows, d});
      DeviceArgs args(*stream_);
      delta_rule({.q = args.in<float>(q),
                  .k = args.in<float>(k),
                  .v = args.in<float>(v),
                  .decay = args.in<float>(decay),
                  .q_ld = d,
                  .k_ld = d,
                  .v_ld = d,
                  .decay_ld = d,
                  .decay_bias = args.in<float>(bias),
                  .log_rate = args.in<float>(log_rate),
                  .lower = kLower,
                  .beta = args.in<float>(beta),
                  .beta_ld = s.n_heads,
                  .tokens = step.on_device(args, rings),
                  .out = args.out<float>(out),
                  .out_ld = d,
                  .n_rows = n_rows},
                 stream());
      args.fetch();
      expect_rows(out, expected);
      ASSERT_TRUE(same_bits(rings.device, rings.cpu));
      length[0] += first, length[1] += second;
    }
  }
}

TEST_F(PlainLinearAttentionTest, TheOutputGate) {
  for (const int64_t d : {1, 300}) {
    Random random(static_cast<uint64_t>(d));
    const Tensor x = random_tensor(random, {7, d}), gate = random_tensor(random, {7, d}, 4.0f);
    const Tensor expected(DType::kF32, {7, d});
    ops::sigmoid_mul(cpu(), {.x = x, .gate = gate, .out = expected});
    Tensor out = unset(DType::kF32, {7, d});
    DeviceArgs args(*stream_);
    sigmoid_mul({.x = args.in<float>(x),
                 .x_ld = d,
                 .gate = args.in<float>(gate),
                 .gate_ld = d,
                 .out = args.out<float>(out),
                 .out_ld = d,
                 .n_rows = 7,
                 .d = d},
                stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected)) << d;
  }
}

}  // namespace
}  // namespace levin::cuda::plain
