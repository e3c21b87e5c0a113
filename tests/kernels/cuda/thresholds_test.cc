// A row's bits where kernels change with the number of rows: for each count at which an op's plan changes, and the counts
// in addition, the first, the middle and the last row against the same row alone. And all rows of such batches in many runs,
// with other work on the device: an order that holds by luck shows there. At the shapes of real models.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "count_different.h"
#include "gemm_problem.h"
#include "index_problem.h"
#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/gemm/gemm_mxfp4.h"
#include "kernels/cuda/index/topk.h"
#include "mla_problem.h"

namespace levin::cuda {
namespace {

constexpr int64_t kMostRows = 4096;

// An op with data for up to kMostRows rows on the device.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::vector<int64_t> thresholds() const = 0;
  virtual int64_t most_rows() const { return kMostRows; }
  virtual int64_t row_bytes() const = 0;  // of the output
  // Rows first .. first + count - 1 as a batch of their own, into `out`.
  virtual void run(int64_t first, int64_t count, std::byte* out) const = 0;
};

using MakeSubject = std::function<std::unique_ptr<Subject>(const Stream&)>;

struct Case {
  std::string name;
  MakeSubject make;
};

class Fp8Product : public Subject {
 public:
  Fp8Product(const Stream& stream, int n, int k)
      : stream_(stream),
        n_(n),
        k_(k),
        x_(stream, random_e4m3(kMostRows * k, 1)),
        scales_(random_scales(blocks_of(k) * kScaleLd, 2)),
        x_scale_(stream, scales_),
        w_(stream, random_e4m3(int64_t{n} * k, 3)),
        w_scale_(stream, random_scales(blocks_of(n) * blocks_of(k), 4)) {}

  std::vector<int64_t> thresholds() const override { return gemm_fp8_thresholds({.n = n_, .k = k_}, kMostRows); }
  int64_t row_bytes() const override { return int64_t{n_} * 4; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    // The scales of a batch begin at a multiple of four rows: those of a row alone are moved there.
    const DeviceArray<float> own = first % 4 == 0 ? DeviceArray<float>() : scales_from(first);
    GemmFp8 a;
    a.x = x_.data() + first * k_;
    a.x_row_bytes = k_;
    a.x_scale = first % 4 == 0 ? x_scale_.data() + first : own.data();
    a.x_scale_ld = first % 4 == 0 ? kScaleLd : 4;
    a.w = w_.data();
    a.w_scale = w_scale_.data();
    a.out = out;
    a.out_is_f32 = true;
    a.n_tokens = static_cast<int>(count);
    a.n = n_;
    a.k = k_;
    gemm_fp8(a, plan_gemm_fp8({.rows_per_group = a.n_tokens, .n = n_, .k = k_}), stream_.handle());
    must(stream_.synchronize());
  }

 private:
  static constexpr int64_t kScaleLd = kMostRows;

  DeviceArray<float> scales_from(int64_t row) const {
    std::vector<float> own(static_cast<size_t>(blocks_of(k_)) * 4);
    for (int64_t b = 0; b < blocks_of(k_); ++b) own[b * 4] = scales_[b * kScaleLd + row];
    return {stream_, own};
  }

  const Stream& stream_;
  int n_, k_;
  DeviceArray<uint8_t> x_;
  std::vector<float> scales_;  // of x, [K / 128, kScaleLd]
  DeviceArray<float> x_scale_;
  DeviceArray<uint8_t> w_;
  DeviceArray<float> w_scale_;
};

// bf16 weights, or e4m3 ones for each head.
class F32Product : public Subject {
 public:
  F32Product(const Stream& stream, int n_heads, int n, int k)
      : stream_(stream),
        shape_{.w_type = n_heads == 1 ? DType::kBF16 : DType::kF8E4M3, .n = n, .k = k, .n_heads = n_heads},
        x_(stream, random_scales((kMostRows - 1) * kStep + n_heads * k, 1)),
        w_(stream, weights(shape_)),
        w_scale_(stream, random_scales(n_heads * blocks_of(n) * blocks_of(k), 3)) {}

