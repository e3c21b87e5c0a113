// Routing and experts on the device against the CPU's plain kernels, bit for bit; rows with NaN and padding.
#include "kernels/cuda/plain/moe.h"

#include "base/numbers.h"
#include "kernels/cuda/plain/plain_test.h"
#include "ops/moe.h"
#include "ops/weights.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_matrix;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;
using testing::TestMatrix;

struct RouteCase {
  int64_t n_experts, n_active;
  int n_groups, n_groups_kept;
  bool softplus, normalize;
};
constexpr RouteCase kRoutes[] = {{256, 8, 8, 4, false, true}, {256, 8, 1, 1, true, true},
                                 {6, 2, 1, 1, false, false},  {12, 3, 3, 2, true, true},
                                 {1, 1, 1, 1, false, true},   {512, 16, 32, 5, false, true}};

class PlainMoeTest : public PlainTest {
 protected:
  static RouteExperts upload(DeviceArgs& args, const RouteCase& c, const Tensor& logits, const Tensor& bias) {
    return {.logits = args.in<float>(logits),
            .logits_ld = c.n_experts,
            .softplus = c.softplus,
            .bias = args.in<float>(bias),
            .n_groups = c.n_groups,
            .n_groups_kept = c.n_groups_kept,
            .normalize = c.normalize,
            .factor = 2.5f,
            .n_rows = logits.view().dim(0),
            .n_experts = c.n_experts,
            .n_active = c.n_active};
  }
  static ops::RouteExperts host(const RouteCase& c, const Tensor& logits, const Tensor& bias, const Tensor& topk,
                                const Tensor& weights) {
    return {.logits = logits,
            .score = c.softplus ? ops::ExpertScore::kSqrtSoftplus : ops::ExpertScore::kSigmoid,
            .bias = bias,
            .n_groups = c.n_groups,
            .n_groups_kept = c.n_groups_kept,
            .normalize = c.normalize,
            .factor = 2.5f,
            .topk = topk,
            .weights = weights};
  }

  // Matrices of one shape, one after another, as checkpoints hold them.
  static Weights stack(DeviceArgs& args, const std::vector<const TestMatrix*>& matrices) {
    const Matrix& first = matrices.front()->packed;
    std::vector<uint8_t> codes, groups;
    std::vector<float> values, scales;
    std::vector<uint16_t> bf16;
    for (const TestMatrix* m : matrices) {
      codes.insert(codes.end(), m->codes.begin(), m->codes.end());
      if (!m->group_scales.empty()) {
        const std::vector<uint8_t> own = m->device_group_scales();
        groups.insert(groups.end(), own.begin(), own.end());
      }
      values.insert(values.end(), m->values.begin(), m->values.end());
      scales.insert(scales.end(), m->scales.begin(), m->scales.end());
    }
    for (const float v : values) bf16.push_back(f32_to_bf16(v));
    const void* data = first.dtype() == DType::kF32    ? static_cast<const void*>(args.in(values))
                       : first.dtype() == DType::kBF16 ? static_cast<const void*>(args.in(bf16))
                                                       : static_cast<const void*>(args.in(codes));
    return {.data = data,
            .dtype = first.dtype(),
            .scales = scales.empty() ? nullptr : args.in(scales),
            .group_scales = groups.empty() ? nullptr : args.in(groups),
            .n = first.n(),
            .k = first.k()};
  }
};

TEST_F(PlainMoeTest, RoutesEqualTheCpus) {
  for (const RouteCase& c : kRoutes) {
    SCOPED_TRACE(fmt::format("{} of {} experts, {} groups", c.n_active, c.n_experts, c.n_groups));
    Random random(static_cast<uint64_t>(c.n_experts));
    constexpr int64_t kRows = 5;
    Tensor logits = random_tensor(random, {kRows, c.n_experts}, 3.0f),
           bias = random_tensor(random, {c.n_experts}, 0.1f);
    for (int64_t e = 0; e < c.n_experts; ++e)
      logits.at(3 * c.n_experts + e) = 0.25f, bias.at(e) = e % 3 == 0 ? 0.0f : bias.at(e);
    const Tensor topk(DType::kI32, {kRows, c.n_active}), weights(DType::kF32, {kRows, c.n_active});
    ops::route_experts(cpu(), host(c, logits, bias, topk, weights));

    // Row 1 again with a NaN, row 2 as padding.
    Tensor poisoned = copy_of(logits);
    poisoned.at(c.n_experts + c.n_experts / 2) = std::numeric_limits<float>::quiet_NaN();
    Tensor topk_out = unset(DType::kI32, {kRows, c.n_active}), weights_out = unset(DType::kF32, {kRows, c.n_active});
    Tensor bad_topk = unset(DType::kI32, {kRows, c.n_active}), bad_weights = unset(DType::kF32, {kRows, c.n_active});
    Tensor fault = i32_tensor({0, 0, 0, 0, 0});
    DeviceArgs args(*stream_);
    RouteExperts call = upload(args, c, logits, bias);
    call.topk = args.out<int32_t>(topk_out), call.weights = args.out<float>(weights_out);
    route_experts(call, stream());
    call.logits = args.in<float>(poisoned), call.slot = args.in<int32_t>(i32_tensor({0, 0, -1, 5, 6}));
    call.topk = args.out<int32_t>(bad_topk), call.weights = args.out<float>(bad_weights),
    call.fault = args.out<int32_t>(fault);
    route_experts(call, stream());
    args.fetch();
    EXPECT_TRUE(same_bits(topk_out, topk));
    EXPECT_TRUE(same_bits(weights_out, weights));
    EXPECT_TRUE(same_bits(fault, i32_tensor({0, kNanExpertScore, 0, 0, 0})));
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t i = 0; i < c.n_active; ++i) {
        const bool healthy = t != 1 && t != 2;
        const int32_t pick = healthy ? topk.view().row<int32_t>(t)[i] : t == 1 ? static_cast<int32_t>(i) : -1;
        EXPECT_EQ(bad_topk.view().row<int32_t>(t)[i], pick);
        EXPECT_EQ(bad_weights.view().row<float>(t)[i], healthy ? weights.view().row<float>(t)[i] : 0.0f);
      }
    }
  }
}

