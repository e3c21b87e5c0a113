#include "ops/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "ops/support.h"

namespace levin::testing {
namespace {

constexpr float kLower = -5;
constexpr int64_t kBlock = 64;

struct Case {
  int64_t n_heads, d_head, n_taps, n_tokens;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.n_heads << " heads of " << c.d_head << ", " << c.n_taps << " taps, " << c.n_tokens << " tokens";
}

// A sequence's inputs. One row a token; those of the convolution are its q, k and v channels.
struct Problem {
  Case c;
  RecurrentFormat format;
  Tensor u, weight, decay, bias, log_rate, beta;

  explicit Problem(const Case& k, uint64_t seed = 1)
      : c(k),
        format{.n_heads = k.n_heads, .d_head = k.d_head, .n_taps = k.n_taps, .n_block_tokens = kBlock},
        u(random_input(seed, 3 * format.d_heads())),
        weight(random_weights(2, {3 * format.d_heads(), k.n_taps})),
        decay(random_input(seed + 3, format.d_heads(), 2.0f)),
        bias(random_weights(4, {format.d_heads()})),
        log_rate(random_weights(5, {k.n_heads})),
        beta(random_input(seed + 6, k.n_heads)) {}

  Tensor random_input(uint64_t seed, int64_t width, float scale = 1.0f) const {
    Random random(seed);
    return random_tensor(random, {c.n_tokens, width}, scale);
  }
  static Tensor random_weights(uint64_t seed, std::initializer_list<int64_t> shape) {
    Random random(seed);
    return random_tensor(random, shape, 0.5f);
  }
};

// Rings of two sequences, every byte set to ones at first, so that reading what was not written shows.
class Rings {
 public:
  Rings(const Problem& p, int64_t n_undone, int64_t n_ends = 2) : ids_(i32_tensor({1, 0})) {
    rings_ = {.n_undone = n_undone, .n_ends = n_ends, .n_block_tokens = kBlock, .format = p.format, .ids = ids_};
    memory_.resize(static_cast<size_t>(2 * p.format.ring_bytes(n_undone, n_ends) / 4), 0xFFFFFFFF);
    rings_.rings = reinterpret_cast<std::byte*>(memory_.data());
  }
  const RecurrentRings& get() const { return rings_; }
  // The same, where the device of `args` can read and write them.
  RecurrentRings on_device(Args& args) const {
    RecurrentRings rings = rings_;
    const View bytes(rings_.rings, DType::kI8, {static_cast<int64_t>(memory_.size() * sizeof(memory_[0]))});
    rings.rings = args.out(bytes).bytes();
    rings.ids = args.in(ids_);
    return rings;
  }

  static Tensor i32_tensor(const std::vector<int32_t>& values) { return Tensor::of(values, {std::ssize(values)}); }

