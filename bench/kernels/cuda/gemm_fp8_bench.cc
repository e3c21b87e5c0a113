// FP8 products: our plan's instance next to cuBLASLt over the dense shapes of the models, and the grouped products of an
// expert layer.
//
//   bench_gemm_fp8 [--opponent PATH] [--all-plans] [--no-overlap] [--rest MS] [--warm MS] [--tokens 1,2,4]
//                  [--shape NxK | --grouped]
//   CSV to stdout, summary last
//
// Weights rotate through copies of together 512 MB, so that they are cold; output is compared between the two before
// they are timed.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cublaslt_opponent.h"
#include "device_data.h"
#include "device_timing.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/gemm_problem.h"

namespace levin::bench {
namespace {

using cuda::blocks_of;
using cuda::DeviceArray;
using cuda::GemmFp8;
using cuda::GemmFp8Plan;
using cuda::GemmKernel;
using cuda::Stream;

constexpr int64_t kColdBytes = int64_t{512} << 20;
constexpr int kMaxTokens = 4096;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Options {
  std::string opponent = "libcublasLt.so.13";
  bool all_plans = false;
  int rest_ms = 0;             // idle time before each timed graph; graphs then hold one launch of the large batches
  int warm_ms = 500;           // of large batches, without rests: each side at the clocks of its own power draw
  bool overlap = true;         // our kernels may start while the one before them runs
  int only_n = 0, only_k = 0;  // one dense shape instead of all
  bool only_grouped = false;
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 4096};
};

// Copies of one weight, activations for up to kMaxTokens rows, scales in both sides' layouts.
class Shape {
 public:
  Shape(const Stream& stream, int outputs, int inputs)
      : n(outputs),
        k(inputs),
        n_copies(static_cast<int>(std::max<int64_t>(2, (kColdBytes + int64_t{n} * k - 1) / (int64_t{n} * k)))),
        w_(stream, int64_t{n_copies} * n * k),
        x_(stream, cuda::random_e4m3(int64_t{kMaxTokens} * k, 1)),
        x_scale_(stream, cuda::random_scales(kMaxTokens * blocks_of(k), 2)),
        out_(stream, int64_t{kMaxTokens} * n),
        opponent_out_(stream, int64_t{kMaxTokens} * n) {
    const std::vector<uint8_t> w = cuda::random_e4m3(int64_t{n} * k, 3);
    for (int i = 0; i < n_copies; ++i)
      cuda::copy_to_device(stream, reinterpret_cast<std::byte*>(w_.data()) + int64_t{i} * n * k, w.data(),
                           n * int64_t{k});
    cuda::must(stream.synchronize());
    const std::vector<float> dense = cuda::random_scales(blocks_of(n) * blocks_of(k), 4);
    const int64_t padded = round_up(blocks_of(k), 4);
    std::vector<float> opponent(static_cast<size_t>(blocks_of(n) * padded));
    for (int64_t i = 0; i < blocks_of(n); ++i)
      for (int64_t j = 0; j < blocks_of(k); ++j) opponent[i * padded + j] = dense[i * blocks_of(k) + j];
    w_scale_ = DeviceArray<float>(stream, dense);
    opponent_w_scale_ = DeviceArray<float>(stream, opponent);
  }

  // Scales are column major with the leading dimension cuBLASLt wants, so that both sides read the same array.
  GemmFp8 args(int n_tokens, int copy) const {
    GemmFp8 a;
    a.x = x_.data();
    a.x_row_bytes = k;
    a.x_scale = x_scale_.data();
    a.x_scale_ld = round_up(n_tokens, 4);
    a.w = w_.data() + int64_t{copy % n_copies} * n * k;
    a.w_scale = w_scale_.data();
    a.out = out_.data();
    a.n_tokens = n_tokens;
    a.n = n;
    a.k = k;
    a.pdl = true;
    return a;
  }
  BlockScaledProduct opponent_args(int copy) const {
    return {x_.data(), x_scale_.data(), w_.data() + int64_t{copy % n_copies} * n * k, opponent_w_scale_.data(),
            opponent_out_.data()};
  }