TEST_F(PlainMoeTest, GivenExperts) {
  const RouteCase c{16, 3, 1, 1, true, true};
  Random random(9);
  const Tensor logits = random_tensor(random, {4, 16}, 2.0f), bias = random_tensor(random, {16}, 0.1f);
  const Tensor by_token = Tensor::of(std::vector<int32_t>{9, 2, 5, 0, 1, 2, 15, 14, 13}, {3, 3});
  const Tensor chosen = Tensor::of(std::vector<int32_t>{13, 14, 15, 2, 5, 9, 0, 1, 2, 2, 5, 9}, {4, 3});
  const Tensor topk(DType::kI32, {4, 3}), weights(DType::kF32, {4, 3});
  ops::RouteExperts expected = host(c, logits, bias, topk, weights);
  expected.chosen = chosen;
  ops::route_experts(cpu(), expected);
  Tensor topk_out = unset(DType::kI32, {4, 3}), weights_out = unset(DType::kF32, {4, 3});
  DeviceArgs args(*stream_);
  RouteExperts call = upload(args, c, logits, bias);
  call.chosen = args.in<int32_t>(by_token), call.tokens = args.in<int32_t>(i32_tensor({2, 0, 1, 0}));
  call.topk = args.out<int32_t>(topk_out), call.weights = args.out<float>(weights_out);
  route_experts(call, stream());
  args.fetch();
  EXPECT_TRUE(same_bits(topk_out, topk));
  EXPECT_TRUE(same_bits(weights_out, weights));
}

// Experts and a shared block, on host and device.
struct Experts {
  std::vector<TestMatrix> gate, up, down;  // the shared block's last
  std::vector<ops::FfnWeights> host;
};

Experts random_experts(Random& random, DType dtype, Operand operand, int64_t n, int64_t f, int64_t d) {
  Experts e;
  for (int64_t i = 0; i < n + 1; ++i) {
    e.gate.push_back(random_matrix(random, dtype, f, d)), e.up.push_back(random_matrix(random, dtype, f, d));
    e.down.push_back(random_matrix(random, dtype, d, f));
  }
  for (int64_t i = 0; i < n + 1; ++i) {
    const auto pack = [&](const TestMatrix& m) {
      if (!m.codes.empty()) return pack_matrix(m.source());
      if (dtype == DType::kF32)
        return pack_matrix({.data = m.values.data(), .dtype = dtype, .n = m.packed.n(), .k = m.packed.k()});
      return pack_matrix_exactly(m.values.data(), m.packed.n(), m.packed.k());
    };
    const auto rounded = static_cast<ops::Operand>(operand);
    e.host.push_back(
        {.gate = pack(e.gate[i]), .up = pack(e.up[i]), .down = pack(e.down[i]), .input = rounded, .hidden = rounded});
  }
  return e;
}

