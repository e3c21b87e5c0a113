// Random index-score problems: paged FP8 keys, queries, weights and lengths on the host and the device, with an oracle
// in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/numbers.h"
#include "gemm_problem.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/index/index_scores.h"
#include "kernels/cuda/index/topk.h"

namespace levin::cuda {

constexpr int64_t kTestPageBytes = 64 * 132 + 64;  // wider than the page, as inside larger blocks

struct IndexProblemShape {
  int n_heads = 64;
  int n_tokens = 1;
  std::vector<int32_t> lengths;  // [B, n_tokens]
  uint64_t seed = 1;
  int64_t max_length = 0;  // 0: the longest, rounded up to pages
};

struct IndexProblem {
  int n_heads, n_tokens, n_requests;
  int64_t n_rows, max_length, table_width, n_pages;
  std::vector<int32_t> lengths;
  std::vector<uint8_t> q;
  std::vector<float> w;
  std::vector<int32_t> tables;  // unused entries hold an id that no page has
  std::vector<uint8_t> pages;

  explicit IndexProblem(const IndexProblemShape& shape)
      : n_heads(shape.n_heads),
        n_tokens(shape.n_tokens),
        n_requests(static_cast<int>(shape.lengths.size()) / shape.n_tokens),
        n_rows(static_cast<int64_t>(shape.lengths.size())),
        max_length(shape.max_length),
        lengths(shape.lengths),
        q(random_e4m3(n_rows * n_heads * 128, shape.seed)),
        w(static_cast<size_t>(n_rows * n_heads)) {
    const int32_t longest = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
    if (max_length == 0) max_length = (longest + 63) / 64 * 64;
    table_width = (max_length + 63) / 64;
    std::mt19937_64 generator(shape.seed + 7);
    std::normal_distribution<float> normal;
    for (float& v : w) v = normal(generator) * 0x1p-12f;
    make_pages(generator, shape.seed);
  }

  int32_t length(int64_t row) const { return static_cast<int32_t>(std::clamp<int64_t>(lengths[row], 0, max_length)); }
  const uint8_t* page(int64_t request, int64_t s) const {
    return pages.data() + int64_t{tables[request * table_width + s / 64]} * kTestPageBytes;
  }

  struct Exact {
    double score = 0;
    double magnitude = 0;  // of the terms, heads that relu cuts off included
  };
  Exact exact(int64_t row, int64_t s) const {
    const int64_t request = row / n_tokens;
    const uint8_t* key = page(request, s) + s % 64 * 128;
    float scale;
    std::memcpy(&scale, page(request, s) + 8192 + s % 64 * 4, 4);
    Exact e;
    for (int h = 0; h < n_heads; ++h) {
      double dot = 0, magnitude = 0;
      for (int d = 0; d < 128; ++d) {
        const double term = double{e4m3_value(q[(row * n_heads + h) * 128 + d])} * double{e4m3_value(key[d])};
        dot += term;
        magnitude += std::fabs(term);
      }
      const double weight = double{w[row * n_heads + h]} * double{scale};
      e.score += weight * std::max(dot, 0.0);
      e.magnitude += std::fabs(weight) * magnitude;
    }
    return e;
  }

  static float e4m3_value(uint8_t code) {
    static const std::vector<float> table = [] {
      std::vector<float> values(256);
      for (int i = 0; i < 256; ++i) values[i] = e4m3_to_f32(static_cast<uint8_t>(i));
      return values;
    }();
    return table[code];
  }

 private:
  void make_pages(std::mt19937_64& generator, uint64_t seed) {
    tables.assign(static_cast<size_t>(n_requests * table_width), 0x3FFFFFFF);
    n_pages = 0;
    for (int b = 0; b < n_requests; ++b) {
      int32_t longest = 0;
      for (int t = 0; t < n_tokens; ++t) longest = std::max(longest, length(int64_t{b} * n_tokens + t));
      for (int p = 0; p < (longest + 63) / 64; ++p) tables[b * table_width + p] = static_cast<int32_t>(n_pages++);
    }
    n_pages = std::max<int64_t>(n_pages, 1);
    std::vector<int32_t> order(static_cast<size_t>(n_pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator);
    for (int32_t& id : tables)
      if (id < n_pages) id = order[id];
    pages = random_e4m3(n_pages * kTestPageBytes, seed + 3);
    for (int64_t p = 0; p < n_pages; ++p) {
      for (int i = 0; i < 64; ++i) {
        const float scale = std::ldexp(1.0f, static_cast<int>(generator() % 5) - 8);
        std::memcpy(pages.data() + p * kTestPageBytes + 8192 + i * 4, &scale, 4);
      }
    }
  }
};

// The problem on the device, with its plan.
class IndexOnDevice {
 public:
  IndexOnDevice(const Stream& stream, const IndexProblem& problem)
      : p(problem),
        stream_(stream),
        q_(stream, problem.q),
        w_(stream, problem.w),
        lengths_(stream, problem.lengths),
        tables_(stream, problem.tables),
        pages_(stream, problem.pages),
        fault_(stream, std::vector<uint32_t>{0}),
        histogram_(stream, std::vector<uint32_t>(static_cast<size_t>(problem.n_rows) * 2048)) {}