  std::vector<int64_t> thresholds() const override { return gemm_f32_thresholds(shape_, most_rows()); }
  int64_t most_rows() const override { return shape_.n > 8192 ? 300 : kMostRows; }
  int64_t row_bytes() const override { return int64_t{shape_.n_heads} * shape_.n * 4; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    GemmF32Shape shape = shape_;
    shape.n_rows = static_cast<int>(count);
    gemm_f32({.x = x_.data() + first * kStep,
              .x_ld = kStep,
              .x_head_ld = shape.k,
              .w = w_.data(),
              .w_type = shape.w_type,
              .w_scale = shape.w_type == DType::kF8E4M3 ? w_scale_.data() : nullptr,
              .out = reinterpret_cast<float*>(out),
              .out_ld = row_bytes() / 4,
              .out_head_ld = shape.n,
              .n_tokens = shape.n_rows,
              .n_heads = shape.n_heads,
              .n = shape.n,
              .k = shape.k},
             plan_gemm_f32(shape), stream_.handle());
  }

 private:
  static constexpr int64_t kStep = 8;  // rows overlap

  static std::vector<uint8_t> weights(const GemmF32Shape& s) {
    if (s.w_type == DType::kF8E4M3) return random_e4m3(int64_t{s.n_heads} * s.n * s.k, 2);
    std::vector<uint8_t> bytes = random_e4m3(int64_t{s.n} * s.k * 2, 2);
    for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = (bytes[i] & 0x80) | 0x3C;  // near 2^-7
    return bytes;
  }

  const Stream& stream_;
  GemmF32Shape shape_;
  DeviceArray<float> x_;
  DeviceArray<uint8_t> w_;
  DeviceArray<float> w_scale_;
};

class Mxfp4Product : public Subject {
 public:
  Mxfp4Product(const Stream& stream, int n, int k)
      : stream_(stream),
        n_(n),
        k_(k),
        x_(stream, MlaProblem::random_bf16(kMostRows * k, 1)),
        w_(stream, packed(n, k)) {}

  std::vector<int64_t> thresholds() const override { return gemm_mxfp4_thresholds(kMostRows, 1); }
  int64_t row_bytes() const override { return int64_t{n_} * 4; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    GemmMxfp4 a;
    a.x = x_.data() + first * k_;
    a.x_ld = k_;
    a.w = reinterpret_cast<const std::byte*>(w_.data());
    a.out = out;
    a.out_is_f32 = true;
    a.n_tokens = static_cast<int>(count);
    a.n = n_;
    a.k = k_;
    gemm_mxfp4(a, plan_gemm_mxfp4(a.n_tokens, 1), stream_.handle());
  }

 private:
  static std::vector<uint8_t> packed(int n, int k) {
    const std::vector<uint8_t> codes = random_e4m3(int64_t{n} * k / 2, 2);  // any byte is two codes
    std::vector<uint8_t> scales(static_cast<size_t>(n) * k / 32), out(static_cast<size_t>(packed_mxfp4_bytes(n, k)));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(122 + i * 7 % 5);
    const Mxfp4Scales kind = pack_mxfp4({codes.data(), scales.data(), n, k}, reinterpret_cast<std::byte*>(out.data()));
    LEVIN_CHECK(kind == Mxfp4Scales::kNarrow, "scales out of range");
    return out;
  }

  const Stream& stream_;
  int n_, k_;
  DeviceArray<uint16_t> x_;
  DeviceArray<uint8_t> w_;
};

class Attention : public Subject {
 public:
  Attention(const Stream& stream, int n_heads, int n_topk)
      : stream_(stream),
        n_heads_(n_heads),
        n_topk_(n_topk),
        rows_(MlaProblemShape{.n_rows = 1, .n_heads = 1, .n_topk = 64}),
        q_latent_(stream, MlaProblem::random_bf16((kMostRows - 1) * kStep + n_heads * 512, 1)),
        q_rope_(stream, MlaProblem::random_bf16((kMostRows - 1) * kStep + n_heads * 64, 2)),
        topk_(stream, random_topk(n_topk)),
        cache_(stream, rows_.cache),
        scratch_(stream, sparse_mla_scratch_bytes()) {
    clear_sparse_mla_scratch(reinterpret_cast<std::byte*>(scratch_.data()), stream.handle());
  }