TEST_F(PlainMoeTest, ExpertsEqualTheCpus) {
  struct Case {
    DType dtype;
    Operand operand;
    int64_t n_rows;
    bool weigh_hidden;
    float limit;
  };
  constexpr int64_t kD = 192, kF = 80, kExperts = 7, kActive = 3;
  for (const Case& c :
       {Case{DType::kF32, Operand::kF32, 1, false, kNoLimit}, Case{DType::kBF16, Operand::kBF16, 40, false, kNoLimit},
        Case{DType::kF8E4M3, Operand::kFp8, 70, false, kNoLimit}, Case{DType::kMxfp4, Operand::kFp8, 33, true, 0.5f},
        Case{DType::kF8E4M3, Operand::kBF16, 5, true, kNoLimit}, Case{DType::kMxfp4, Operand::kF32, 2, false, 7.0f},
        Case{DType::kNvfp4, Operand::kBF16, 37, false, kNoLimit}}) {
    SCOPED_TRACE(fmt::format("{}, {} rows", dtype_name(c.dtype), c.n_rows));
    Random random(static_cast<uint64_t>(c.n_rows));
    const Experts e = random_experts(random, c.dtype, c.operand, kExperts, kF, kD);
    const Tensor x = random_tensor(random, {c.n_rows, kD}, 0.5f),
                 weights = random_tensor(random, {c.n_rows, kActive}, 0.3f);
    const Tensor topk(DType::kI32, {c.n_rows, kActive});
    for (int64_t t = 0; t < c.n_rows; ++t) {
      int32_t next = 0;
      for (int64_t i = 0; i < kActive; ++i) {
        next += static_cast<int32_t>(random.below(kExperts - kActive + i + 1 - next));
        topk.view().row<int32_t>(t)[i] = next++;
      }
    }
    const Tensor expected(DType::kF32, {c.n_rows, kD});
    ops::expert_ffn(cpu(), {.x = x,
                            .topk = topk,
                            .weights = weights,
                            .experts = std::span(e.host).first(kExperts),
                            .shared = &e.host.back(),
                            .limit = c.limit,
                            .weigh_hidden = c.weigh_hidden,
                            .out = expected});
    DeviceArgs args(*stream_);
    const auto upload = [&](const std::vector<TestMatrix>& m, size_t begin, size_t end) {
      std::vector<const TestMatrix*> some;
      for (size_t i = begin; i < end; ++i) some.push_back(&m[i]);
      return stack(args, some);
    };
    const auto block = [&](size_t begin, size_t end) {
      return FfnWeights{.gate = upload(e.gate, begin, end),
                        .up = upload(e.up, begin, end),
                        .down = upload(e.down, begin, end),
                        .input = c.operand,
                        .hidden = c.operand};
    };
    const FfnWeights shared = block(kExperts, kExperts + 1);
    Tensor out = unset(DType::kF32, {c.n_rows, kD});
    ExpertFfn call{.x = args.in<float>(x),
                   .x_ld = kD,
                   .topk = args.in<int32_t>(topk),
                   .weights = args.in<float>(weights),
                   .n_active = kActive,
                   .experts = block(0, kExperts),
                   .n_experts = kExperts,
                   .shared = &shared,
                   .limit = c.limit,
                   .weigh_hidden = c.weigh_hidden,
                   .out = args.out<float>(out),
                   .out_ld = kD,
                   .n_rows = c.n_rows};
    call.scratch = args.scratch(expert_ffn_scratch_bytes(call));
    const Graph graph = must(Graph::capture(*stream_, [&] { expert_ffn(call, stream()); }));
    graph.launch(*stream_);
    args.fetch();
    ASSERT_TRUE(same_bits(out, expected));

    // The same with the first row as padding: it has no experts, others keep their bits.
    for (int64_t i = 0; i < kActive; ++i) topk.view().row<int32_t>(0)[i] = -1;
    Tensor padded = unset(DType::kF32, {c.n_rows, kD});
    call.topk = args.in<int32_t>(topk), call.shared = nullptr, call.out = args.out<float>(padded);
    expert_ffn(call, stream());
    call.shared = &shared;
    args.fetch();
    for (int64_t i = 0; i < kD; ++i) ASSERT_EQ(padded.at(i), 0.0f);
  }
}

TEST_F(PlainMoeTest, OneBlockEqualsTheCpus) {
  constexpr int64_t kD = 256, kF = 130, kRows = 19;
  for (const auto& [dtype, operand] : {std::pair{DType::kF8E4M3, Operand::kFp8}, {DType::kBF16, Operand::kF32}}) {
    Random random(4);
    const Experts e = random_experts(random, dtype, operand, 0, kF, kD);
    const Tensor x = random_tensor(random, {kRows, kD}, 0.5f), expected(DType::kF32, {kRows, kD});
    ops::ffn(cpu(), {.x = x, .weights = e.host.data(), .limit = 1.5f, .out = expected});
    DeviceArgs args(*stream_);
    const FfnWeights weights{.gate = stack(args, {e.gate.data()}),
                             .up = stack(args, {e.up.data()}),
                             .down = stack(args, {e.down.data()}),
                             .input = operand,
                             .hidden = operand};
    Tensor out = unset(DType::kF32, {kRows, kD});
    ffn({.x = args.in<float>(x),
         .x_ld = kD,
         .weights = weights,
         .limit = 1.5f,
         .out = args.out<float>(out),
         .out_ld = kD,
         .n_rows = kRows,
         .scratch = args.scratch(ffn_scratch_bytes(weights, kRows))},
        stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected));
  }
}

}  // namespace
}  // namespace levin::cuda::plain
