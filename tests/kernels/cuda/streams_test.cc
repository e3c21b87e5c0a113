// The indexer of a layer on a second stream, next to the query projection: one captured step, the same bits as on one
// stream, however the two overlap.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/numbers.h"
#include "gemm_problem.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/index/topk.h"
#include "kernels/cuda/index_problem.h"
#include "kernels/cuda/rows/row_chains.h"

namespace levin::cuda {
namespace {

constexpr int kInner = 1536, kHeads = 16, kHead = 192, kIndexHeads = 64, kTopk = 512;

struct Weight {
  Weight(const Stream& stream, int outputs, uint64_t seed)
      : n(outputs),
        codes(stream, random_e4m3(int64_t{n} * kInner, seed)),
        scale(stream, random_scales(blocks_of(n) * blocks_of(kInner), seed + 1)) {}
  int n;
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scale;
};

// What a step of a layer computes between the query's norm and attention.
struct Outputs {
  std::vector<uint16_t> q, q_rope;
  std::vector<uint8_t> pages;
  std::vector<int32_t> topk;
  bool operator==(const Outputs&) const = default;
};

class LayerStep {
 public:
  LayerStep(const Stream& stream, const IndexProblem& problem)
      : stream_(stream),
        n_tokens_(static_cast<int>(problem.n_rows)),
        ld_((n_tokens_ + 3) / 4 * 4),
        index_(stream, problem),
        q_up_(stream, kHeads * kHead, 1),
        index_up_(stream, kIndexHeads * 128, 3),
        index_k_(stream, 128, 5),
        x_(stream, random_bf16(int64_t{n_tokens_} * kInner, 7)),
        norm_(stream, std::vector<float>(kInner, 0.75f)),
        table_(stream, std::vector<float>(static_cast<size_t>(n_tokens_) * 32, 0.6f)),
        slots_(stream, last_slots(problem)),
        scale_(stream, blocks_of(kInner) * ld_),
        folded_(stream, int64_t{n_tokens_} * kIndexHeads),
        head_weights_(stream, problem.w),
        score_(stream, problem.n_rows * index_.score_stride()),
        codes_(stream, int64_t{n_tokens_} * kInner),
        index_codes_(stream, int64_t{n_tokens_} * kIndexHeads * 128),
        plan_memory_(stream, index_plan_bytes(index_.shape())),
        pages_(stream, problem.pages),
        q_(stream, int64_t{n_tokens_} * kHeads * kHead),
        q_rope_(stream, int64_t{n_tokens_} * kHeads * 64),
        index_q_(stream, int64_t{n_tokens_} * kIndexHeads * 128),
        k_(stream, int64_t{n_tokens_} * 128),
        topk_(stream, int64_t{n_tokens_} * kTopk) {}

  void norm(const Stream& on) const {
    norm_rows({.x = {x_.data(), false, kInner},
               .weight = norm_.data(),
               .eps = 1e-6f,
               .rounded = {codes_.data(), kInner, scale_.data(), ld_},
               .n_tokens = n_tokens_,
               .d = kInner},
              on.handle());
  }
  void queries(const Stream& on) const {
    product(on, q_up_, q_.data());
    rotate_queries({.x = {q_.data() + 128, false, kHeads * kHead},
                    .head_stride = kHead,
                    .rotation = {table_.data(), table_.data(), false},
                    .out = q_rope_.data(),
                    .n_tokens = n_tokens_,
                    .n_heads = kHeads},
                   on.handle());
  }
  void indexer(const Stream& on) {
    const Rotation rotation{table_.data(), table_.data(), true};
    product(on, index_k_, k_.data());
    CacheSlots to;
    to.slot = slots_.data();
    to.pages = reinterpret_cast<std::byte*>(pages_.data());
    to.page_bytes = kTestPageBytes;
    write_index_keys({.x = {k_.data(), false, 128},
                      .weight = norm_.data(),
                      .bias = table_.data(),
                      .eps = 1e-6f,
                      .rotation = rotation,
                      .to = to,
                      .n_tokens = n_tokens_},
                     on.handle());
    product(on, index_up_, index_q_.data());
    index_queries({.x = {index_q_.data(), false, kIndexHeads * 128},
                   .w = head_weights_.data(),
                   .w_ld = kIndexHeads,
                   .factor = 0.01f,
                   .rotation = rotation,
                   .codes = index_codes_.data(),
                   .weights = folded_.data(),
                   .n_tokens = n_tokens_,
                   .n_heads = kIndexHeads},
                  on.handle());
    const IndexPlan plan = build_index_plan({.lengths = index_.lengths(),
                                             .n_rows = n_tokens_,
                                             .shape = index_.shape(),
                                             .skip_length = kTopk,
                                             .memory = reinterpret_cast<std::byte*>(plan_memory_.data())},
                                            on.handle());
    IndexScoreInputs in = index_.inputs();
    in.q = index_codes_.data();
    in.w = folded_.data();
    in.pages = reinterpret_cast<const std::byte*>(pages_.data());
    index_topk({.in = in,
                .physical = true,
                .score = score_.data(),
                .score_stride = index_.score_stride(),
                .histogram = index_.histogram().data(),
                .topk = topk_.data(),
                .n_topk = kTopk,
                .fault = index_.fault_word()},
               plan, index_.shape(), on.handle());
  }