  std::vector<int64_t> thresholds() const override { return sparse_mla_thresholds(n_heads_, n_topk_, kMostRows); }
  int64_t row_bytes() const override { return int64_t{n_heads_} * 512 * 2; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    sparse_mla({.q_latent = q_latent_.data() + first * kStep,
                .q_rope = q_rope_.data() + first * kStep,
                .q_latent_row_stride = kStep,
                .q_rope_row_stride = kStep,
                .topk = topk_.data() + first * n_topk_,
                .cache = reinterpret_cast<const std::byte*>(cache_.data()),
                .page_bytes = rows_.page_bytes(),
                .out = out,
                .scratch = reinterpret_cast<std::byte*>(scratch_.data()),
                .n_rows = count,
                .n_heads = n_heads_,
                .n_topk = n_topk_,
                .scale = 0.05f},
               stream_.handle());
  }

 private:
  static constexpr int64_t kStep = 8;  // rows overlap: as many different ones need little memory

  // Distinct and ascending, each about MlaProblem::kSlots / n_topk after the one before.
  static std::vector<int32_t> random_topk(int n_topk) {
    std::mt19937_64 generator(3);
    std::vector<int32_t> topk;
    const int64_t step = MlaProblem::kSlots / n_topk;
    for (int64_t row = 0; row < kMostRows; ++row)
      for (int64_t i = 0; i < n_topk; ++i)
        topk.push_back(
            static_cast<int32_t>(i * step + static_cast<int64_t>(generator() % static_cast<uint64_t>(step))));
    return topk;
  }

  const Stream& stream_;
  int n_heads_, n_topk_;
  MlaProblem rows_;
  DeviceArray<uint16_t> q_latent_, q_rope_;
  DeviceArray<int32_t> topk_;
  DeviceArray<uint8_t> cache_, scratch_;
};

class Selection : public Subject {
 public:
  Selection(const Stream& stream, int64_t length)
      : stream_(stream),
        length_(length),
        score_(stream, random_scales((kMostRows - 1) * kStep + length, 1)),
        lengths_(stream, std::vector<int32_t>(kMostRows, static_cast<int32_t>(length))),
        fault_(stream, std::vector<uint32_t>{0}) {}

  std::vector<int64_t> thresholds() const override { return select_topk_thresholds(length_, kMostRows); }
  int64_t row_bytes() const override { return kTopk * 4; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    select_topk({.score = score_.data() + first * kStep,
                 .score_stride = kStep,
                 .lengths = {lengths_.data(), 1, 1},
                 .n_rows = count,
                 .max_length = length_,
                 .topk = reinterpret_cast<int32_t*>(out),
                 .n_topk = kTopk,
                 .fault = fault_.data()},
                stream_.handle());
  }

 private:
  static constexpr int64_t kStep = 64;
  static constexpr int kTopk = 2048;

  const Stream& stream_;
  int64_t length_;
  DeviceArray<float> score_;
  DeviceArray<int32_t> lengths_;
  DeviceArray<uint32_t> fault_;
};

// Tokens of one request that are scored together.
class Scores : public Subject {
 public:
  Scores(const Stream& stream, int n_heads, int32_t length)
      : stream_(stream),
        problem_(
            {.n_heads = n_heads, .n_tokens = kTokens, .lengths = std::vector<int32_t>(kTokens, length), .seed = 1}),
        device_(stream, problem_) {}