 private:
  std::vector<uint32_t> memory_;
  Tensor ids_;
  RecurrentRings rings_;
};

// Rows begin .. end-1 twice, of both sequences.
Tensor twice(const Tensor& rows, int64_t begin, int64_t end) {
  const int64_t n = end - begin, width = rows.view().dim(1);
  Tensor out(DType::kF32, {2 * n, width});
  for (int64_t s = 0; s < 2; ++s) std::copy_n(rows.view().row<float>(begin), n * width, out.view().row<float>(s * n));
  return out;
}

struct Outputs {
  Tensor conv, out;  // [n, 3 Hl Dl], [n, Hl Dl]
  explicit Outputs(const Problem& p)
      : conv(DType::kF32, {p.c.n_tokens, 3 * p.format.d_heads()}),
        out(DType::kF32, {p.c.n_tokens, p.format.d_heads()}) {}
};

// Runs tokens [begin, end) of two sequences with the same tokens; those of the second are put into `outputs`.
void run_step(TestDevice& device, const Problem& p, const Rings& rings, int64_t begin, int64_t end, Outputs& outputs) {
  const int64_t n = end - begin, d = p.format.d_heads();
  const auto i32 = [](int64_t a, int64_t b) {
    return Rings::i32_tensor({static_cast<int32_t>(a), static_cast<int32_t>(b)});
  };
  const Tensor first_row = i32(0, n), end_row = i32(n, 2 * n), first_position = i32(begin, begin);
  const Tensor u = twice(p.u, begin, end), decay = twice(p.decay, begin, end), beta = twice(p.beta, begin, end);
  Tensor conv(DType::kF32, {2 * n, 3 * d}), out(DType::kF32, {2 * n, d});
  Args args(device);
  const ops::RecurrentTokens tokens{.first_row = args.in(first_row),
                                    .end_row = args.in(end_row),
                                    .first_position = args.in(first_position),
                                    .rings = rings.on_device(args)};
  const View inputs = args.in(u), weight = args.in(p.weight), convolved = args.out(conv);
  for (int64_t part = 0; part < 3; ++part) {
    ops::short_conv(device.ctx(), {.x = inputs.slice_last(part * d, d),
                                   .weight = weight.slice_first(part * d, d),
                                   .tokens = tokens,
                                   .first_channel = part * d,
                                   .out = convolved.slice_last(part * d, d)});
  }
  ops::delta_rule(device.ctx(), {.q = convolved.slice_last(0, d),
                                 .k = convolved.slice_last(d, d),
                                 .v = convolved.slice_last(2 * d, d),
                                 .decay = args.in(decay),
                                 .decay_bias = args.in(p.bias),
                                 .log_rate = args.in(p.log_rate),
                                 .lower = kLower,
                                 .beta = args.in(beta),
                                 .tokens = tokens,
                                 .out = args.out(out)});
  args.fetch();
  std::copy_n(conv.view().row<float>(n), n * 3 * d, outputs.conv.view().row<float>(begin));
  std::copy_n(out.view().row<float>(n), n * d, outputs.out.view().row<float>(begin));
}

using StepSizes = std::vector<int64_t>;

Outputs run_all(TestDevice& device, const Problem& p, const StepSizes& sizes) {
  const Rings rings(p, 3);
  Outputs out(p);
  int64_t begin = 0;
  for (size_t i = 0; begin < p.c.n_tokens; ++i) {
    const int64_t end = std::min(p.c.n_tokens, begin + sizes[i % sizes.size()]);
    run_step(device, p, rings, begin, end, out);
    begin = end;
  }
  return out;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// In double, from the convolution's outputs as they are: errors of the two ops do not mix.
struct Oracle {
  std::vector<double> state;  // [Dl, Dl] of one head

  static double norm(const float* x, int64_t d) {
    double sum = 1e-6;
    for (int64_t i = 0; i < d; ++i) sum += double{x[i]} * x[i];
    return std::sqrt(sum);
  }

  // The head's output for token t.
  std::vector<double> step(const Problem& p, const Outputs& o, int64_t head, int64_t t) {
    const int64_t d = p.c.d_head, all = p.format.d_heads();
    const float* q = o.conv.view().row<float>(t) + head * d;
    const float *k = q + all, *v = q + 2 * all;
    const double k_norm = norm(k, d), q_norm = norm(q, d) * std::sqrt(static_cast<double>(d));
    const double beta = sigmoid(p.beta.at(t * p.c.n_heads + head)), rate = std::exp(double{p.log_rate.at(head)});
    std::vector<double> delta(v, v + d), out(static_cast<size_t>(d));
    for (int64_t i = 0; i < d; ++i) {
      const double x = double{p.decay.at(t * all + head * d + i)} + p.bias.at(head * d + i);
      const double decay = std::exp(kLower * sigmoid(rate * x));
      for (int64_t j = 0; j < d; ++j) {
        state[i * d + j] *= decay;
        delta[j] -= state[i * d + j] * k[i] / k_norm;
      }
    }
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        state[i * d + j] += beta * delta[j] * k[i] / k_norm;
        out[j] += state[i * d + j] * q[i] / q_norm;
      }
    }
    return out;
  }
};

class LinearAttentionTest : public ::testing::TestWithParam<Case> {};

// n products and n additions, each half a unit of the sum of sizes; silu three units of its own, and at most 1.1 times what
// its argument is off by.
TEST_P(LinearAttentionTest, TheConvolutionIsNearTheOracle) {
  const Problem p(GetParam());
  const Outputs o = run_all(plain_device(), p, {p.c.n_tokens});
  const int64_t n_channels = 3 * p.format.d_heads(), n_taps = p.c.n_taps;
  for (int64_t t = 0; t < std::min<int64_t>(p.c.n_tokens, 200); ++t) {
    for (int64_t c = 0; c < n_channels; ++c) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < n_taps; ++i) {
        const int64_t row = t - n_taps + 1 + i;
        if (row < 0) continue;
        const double term = double{p.weight.at(c * n_taps + i)} * p.u.at(row * n_channels + c);
        sum += term, size += std::abs(term);
      }
      const double want = sum * sigmoid(sum);
      const double bound =
          (1.1 * 2 * static_cast<double>(n_taps) * size + 8 * (1 + std::abs(sum)) * std::abs(want)) * 0x1p-24;
      ASSERT_NEAR(o.conv.at(t * n_channels + c), want, bound + 1e-30) << t << ", " << c;
    }
  }
}