  void forget() const {
    q_.fill(0xFF);
    q_rope_.fill(0xFF);
    topk_.fill(0xFF);
    index_codes_.fill(0);
    codes_.fill(0);
    score_.fill(0xFF);
    must(stream_.synchronize());
  }
  Outputs outputs() const { return {q_.host(), q_rope_.host(), pages_.host(), topk_.host()}; }

 private:
  static std::vector<uint16_t> random_bf16(int64_t n, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> x(static_cast<size_t>(n));
    for (uint16_t& v : x) v = f32_to_bf16(normal(generator));
    return x;
  }
  // The slot of each row's last key, which the step writes.
  static std::vector<int32_t> last_slots(const IndexProblem& p) {
    std::vector<int32_t> slots;
    for (int64_t row = 0; row < p.n_rows; ++row) {
      const int32_t last = p.length(row) - 1;
      slots.push_back(p.tables[static_cast<size_t>(row / p.n_tokens * p.table_width + last / 64)] * 64 + last % 64);
    }
    return slots;
  }
  void product(const Stream& on, const Weight& w, uint16_t* out) const {
    GemmFp8 a;
    a.x = codes_.data();
    a.x_row_bytes = kInner;
    a.x_scale = scale_.data();
    a.x_scale_ld = ld_;
    a.w = w.codes.data();
    a.w_scale = w.scale.data();
    a.out = out;
    a.n_tokens = n_tokens_;
    a.n = w.n;
    a.k = kInner;
    gemm_fp8(a, plan_gemm_fp8({n_tokens_, w.n, a.k, 1, 132}), on.handle());
  }

  const Stream& stream_;
  int n_tokens_, ld_;
  IndexOnDevice index_;
  Weight q_up_, index_up_, index_k_;
  DeviceArray<uint16_t> x_;
  DeviceArray<float> norm_, table_;
  DeviceArray<int32_t> slots_;
  DeviceArray<float> scale_, folded_, head_weights_, score_;
  DeviceArray<uint8_t> codes_, index_codes_, plan_memory_, pages_;
  DeviceArray<uint16_t> q_, q_rope_, index_q_, k_;
  DeviceArray<int32_t> topk_;
};

TEST(StreamsTest, TheIndexerBesideTheQueriesGivesTheSameBits) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  const Stream main = must(Stream::create()), side = must(Stream::create());
  const IndexProblem problem(
      {.n_heads = kIndexHeads, .n_tokens = 2, .lengths = {3000, 3001, 700, 701, 20000, 20001}, .seed = 12});
  LayerStep step(main, problem);
  step.norm(main);
  step.queries(main);
  step.indexer(main);
  const Outputs expected = step.outputs();
  ASSERT_GE(expected.topk[0], 0);

  const Event forked = must(Event::create()), joined = must(Event::create());
  const Graph graph = must(Graph::capture(main, [&] {
    step.norm(main);
    forked.record(main);
    side.wait(forked);
    step.indexer(side);
    step.queries(main);
    joined.record(side);
    main.wait(joined);
  }));
  for (int repeat = 0; repeat < 5; ++repeat) {
    step.forget();
    graph.launch(main);
    must(main.synchronize());
    EXPECT_TRUE(step.outputs() == expected) << "repeat " << repeat;
  }
}

}  // namespace
}  // namespace levin::cuda
