// The indexer's side of a decode step: index scores, scores with selection, selection alone.
//
//   bench_index [--only scores|counted|topk|select] [--heads H] [--tokens N] [--batch B] [--length L]
//                                                CSV to stdout: kind, shape, us, floor us, share of floor, rate
//
// The cache is larger than L2 and the launches of a graph rotate through it, so that keys are cold, as in every layer of
// a step.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device_data.h"
#include "device_timing.h"
#include "kernels/cuda/gemm_problem.h"
#include "kernels/cuda/index/topk.h"

namespace levin::bench {
namespace {

using cuda::DeviceArray;
using cuda::Stream;

constexpr int64_t kIndexPages = 131072;  // 1.1 GB, 8 million keys
constexpr int64_t kPageBytes = 8448;
constexpr int kBlocks = 132;

std::vector<int32_t> shuffled(int64_t n, uint64_t seed) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 generator(seed);
  std::shuffle(order.begin(), order.end(), generator);
  return order;
}

class IndexPages {
 public:
  explicit IndexPages(const Stream& stream)
      : pages(stream, kIndexPages * kPageBytes), order_(stream, shuffled(kIndexPages, 1)) {
    constexpr int64_t kPattern = 4096;
    std::vector<uint8_t> pattern = cuda::random_e4m3(kPattern * kPageBytes, 2);
    const std::vector<float> scales = cuda::random_scales(kPattern * 64, 3);
    for (int64_t p = 0; p < kPattern; ++p)
      std::memcpy(pattern.data() + p * kPageBytes + 8192, scales.data() + p * 64, 256);
    repeat(stream, pages, pattern);
  }
  // Block tables of launch i: the next stretch of the shuffled pages.
  const int32_t* tables(int i, int64_t n_pages) const {
    return order_.data() + i % std::max<int64_t>(1, kIndexPages / n_pages) * n_pages;
  }

  DeviceArray<uint8_t> pages;

 private:
  DeviceArray<int32_t> order_;
};

struct IndexCase {
  int n_heads, n_tokens, n_requests;
  int64_t length;
};

// What the command line leaves of the shapes; 0 leaves all.
struct IndexFilter {
  std::string kind;
  IndexCase only{0, 0, 0, 0};

  bool wants(const IndexCase& c) const {
    const auto is = [](int64_t wanted, int64_t value) { return wanted == 0 || wanted == value; };
    return is(only.n_heads, c.n_heads) && is(only.n_tokens, c.n_tokens) && is(only.n_requests, c.n_requests) &&
           is(only.length, c.length);
  }
};

class IndexStep {
 public:
  IndexStep(const Stream& stream, const IndexPages& pages, const IndexCase& wanted)
      : c(wanted),
        stream_(stream),
        pages_(pages),
        n_rows_(int64_t{c.n_requests} * c.n_tokens),
        q_(stream, cuda::random_e4m3(n_rows_ * c.n_heads * 128, 5)),
        w_(stream, cuda::random_scales(n_rows_ * c.n_heads, 6)),
        lengths_(stream, std::vector<int32_t>(static_cast<size_t>(n_rows_), static_cast<int32_t>(c.length))),
        score_(stream, n_rows_ * c.length),
        histogram_(stream, std::vector<uint32_t>(static_cast<size_t>(n_rows_ * 2048))),
        topk_(stream, n_rows_ * 2048),
        fault_(stream, std::vector<uint32_t>{0}),
        plan_memory_(stream, cuda::index_plan_bytes(shape())) {
    plan_ = cuda::build_index_plan({.lengths = lengths(),
                                    .n_rows = n_rows_,
                                    .shape = shape(),
                                    .memory = reinterpret_cast<std::byte*>(plan_memory_.data())},
                                   stream.handle());
    cuda::must(stream.synchronize());
  }

  void scores(int i, bool counted = false) const {
    cuda::index_scores({.in = inputs(i),
                        .score = score_.data(),
                        .score_stride = c.length,
                        .histogram = counted ? histogram_.data() : nullptr,
                        .fault = fault_.data()},
                       plan_, shape(), stream_.handle());
  }
  void topk(int i) const {
    cuda::index_topk({.in = inputs(i),
                      .physical = true,
                      .score = score_.data(),
                      .score_stride = c.length,
                      .histogram = histogram_.data(),
                      .topk = topk_.data(),
                      .n_topk = 2048,
                      .fault = fault_.data()},
                     plan_, shape(), stream_.handle());
  }
  void select(int) const {
    cuda::select_topk({.score = score_.data(),
                       .score_stride = c.length,
                       .lengths = lengths(),
                       .n_tokens = c.n_tokens,
                       .n_rows = n_rows_,
                       .max_length = c.length,
                       .topk = topk_.data(),
                       .n_topk = 2048,
                       .fault = fault_.data()},
                      stream_.handle());
  }

  double bytes(bool with_scores) const {
    const double keys = double(c.n_requests) * static_cast<double>(c.length) * 132.0625;
    const double queries = static_cast<double>(n_rows_ * c.n_heads) * 132;
    return keys + queries + (with_scores ? 4.0 * static_cast<double>(n_rows_ * c.length) : 0);
  }
  double flop() const { return 2.0 * 128 * c.n_heads * static_cast<double>(n_rows_ * c.length); }
  double floor_us(bool with_scores) const {
    return std::max(bytes(with_scores) / kCopyBytesPerSecond, flop() / kFp8FlopPerSecond) * 1e6;
  }

  const IndexCase c;