// The state is a sum of updates that decay; what one token adds is at most |v| + |S^T k|, where |k| is 1, and diag(a) and
// I - b k k^T lengthen nothing. So errors of a token, some Dl + 10 units of what is added and of the state, add up over
// the tokens at worst.
TEST_P(LinearAttentionTest, TheDeltaRuleIsNearTheOracle) {
  const Problem p(GetParam());
  const Outputs o = run_all(plain_device(), p, {p.c.n_tokens});
  const int64_t d = p.c.d_head;
  for (int64_t head = 0; head < p.c.n_heads; ++head) {
    Oracle oracle{.state = std::vector<double>(static_cast<size_t>(d * d))};
    double errors = 0;
    for (int64_t t = 0; t < p.c.n_tokens; ++t) {
      const std::vector<double> want = oracle.step(p, o, head, t);
      double size = 0;
      for (const double x : oracle.state) size += x * x;
      const float* v = o.conv.view().row<float>(t) + 2 * p.format.d_heads() + head * d;
      errors += 2 * static_cast<double>(d + 10) * (std::sqrt(size) + Oracle::norm(v, d)) * 0x1p-24;
      for (int64_t j = 0; j < d; ++j) {
        ASSERT_NEAR(o.out.at((t * p.c.n_heads + head) * d + j), want[j], errors) << t << ", head " << head << ", " << j;
      }
    }
  }
}

// Whatever the steps, threads and kernels: the same bits.
TEST_P(LinearAttentionTest, BitsDependOnTheTokensAlone) {
  const Problem p(GetParam());
  const Outputs want = run_all(plain_device(), p, {p.c.n_tokens});
  for (TestDevice* device : backends_under_test()) {
    for (const StepSizes& sizes : {StepSizes{1}, {7}, {64}, {1, 5, 130, 2}}) {
      const Outputs found = run_all(*device, p, sizes);
      ASSERT_TRUE(same_bits(found.conv, want.conv)) << device->name() << ", steps of " << sizes[0];
      ASSERT_TRUE(same_bits(found.out, want.out)) << device->name() << ", steps of " << sizes[0];
    }
  }
}

// The outputs of steps that are partly run again at other tokens, as drafts that were rejected.
Outputs run_with_drafts(TestDevice& device, const Problem& p, int64_t n_undone) {
  const Rings rings(p, n_undone);
  Outputs found(p);
  Random random(77);
  Problem mixed(p.c, 100);  // other tokens from `kept` on, which only grows
  for (int64_t begin = 0; begin < p.c.n_tokens;) {
    const int64_t end = std::min(p.c.n_tokens, begin + 1 + random.below(2 * n_undone));
    const int64_t kept = std::max(begin + 1, end - random.below(n_undone + 1));
    std::copy_n(p.u.view().data<float>(), kept * p.u.view().dim(1), mixed.u.view().data<float>());
    std::copy_n(p.decay.view().data<float>(), kept * p.decay.view().dim(1), mixed.decay.view().data<float>());
    std::copy_n(p.beta.view().data<float>(), kept * p.beta.view().dim(1), mixed.beta.view().data<float>());
    run_step(device, mixed, rings, begin, end, found);
    begin = kept;
  }
  return found;
}