  IndexShape shape(int n_blocks = 132) const { return {p.n_requests, p.n_tokens, n_blocks, p.max_length}; }
  RowLengths lengths() const { return {lengths_.data(), p.n_tokens, 1}; }
  IndexScoreInputs inputs() const {
    return {.q = q_.data(),
            .w = w_.data(),
            .n_rows = p.n_rows,
            .n_heads = p.n_heads,
            .lengths = lengths(),
            .tables = {.data = tables_.data(), .stride = p.table_width},
            .pages = reinterpret_cast<const std::byte*>(pages_.data()),
            .n_pages = p.n_pages,
            .page_bytes = kTestPageBytes};
  }
  IndexPlan plan(const IndexShape& shape, int64_t skip_length = 0) {
    plan_memory_ = DeviceArray<uint8_t>(stream_, index_plan_bytes(shape));
    return build_index_plan({.lengths = lengths(),
                             .n_rows = p.n_rows,
                             .shape = shape,
                             .skip_length = skip_length,
                             .memory = reinterpret_cast<std::byte*>(plan_memory_.data())},
                            stream_.handle());
  }
  int64_t score_stride() const { return p.table_width * 64; }

  // [rows, score_stride], cells that no row owns left as the bytes 0xFF.
  std::vector<float> scores(int n_blocks = 132, bool count = false) {
    const DeviceArray<float> score(stream_, p.n_rows * score_stride());
    score.fill(0xFF);
    const IndexPlan built = plan(shape(n_blocks));
    index_scores({.in = inputs(),
                  .score = score.data(),
                  .score_stride = score_stride(),
                  .histogram = count ? histogram_.data() : nullptr,
                  .fault = fault_.data()},
                 built, shape(n_blocks), stream_.handle());
    return score.host();
  }

  std::vector<int32_t> topk(int n_topk, bool physical) {
    const DeviceArray<float> score(stream_, p.n_rows * score_stride());
    score.fill(0xFF);
    const DeviceArray<int32_t> topk(stream_, p.n_rows * n_topk);
    topk.fill(0x77);
    const IndexPlan built = plan(shape(), n_topk);
    index_topk({.in = inputs(),
                .physical = physical,
                .score = score.data(),
                .score_stride = score_stride(),
                .histogram = histogram_.data(),
                .topk = topk.data(),
                .n_topk = n_topk,
                .fault = fault_.data()},
               built, shape(), stream_.handle());
    return topk.host();
  }

  const DeviceArray<uint32_t>& histogram() const { return histogram_; }
  uint32_t fault() const { return fault_.host()[0]; }
  const DeviceArray<int32_t>& device_lengths() const { return lengths_; }
  uint32_t* fault_word() const { return fault_.data(); }

  const IndexProblem& p;

 private:
  const Stream& stream_;
  DeviceArray<uint8_t> q_;
  DeviceArray<float> w_;
  DeviceArray<int32_t> lengths_, tables_;
  DeviceArray<uint8_t> pages_;
  DeviceArray<uint32_t> fault_, histogram_;
  DeviceArray<uint8_t> plan_memory_;
};

// The selection's definition: positions of the K best in [first, end) by (score descending, position ascending),
// ascending, tail -1.
inline std::vector<int32_t> best_positions(const float* score, int32_t first, int32_t end, int n_topk) {
  std::vector<int32_t> order(static_cast<size_t>(std::max(end - first, 0)));
  std::iota(order.begin(), order.end(), first);
  if (static_cast<int>(order.size()) > n_topk) {
    std::nth_element(order.begin(), order.begin() + n_topk, order.end(),
                     [&](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
  }
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(n_topk)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(n_topk), -1);
  return order;
}

}  // namespace levin::cuda