  // Largest difference between the two outputs, relative to the largest value.
  double disagreement(int n_tokens) const {
    const std::vector<uint16_t> ours = out_.host(int64_t{n_tokens} * n),
                                theirs = opponent_out_.host(int64_t{n_tokens} * n);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < int64_t{n_tokens} * n; ++i) {
      worst = std::max(worst, std::fabs(double{bf16_to_f32(ours[i])} - double{bf16_to_f32(theirs[i])}));
      largest = std::max(largest, std::fabs(double{bf16_to_f32(theirs[i])}));
    }
    return worst / largest;
  }
  std::vector<uint16_t> output(int n_tokens) const { return out_.host(int64_t{n_tokens} * n); }

  const int n, k, n_copies;

 private:
  DeviceArray<uint8_t> w_, x_;
  DeviceArray<float> x_scale_, w_scale_, opponent_w_scale_;
  DeviceArray<uint16_t> out_, opponent_out_;
};

struct Floor {
  double bytes = 0, flop = 0;
  double us() const { return std::max(bytes / kCopyBytesPerSecond, flop / kFp8FlopPerSecond) * 1e6; }
};

Floor dense_floor(int n_tokens, int n, int k) {
  const double scales = 4.0 * static_cast<double>(blocks_of(n) * blocks_of(k) + n_tokens * blocks_of(k));
  return {double(n) * k + double(n_tokens) * k + 2.0 * n_tokens * n + scales, 2.0 * n_tokens * n * k};
}

std::vector<GemmFp8Plan> plans_for(int n_tokens, int n, int k, bool all) {
  const GemmFp8Plan chosen = cuda::plan_gemm_fp8({n_tokens, n, k, 1, 132});
  std::vector<GemmFp8Plan> plans = {chosen};
  if (!all) return plans;
  if (chosen.kernel != GemmKernel::kTiles) {
    if (n_tokens <= 8)
      for (const int width : {16, 32, 48, 56, 64}) plans.push_back({GemmKernel::kFewRows, 8, width});
    for (const int rows : {16, 32, 64})
      for (const int width : {16, 32, 64})
        if (n_tokens <= rows) plans.push_back({GemmKernel::kRows, rows, width});
  }
  if (n_tokens > 64 && n_tokens <= 256)
    for (const int width : {32, 64}) plans.push_back({GemmKernel::kRows, 64, width});
  if (n_tokens > 64) {
    for (const int width : {32, 64, 96, 128}) plans.push_back({GemmKernel::kTiles, 128, width});
    for (const int width : {128, 136}) plans.push_back({GemmKernel::kTiles, 256, width});
  }
  return plans;
}

struct Summary {
  std::map<int, std::vector<double>> speedups;  // by T
  std::map<int, double> worst_share;
};

void bench_dense(const Stream& stream, CublasLt* opponent, const Options& options, int n, int k, Summary& summary) {
  const Shape shape(stream, n, k);
  for (const int n_tokens : options.tokens) {
    const int n_launches = n_tokens <= 256 ? std::max(32, shape.n_copies) : options.rest_ms > 0 ? 1 : 6;
    const int warm_ms = n_tokens <= 256 || options.rest_ms > 0 ? 0 : options.warm_ms;
    const GraphTiming timing{n_launches, 11, options.rest_ms, warm_ms};
    const double floor = dense_floor(n_tokens, n, k).us();
    double theirs = NAN;
    if (opponent && opponent->prepare(n_tokens, n, k))
      theirs = time_in_graph(stream, timing, [&](int i) { opponent->run(shape.opponent_args(i), stream.handle()); });
    bool first = true;
    for (const GemmFp8Plan& plan : plans_for(n_tokens, n, k, options.all_plans)) {
      if (!first && plan == plans_for(n_tokens, n, k, false)[0]) continue;
      const double us = time_in_graph(stream, timing, [&](int i) {
        GemmFp8 a = shape.args(n_tokens, i);
        a.pdl = options.overlap;
        cuda::gemm_fp8(a, plan, stream.handle());
      });
      const double apart = std::isnan(theirs) ? NAN : shape.disagreement(n_tokens);
      fmt::print("dense,{},{},{},{}{},{:.2f},{:.2f},{:.3f},{:.2f},{:.3f},{:.1f},{:.2e}\n", n_tokens, n, k,
                 first ? "" : "alt ", plan.describe(), us, floor, floor / us, theirs, theirs / us,
                 2e-6 * n_tokens * n * k / us, apart);
      std::fflush(stdout);
      if (first) {
        if (!std::isnan(theirs)) summary.speedups[n_tokens].push_back(theirs / us);
        double& worst = summary.worst_share.try_emplace(n_tokens, 1e9).first->second;
        worst = std::min(worst, floor / us);
      }
      first = false;
    }
  }
}