  std::vector<int64_t> thresholds() const override { return {2, 3, 4, 5, 6, 7, 8}; }
  int64_t most_rows() const override { return kTokens; }
  int64_t row_bytes() const override { return device_.score_stride() * 4; }
  void run(int64_t first, int64_t count, std::byte* out) const override {
    const int n = static_cast<int>(count);
    const IndexShape shape{1, n, 132, problem_.max_length};
    const RowLengths lengths{device_.device_lengths().data() + first, n, 1};
    const DeviceArray<uint8_t> memory(stream_, index_plan_bytes(shape));
    const IndexPlan plan = build_index_plan(
        {.lengths = lengths, .n_rows = count, .shape = shape, .memory = reinterpret_cast<std::byte*>(memory.data())},
        stream_.handle());
    IndexScoreInputs in = device_.inputs();
    in.q = static_cast<const std::byte*>(in.q) + first * problem_.n_heads * 128;
    in.w += first * problem_.n_heads;
    in.n_rows = count;
    in.lengths = lengths;
    index_scores({.in = in,
                  .score = reinterpret_cast<float*>(out),
                  .score_stride = device_.score_stride(),
                  .fault = device_.fault_word()},
                 plan, shape, stream_.handle());
    must(stream_.synchronize());
  }

 private:
  static constexpr int kTokens = 8;

  const Stream& stream_;
  IndexProblem problem_;
  IndexOnDevice device_;
};

template <class S, class... Args>
Case make_case(const std::string& name, Args... args) {
  return {name, [=](const Stream& stream) -> std::unique_ptr<Subject> { return std::make_unique<S>(stream, args...); }};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  // DeepSeek-V3.2: the two down projections, both up projections, output, gate and up, down; GLM-5's width.
  for (const auto& [n, k] :
       {std::pair{2112, 7168}, {24576, 1536}, {7168, 16384}, {4096, 7168}, {7168, 2048}, {6144, 6144}})
    cases.push_back(make_case<Fp8Product>("Fp8Product" + std::to_string(n) + "x" + std::to_string(k), n, k));
  for (const auto& [n, k] : {std::pair{4096, 4096}, {4096, 2048}})
    cases.push_back(make_case<Mxfp4Product>("Mxfp4Product" + std::to_string(n) + "x" + std::to_string(k), n, k));
  // Head (an eighth of DeepSeek-V3.2's), MTP join, routers of DeepSeek-V3.2 and GLM-5, index head weights; halves of kv_b of
  // DeepSeek-V3.2.
  for (const auto& [n_heads, n, k] : {std::tuple{1, 16160, 7168},
                                      {1, 7168, 14336},
                                      {1, 256, 7168},
                                      {1, 256, 6144},
                                      {1, 64, 7168},
                                      {128, 512, 128},
                                      {128, 128, 512}})
    cases.push_back(make_case<F32Product>(fmt::format("F32Product{}x{}x{}", n_heads, n, k), n_heads, n, k));
  for (const auto& [n_heads, n_topk] : {std::pair{128, 2048}, {64, 2048}, {16, 2048}, {128, 1024}, {64, 512}})
    cases.push_back(make_case<Attention>(
        "Attention" + std::to_string(n_heads) + "Heads" + std::to_string(n_topk) + "Topk", n_heads, n_topk));
  for (const int64_t length : {5000, 65536})
    cases.push_back(make_case<Selection>("Selection" + std::to_string(length), length));
  for (const int n_heads : {16, 32, 64})
    cases.push_back(make_case<Scores>("Scores" + std::to_string(n_heads) + "Heads", n_heads, 65536));
  return cases;
}

class ThresholdsTest : public ::testing::TestWithParam<Case> {};

std::vector<int64_t> counts_around(const Subject& s) {
  std::set<int64_t> counts = {1, s.most_rows()};
  for (const int64_t t : s.thresholds())
    for (int64_t n = t - 1; n <= std::min(t + 1, s.most_rows()); ++n) counts.insert(n);
  return {counts.begin(), counts.end()};
}

TEST_P(ThresholdsTest, ARowHasTheBitsThatItHasAlone) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  const Stream stream = must(Stream::create());
  const std::unique_ptr<Subject> subject = GetParam().make(stream);
  const int64_t row_bytes = subject->row_bytes();
  const DeviceArray<std::byte> batch(stream, subject->most_rows() * row_bytes), alone(stream, row_bytes);
  const auto row_of = [&](const DeviceArray<std::byte>& from, int64_t row) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes));
    copy_to_host(stream, bytes.data(), from.data() + row * row_bytes, row_bytes);
    must(stream.synchronize());
    return bytes;
  };
  // Which of the two differs from what it was, where a difference comes and goes.
  const auto again = [&](int64_t row, int64_t count, const std::vector<std::byte>& in_batch,
                         const std::vector<std::byte>& by_itself) {
    subject->run(0, count, batch.data());
    subject->run(row, 1, alone.data());
    const auto [at, other] = std::mismatch(in_batch.begin(), in_batch.end(), by_itself.begin());
    int64_t n_bytes = 0;
    for (size_t i = 0; i < in_batch.size(); ++i) n_bytes += in_batch[i] != by_itself[i];
    return fmt::format("row {} of {}: {} of {} bytes differ, the first at {}; a second run {} in the batch, {} alone",
                       row, count, n_bytes, row_bytes, at - in_batch.begin(),
                       row_of(batch, row) == in_batch ? "is the same" : "differs",
                       row_of(alone, 0) == by_itself ? "is the same" : "differs");
  };
  const std::vector<int64_t> counts = counts_around(*subject);
  RecordProperty("counts", static_cast<int>(counts.size()));
  for (const int64_t count : counts) {
    batch.fill(0xFF);
    subject->run(0, count, batch.data());
    for (const int64_t row : std::set<int64_t>{0, count / 2, count - 1}) {
      alone.fill(0xEE);
      subject->run(row, 1, alone.data());
      const std::vector<std::byte> in_batch = row_of(batch, row), by_itself = row_of(alone, 0);
      ASSERT_TRUE(in_batch == by_itself) << again(row, count, in_batch, by_itself);
    }
  }
}