 private:
  cuda::IndexShape shape() const { return {c.n_requests, c.n_tokens, kBlocks, c.length}; }
  cuda::RowLengths lengths() const { return {lengths_.data(), c.n_tokens, 1}; }
  cuda::IndexScoreInputs inputs(int i) const {
    const int64_t pages_per_request = c.length / 64;
    return {.q = q_.data(),
            .w = w_.data(),
            .n_rows = n_rows_,
            .n_heads = c.n_heads,
            .lengths = lengths(),
            .tables = {.data = pages_.tables(i, c.n_requests * pages_per_request), .stride = pages_per_request},
            .pages = reinterpret_cast<const std::byte*>(pages_.pages.data()),
            .n_pages = kIndexPages,
            .page_bytes = kPageBytes};
  }

  const Stream& stream_;
  const IndexPages& pages_;
  int64_t n_rows_;
  DeviceArray<uint8_t> q_;
  DeviceArray<float> w_;
  DeviceArray<int32_t> lengths_;
  DeviceArray<float> score_;
  DeviceArray<uint32_t> histogram_;
  DeviceArray<int32_t> topk_;
  DeviceArray<uint32_t> fault_;
  DeviceArray<uint8_t> plan_memory_;
  cuda::IndexPlan plan_;
};

GraphTiming timing_for(double floor_us) { return {floor_us > 200 ? 8 : 24, 11}; }

void print_index(const char* kind, const IndexStep& s, double us, double floor) {
  fmt::print("{},H={} n={} B={} L={},{:.2f},{:.2f},{:.3f},{:.0f} GB/s\n", kind, s.c.n_heads, s.c.n_tokens,
             s.c.n_requests, s.c.length, us, floor, floor / us, s.bytes(false) / us * 1e-3);
  std::fflush(stdout);
}

// Counted: in bins too, as selection wants it.
void bench_scores(const Stream& stream, const IndexPages& pages, const IndexFilter& filter, bool counted) {
  for (const int n_heads : {64, 32}) {
    for (const int n_tokens : {1, 2, 3, 4, 8}) {
      for (const auto& [n_requests, length] : std::vector<std::pair<int, int64_t>>{
               {1, 8192}, {1, 65536}, {8, 32768}, {32, 8192}, {32, 65536}, {128, 8192}, {256, 8192}}) {
        if (!filter.wants({n_heads, n_tokens, n_requests, length})) continue;
        const IndexStep s(stream, pages, {n_heads, n_tokens, n_requests, length});
        const double floor = s.floor_us(true);
        print_index(counted ? "counted" : "scores", s,
                    time_in_graph(stream, timing_for(floor), [&](int i) { s.scores(i, counted); }), floor);
      }
    }
  }
}

void bench_topk(const Stream& stream, const IndexPages& pages, const IndexFilter& filter) {
  for (const int n_heads : {64, 32}) {
    for (const int n_tokens : {1, 2, 4}) {
      for (const auto& [n_requests, length] : std::vector<std::pair<int, int64_t>>{
               {1, 4096}, {1, 8192}, {1, 16384}, {1, 65536}, {4, 8192}, {4, 32768}, {4, 65536}, {32, 65536}}) {
        if (!filter.wants({n_heads, n_tokens, n_requests, length})) continue;
        const IndexStep s(stream, pages, {n_heads, n_tokens, n_requests, length});
        const double floor = s.floor_us(false);
        print_index("topk", s, time_in_graph(stream, timing_for(floor), [&](int i) { s.topk(i); }), floor);
      }
    }
  }
}

void bench_select(const Stream& stream, const IndexPages& pages, const IndexFilter& filter) {
  for (const auto& [n_requests, length] : std::vector<std::pair<int, int64_t>>{
           {1, 8192}, {1, 65536}, {4, 65536}, {32, 65536}, {128, 8192}, {1, 1 << 20}}) {
    if (!filter.wants({64, 1, n_requests, length})) continue;
    const IndexStep s(stream, pages, {64, 1, n_requests, length});
    s.scores(0);
    print_index("select", s, time_in_graph(stream, timing_for(0), [&](int i) { s.select(i); }),
                4e6 * double(n_requests) * double(length) / kCopyBytesPerSecond);
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) {
  using namespace levin;
  bench::IndexFilter filter;
  CLI::App app("Index scores and selection, and how near to the limits of the card they are");
  app.add_option("--only", filter.kind, "one kind instead of all but the counted scores")
      ->check(CLI::IsMember({"scores", "counted", "topk", "select"}));
  app.add_option("--heads", filter.only.n_heads, "cases of so many heads alone")->check(CLI::PositiveNumber);
  app.add_option("--tokens", filter.only.n_tokens, "of so many query tokens of a request")->check(CLI::PositiveNumber);
  app.add_option("--batch", filter.only.n_requests, "of so many requests")->check(CLI::PositiveNumber);
  app.add_option("--length", filter.only.length, "of so many keys")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 1;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  fmt::print("kind,shape,us,floor us,share of floor,rate\n");
  const bench::IndexPages pages(stream);
  if (filter.kind.empty() || filter.kind == "scores") bench::bench_scores(stream, pages, filter, false);
  if (filter.kind == "counted") bench::bench_scores(stream, pages, filter, true);
  if (filter.kind.empty() || filter.kind == "topk") bench::bench_topk(stream, pages, filter);
  if (filter.kind.empty() || filter.kind == "select") bench::bench_select(stream, pages, filter);
  return 0;
}