// Rows of a production batch: their first tokens alone must give the same bits.
void check_batches(const Stream& stream, int n, int k) {
  const Shape shape(stream, n, k);
  const auto rows = [&](int n_tokens) {
    GemmFp8 a = shape.args(n_tokens, 0);
    a.x_scale_ld = kMaxTokens;  // the same scales whatever T
    cuda::gemm_fp8(a, cuda::plan_gemm_fp8({n_tokens, n, k, 1, 132}), stream.handle());
    return shape.output(n_tokens);
  };
  const std::vector<uint16_t> all = rows(4096);
  int n_different = 0;
  for (const int n_tokens : {1, 2, 3, 4, 7, 8, 16, 31, 64, 65, 128, 130, 500, 1000}) {
    const std::vector<uint16_t> some = rows(n_tokens);
    n_different += std::memcmp(some.data(), all.data(), some.size() * 2) != 0;
  }
  fmt::print("batches,{},{},{} of 14 batch sizes differ from 4096 rows\n", n, k, n_different);
}

std::vector<GemmFp8Plan> grouped_plans(const GroupRows& rows, int n, int k, bool all) {
  std::vector<GemmFp8Plan> plans = {cuda::plan_gemm_fp8({rows.mean, n, k, rows.n_groups, 132})};
  if (!all) return plans;
  if (rows.mean <= 12)
    for (const int width : {48, 64}) plans.push_back({GemmKernel::kFewRows, 8, width});
  if (rows.mean <= 96)
    for (const int tile_rows : {16, 32, 64}) plans.push_back({GemmKernel::kRows, tile_rows, 64});
  if (rows.mean >= 32)
    for (const int tile_rows : {128, 256}) plans.push_back({GemmKernel::kTiles, tile_rows, 128});
  return plans;
}

// The weights of a layer's experts, of 32 of them 0.47 GB: two copies take turns, so that they are cold. One of 256 is enough.
struct GroupedWeights {
  GroupedWeights(const Stream& stream, int outputs, int inputs, int groups)
      : n(outputs),
        k(inputs),
        n_groups(groups),
        n_copies(groups > 32 ? 1 : 2),
        w(stream, int64_t{n_copies} * groups * outputs * inputs),
        scale(stream, cuda::random_scales(groups * blocks_of(outputs) * blocks_of(inputs), 8)) {
    repeat(stream, w, cuda::random_e4m3(int64_t{n} * k, 6));
  }

  const int n, k, n_groups, n_copies;
  const DeviceArray<uint8_t> w;
  const DeviceArray<float> scale;
};

void bench_grouped(const Stream& stream, const Options& options, const GroupedWeights& weights, const GroupRows& rows) {
  constexpr int kMostRows = 8192;
  const int n = weights.n, k = weights.k, n_groups = rows.n_groups, n_tokens = rows.n_rows();
  const DeviceArray<uint8_t> x(stream, int64_t{n_tokens} * k);
  repeat(stream, x, cuda::random_e4m3(int64_t{std::min(n_tokens, kMostRows)} * k, 5));
  const DeviceArray<float> x_scale(stream, cuda::random_scales(round_up(n_tokens, 4) * blocks_of(k), 7));
  const DeviceArray<uint16_t> out(stream, int64_t{n_tokens} * n);
  const DeviceArray<int32_t> group_begin(stream, rows.begin());
  GemmFp8 a;
  a.x = x.data();
  a.x_row_bytes = k;
  a.x_scale = x_scale.data();
  a.x_scale_ld = round_up(n_tokens, 4);
  a.w_scale = weights.scale.data();
  a.out = out.data();
  a.n_tokens = n_tokens;
  a.n = n;
  a.k = k;
  a.n_groups = n_groups;
  a.group_begin = group_begin.data();
  a.pdl = true;
  Floor floor = dense_floor(n_tokens, n, k);
  floor.bytes += (n_groups - 1.0) * n * k;
  std::vector<uint16_t> first;
  for (const GemmFp8Plan& plan : grouped_plans(rows, n, k, options.all_plans)) {
    const double us = time_in_graph(stream, {n_groups > 32 ? 2 : 8, 7}, [&](int i) {
      a.w = weights.w.data() + int64_t{i % weights.n_copies} * n_groups * n * k;
      cuda::gemm_fp8(a, plan, stream.handle());
    });
    const std::vector<uint16_t> now = out.host();
    if (first.empty()) first = now;
    fmt::print("grouped,{}x{}{},{},{},{},{:.2f},{:.2f},{:.3f},,,{:.1f},{}\n", n_groups, rows.mean, rows.kind(), n, k,
               plan.describe(), us, floor.us(), floor.us() / us, floor.flop * 1e-6 / us, now == first ? "" : "DIFFERS");
    std::fflush(stdout);
  }
}