// A product over and over on a stream of its own, until it goes out of scope.
class OtherWork {
 public:
  OtherWork() : thread_([this] { run(); }) {}
  ~OtherWork() {
    done_ = true;
    thread_.join();
  }
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;

 private:
  void run() const {
    const Stream stream = must(Stream::create());
    const Fp8Product product(stream, 2112, 7168);
    const DeviceArray<std::byte> out(stream, kMostRows * product.row_bytes());
    while (!done_) {
      for (const int64_t n : {int64_t{2}, int64_t{300}, kMostRows}) product.run(0, n, out.data());
    }
  }

  std::atomic<bool> done_ = false;
  std::thread thread_;
};

TEST_P(ThresholdsTest, ManyRunsGiveTheSameBitsBesideOtherWork) {
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  constexpr int kRuns = 60;
  const Stream stream = must(Stream::create());
  const std::unique_ptr<Subject> subject = GetParam().make(stream);
  const int64_t most_bytes = subject->most_rows() * subject->row_bytes();
  const DeviceArray<std::byte> first(stream, most_bytes), again(stream, most_bytes);
  const DeviceArray<unsigned long long> n_different(stream, std::vector<unsigned long long>{0});
  const OtherWork other_work;
  std::set<int64_t> counts = {1, subject->most_rows()};
  for (const int64_t t : subject->thresholds()) counts.insert(std::min(t, subject->most_rows()));
  for (const int64_t count : counts) {
    first.fill(0xFF);
    subject->run(0, count, first.data());
    for (int run = 0; run < kRuns; ++run) {
      again.fill(0xFF);
      subject->run(0, count, again.data());
      count_different(first.data(), again.data(), count * subject->row_bytes() / 4, n_different.data(),
                      stream.handle());
    }
    ASSERT_EQ(n_different.host()[0], 0u) << "words of " << count << " rows in " << kRuns << " runs";
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, ThresholdsTest, ::testing::ValuesIn(all_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace levin::cuda
