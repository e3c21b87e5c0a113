// What ops read, for measurements, and how fast the device reads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/plain/copies.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/index_topk.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/sparse_attention.h"

namespace levin {
namespace {

double bytes_of(const ops::FfnWeights& w) {
  return static_cast<double>(w.gate.n_bytes() + w.up.n_bytes() + w.down.n_bytes());
}

double bytes_of(const PagedRows& pages) {
  return static_cast<double>(pages.tables.dim(0) * pages.tables.dim(1) * pages.page_bytes);
}

}  // namespace

OpWork PlainCuda::work(const ops::Matmul& a) const { return {.bytes = static_cast<double>(a.w->n_bytes())}; }

OpWork PlainCuda::work(const ops::MatmulPerHead& a) const {
  OpWork work;
  for (const Matrix& head : a.w) work.bytes += static_cast<double>(head.n_bytes());
  return work;
}

OpWork PlainCuda::work(const ops::Ffn& a) const { return {.bytes = bytes_of(*a.weights)}; }

OpWork PlainCuda::work(const ops::ExpertFfn& a) const {
  const bool stacked = a.stack != nullptr;
  const auto n_experts = static_cast<double>(stacked ? a.stack->n_experts : std::ssize(a.experts));
  const double all = stacked ? static_cast<double>(a.stack->n_bytes()) : n_experts * bytes_of(a.experts.front());
  const double missed = std::pow(1 - static_cast<double>(a.topk.dim(1)) / n_experts, a.x.dim(0));
  return {.bytes = all * (1 - missed) + (a.shared == nullptr ? 0.0 : bytes_of(*a.shared))};
}

OpWork PlainCuda::work(const ops::IndexScores& a) const { return {.bytes = bytes_of(a.query.cache)}; }

OpWork PlainCuda::work(const ops::IndexTopk& a) const { return {.bytes = bytes_of(a.query.cache)}; }

OpWork PlainCuda::work(const ops::SparseAttention& a) const {
  if (a.rows.topk.empty()) return {};
  const int64_t n_rows = std::min(a.rows.topk.dim(1), a.rows.cache.tables.dim(1) * kPageTokens);
  return {.bytes = static_cast<double>(a.q_latent.dim(0) * n_rows * a.format.row_bytes)};
}

double PlainCuda::measure_read_gb_per_s() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int kPasses = 5;
  Result<cuda::DeviceBuffer> memory = cuda::DeviceBuffer::create(kBytes + 16);
  std::vector<cuda::Event> events;
  for (int i = 0; i <= kPasses; ++i) {
    Result<cuda::Event> event = cuda::Event::create();
    if (!event.ok() || !memory.ok()) return 0;
    events.push_back(std::move(event).value());
  }
  const std::byte* bytes = memory->data();
  events[0].record(stream_);
  for (int i = 0; i < kPasses; ++i) {
    cuda::plain::read_bytes(
        {.from = bytes, .n_bytes = kBytes, .unused = reinterpret_cast<int32_t*>(memory->data() + kBytes)},
        stream_.handle());
    events[static_cast<size_t>(i) + 1].record(stream_);
  }
  if (!stream_.synchronize().ok()) return 0;
  double best_ms = 0;
  for (size_t i = 0; i < kPasses; ++i) {
    const double ms = events[i + 1].ms_since(events[i]);
    best_ms = i == 0 ? ms : std::min(best_ms, ms);
  }
  return 1e-6 * static_cast<double>(kBytes) / best_ms;
}

}  // namespace levin