void bench_experts(const Stream& stream, const Options& options, int n, int k) {
  bench_grouped(stream, options, {stream, n, k, 9}, {9, 1});  // one token, the shared expert among them
  {
    const GroupedWeights weights(stream, n, k, 32);
    for (const int mean : {1, 2, 4, 8, 16, 32, 64, 128, 256}) bench_grouped(stream, options, weights, {32, mean});
    bench_grouped(stream, options, weights, {32, 128, true});
  }
  const GroupedWeights weights(stream, n, k, 256);
  for (const int mean : {2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128})
    bench_grouped(stream, options, weights, {256, mean, true});
}

void print_summary(const Summary& summary) {
  double small_log = 0;
  int n_small = 0;
  for (const auto& [n_tokens, speedups] : summary.speedups) {
    double log_sum = 0, worst = 1e9;
    for (const double s : speedups) {
      log_sum += std::log(s);
      worst = std::min(worst, s);
    }
    if (n_tokens >= 4 && n_tokens <= 64) {
      small_log += log_sum;
      n_small += static_cast<int>(speedups.size());
    }
    fmt::print("T={}: geometric mean {:.3f}x cuBLASLt, worst {:.3f}x; worst share of floor {:.3f}\n", n_tokens,
               std::exp(log_sum / static_cast<double>(speedups.size())), worst, summary.worst_share.at(n_tokens));
  }
  if (n_small) fmt::print("T=4..64: geometric mean {:.3f}x\n", std::exp(small_log / n_small));
}

int run(const Options& options) {
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 5;
  }
  const Stream stream = cuda::must(Stream::create());
  std::string why_not;
  const std::unique_ptr<CublasLt> opponent = CublasLt::open(options.opponent, &why_not);
  fmt::print("# opponent: {}\n", opponent ? opponent->version() : "none, " + why_not);
  fmt::print("kind,T,N,K,plan,us,floor_us,share,opponent_us,speedup,tflops,disagreement\n");
  Summary summary;
  std::vector<std::pair<int, int>> dense = {{2112, 7168},  {24576, 1536}, {32768, 512}, {7168, 16384},
                                            {7168, 18432}, {4096, 7168},  {7168, 2048}};
  if (options.only_n != 0) dense = {{options.only_n, options.only_k}};
  if (options.only_grouped) dense.clear();
  for (const auto& [n, k] : dense) bench_dense(stream, opponent.get(), options, n, k, summary);
  if (options.only_n == 0) {
    for (const auto& [n, k] : {std::pair{4096, 7168}, {7168, 2048}}) bench_experts(stream, options, n, k);
    for (const auto& [n, k] : {std::pair{2112, 7168}, {7168, 2048}})
      if (!options.only_grouped) check_batches(stream, n, k);
  }
  print_summary(summary);
  return 0;
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) {
  levin::bench::Options o;
  std::vector<int> shape;
  CLI::App app("FP8 products, dense and grouped, and how near to the limits of the card and to cuBLASLt they are");
  app.add_option("--tokens", o.tokens, "rows of the dense products")
      ->delimiter(',')
      ->check(CLI::Range(1, levin::bench::kMaxTokens));
  app.add_option("--shape", shape, "one dense product instead of all, as NxK")
      ->delimiter('x')
      ->expected(2)
      ->check(CLI::PositiveNumber);
  app.add_flag("--grouped", o.only_grouped, "grouped products alone");
  app.add_flag("--all-plans", o.all_plans, "each plan of a product, not only the chosen one");
  app.add_option("--opponent", o.opponent, "library of cuBLASLt");
  app.add_option("--warm", o.warm_ms, "milliseconds that each side runs before large batches are timed")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--rest", o.rest_ms, "milliseconds of rest before each timed graph")->check(CLI::NonNegativeNumber);
  app.add_flag("!--no-overlap", o.overlap, "kernels start when the one before has ended");
  CLI11_PARSE(app, argc, argv);
  if (!shape.empty()) o.only_n = shape[0], o.only_k = shape[1];
  return levin::bench::run(o);
}