TEST_P(LinearAttentionTest, TokensThatAreRunAgainLeaveNoTrace) {
  const Problem p(GetParam());
  const Outputs want = run_all(plain_device(), p, {p.c.n_tokens});
  for (TestDevice* device : {&plain_device(), backends_under_test().back()}) {
    for (const int64_t n_undone : {1, 6, 16, 40}) {
      EXPECT_TRUE(same_bits(run_with_drafts(*device, p, n_undone).out, want.out)) << device->name() << ", " << n_undone;
    }
  }
}

// The outputs of a sequence that begins after the last token of a block, with nothing but what ends the block.
Outputs run_from_the_end_of_a_block(TestDevice& device, const Problem& p, int64_t n_step) {
  const RecurrentFormat& f = p.format;
  const Rings rings(p, 3, 8), later(p, 3, 8);
  Outputs found(p);
  for (int64_t begin = 0; begin < 2 * kBlock; begin += n_step)
    run_step(device, p, rings, begin, std::min(2 * kBlock, begin + n_step), found);
  for (int64_t seq = 0; seq < 2; ++seq) {
    for (int64_t position = 2 * kBlock - (f.n_taps - 1); position < 2 * kBlock; ++position)
      std::copy_n(rings.get().end_conv_row(seq, position), f.conv_values(), later.get().conv_row(seq, position));
    std::copy_n(rings.get().end_state(seq, 2 * kBlock), f.state_values(), later.get().state(seq, 2 * kBlock));
  }
  run_step(device, p, later, 2 * kBlock, p.c.n_tokens, found);
  return found;
}

TEST_P(LinearAttentionTest, ContinuesFromTheEndOfABlock) {
  const Problem p(GetParam());
  const Outputs want = run_all(plain_device(), p, {p.c.n_tokens});
  for (TestDevice* device : {&plain_device(), backends_under_test().back()}) {
    for (const int64_t n_step : {1, 50, 300}) {
      EXPECT_TRUE(same_bits(run_from_the_end_of_a_block(*device, p, n_step).out, want.out))
          << device->name() << ", steps of " << n_step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearAttentionTest,
                         ::testing::Values(Case{3, 16, 4, 300}, Case{1, 5, 1, 200}, Case{2, 33, 3, 180}));

// A context as long as they come: the last outputs are those of one long step, and what is read stays of a value's size.
TEST(LinearAttentionLongTest, AHundredThousandTokensInAnySteps) {
  const Problem p({.n_heads = 1, .d_head = 4, .n_taps = 4, .n_tokens = 100'000});
  const Outputs whole = run_all(plain_device(), p, {p.c.n_tokens}), cut = run_all(plain_device(), p, {1, 3, 512, 64});
  EXPECT_TRUE(same_bits(whole.out, cut.out));
  for (int64_t i = p.c.n_tokens - 1000; i < p.c.n_tokens; ++i) ASSERT_LE(std::abs(whole.out.at(4 * i)), 100);
}

TEST(SigmoidMulTest, IsNearTheOracle) {
  Random random(9);
  const Tensor x = random_tensor(random, {3, 37}), gate = random_tensor(random, {3, 37}, 4.0f);
  for (TestDevice* device : backends_under_test()) {
    Tensor out(DType::kF32, {3, 37});
    Args args(*device);
    ops::sigmoid_mul(device->ctx(), {.x = args.in(x), .gate = args.in(gate), .out = args.out(out)});
    args.fetch();
    for (int64_t i = 0; i < 3 * 37; ++i) {
      const double want = x.at(i) * sigmoid(gate.at(i));
      ASSERT_NEAR(out.at(i), want, 6 * std::abs(want) * 0x1p-24) << device->name() << ", " << i;
    }
  }
}

TEST(LinearAttentionDeathTest, NamesTheArgument) {
  const Problem p({.n_heads = 1, .d_head = 4, .n_taps = 4, .n_tokens = 4});
  const Rings rings(p, 3);
  Outputs out(p);
  const Problem wide({.n_heads = 1, .d_head = 5, .n_taps = 4, .n_tokens = 4});
  EXPECT_DEATH(run_step(plain_device(), wide, rings, 0, 4, out), "short_conv: channels 10 to 15 of rows of 12");
}

}  // namespace
}  // namespace levin::testing
