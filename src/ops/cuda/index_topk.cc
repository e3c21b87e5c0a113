#include "ops/index_topk.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/plain/faults.h"
#include "kernels/cuda/topk.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"

namespace levin {
namespace {

constexpr int64_t kHistogramBins = 2048;  // of a row (kernels/cuda/topk.h)
constexpr int64_t kAnyTopk = 64;          // that the kernels select

OpForm form_of(const ops::IndexQuery& q, int64_t n_topk) {
  return {.op = "index_topk", .keys = q.format, .n_heads = q.q.dim(1), .n_topk = n_topk};
}

// A selection alone is the same on both sets.
bool selects(int64_t n_topk) { return cuda::topk_support(static_cast<int>(n_topk)).empty(); }

void check_cache(std::string_view op, const ops::IndexQuery& q) {
  LEVIN_CHECK(q.cache.n_pages > 0, "{}: cache.n_pages is {}; on CUDA it is needed", op, q.cache.n_pages);
}

int64_t longest(const ops::IndexQuery& q) { return q.cache.tables.dim(1) * kPageTokens; }

ops::IndexQuery rows_of(const ops::IndexQuery& q, int64_t begin, int64_t n) {
  ops::IndexQuery some = q;
  some.q = q.q.slice_first(begin, n);
  some.w = q.w.slice_first(begin, n);
  some.seq = q.seq.slice_first(begin, n);
  some.visible = q.visible.slice_first(begin, n);
  return some;
}

}  // namespace

OpsOnCuda::IndexStep OpsOnCuda::plan_scores(std::string_view op, const ops::IndexQuery& q, int64_t max_length,
                                            int64_t skip_length) {
  const int64_t n_rows = q.q.dim(0), n = q.tokens_together;
  IndexStep step;
  step.shape = {.n_requests = static_cast<int>(n_rows),
                .n_tokens = q.tokens_together,
                .n_blocks = device_.n_sms,
                .max_length = max_length};
  step.in = {.q = dense_bytes(op, "q", q.q),
             .w = dense_data<float>(op, "w", q.w),
             .n_rows = n_rows,
             .n_heads = static_cast<int>(q.q.dim(1)),
             .lengths = {.data = dense_data<int32_t>(op, "visible", q.visible), .request_stride = n, .token_stride = 1},
             .tables = page_tables(op, q.cache),
             .pages = q.cache.pages,
             .n_pages = q.cache.n_pages,
             .page_bytes = q.cache.page_bytes,
             .first = q.first};
  step.plan = cuda::build_index_plan({.lengths = step.in.lengths,
                                      .sequence = dense_data<int32_t>(op, "seq", q.seq),
                                      .n_rows = n_rows,
                                      .shape = step.shape,
                                      .skip_length = skip_length,
                                      .memory = arena_.allocate_bytes(cuda::index_plan_bytes(step.shape))},
                                     stream_.handle());
  return step;
}

void OpsOnCuda::index_scores(const ops::IndexScores& a) {
  if (a.query.q.dim(0) == 0) return;
  if (!why_not_sm90(form_of(a.query, kAnyTopk)).empty()) return PlainCuda::index_scores(a);
  check_cache("index_scores", a.query);
  const Scratch scratch(arena_);
  const IndexStep step =
      plan_scores("index_scores", a.query, std::min(longest(a.query), a.score.dim(1)), a.query.first);
  cuda::index_scores({.in = step.in,
                      .score = reinterpret_cast<float*>(device_bytes("index_scores", "score", a.score)),
                      .score_stride = a.score.stride(0)},
                     step.plan, step.shape, stream_.handle());
}

void OpsOnCuda::topk_of_rows(const ops::IndexTopk& a, int64_t max_length) {
  const int64_t n_rows = a.topk.dim(0), n_topk = a.topk.dim(1);
  const Scratch scratch(arena_);
  const IndexStep step = plan_scores("index_topk", a.query, max_length, a.query.first + n_topk);
  const View score = arena_.allocate(DType::kF32, {n_rows, max_length});
  const int64_t n_counts = n_rows * kHistogramBins;  // and after them the fault word
  auto* histogram = reinterpret_cast<uint32_t*>(arena_.allocate_bytes((n_counts + 1) * 4));
  cuda::fill_bytes(stream_, reinterpret_cast<std::byte*>(histogram), 0, (n_counts + 1) * 4);
  cuda::IndexTopk rows{.in = step.in,
                       .score = reinterpret_cast<float*>(score.bytes()),
                       .score_stride = max_length,
                       .histogram = histogram,
                       .topk = dense_data<int32_t>("index_topk", "topk", a.topk),
                       .n_topk = static_cast<int>(n_topk),
                       .fault = histogram + n_counts};
  cuda::index_topk(rows, step.plan, step.shape, stream_.handle());
  cuda::settle_nan_rows({.any = rows.fault,
                         .score = rows.score,
                         .score_stride = max_length,
                         .first = a.query.first,
                         .lengths = step.in.lengths,
                         .n_tokens = step.shape.n_tokens,
                         .n_rows = n_rows,
                         .max_length = max_length,
                         .topk = rows.topk,
                         .n_topk = rows.n_topk,
                         .fault = optional_data<int32_t>("index_topk", "faults", a.faults),
                         .fault_bit = cuda::plain::kNanIndexScore},
                        stream_.handle());
}

// As many rows at a time as half of the scratch has room for.
void OpsOnCuda::index_topk(const ops::IndexTopk& a) {
  if (a.topk.dim(0) == 0) return;
  if (!why_not_sm90(form_of(a.query, a.topk.dim(1))).empty()) return PlainCuda::index_topk(a);
  check_cache("index_topk", a.query);
  const int64_t n_rows = a.topk.dim(0), n = a.query.tokens_together, max_length = longest(a.query);
  const int64_t row_bytes = 4 * (max_length + kHistogramBins);
  const int64_t step = std::max(n, scratch_bytes_ / 2 / row_bytes / n * n);
  for (int64_t row = 0; row < n_rows; row += step) {
    const int64_t count = std::min(step, n_rows - row);
    topk_of_rows({.query = rows_of(a.query, row, count),
                  .topk = a.topk.slice_first(row, count),
                  .faults = a.faults.empty() ? View() : a.faults.slice_first(row, count)},
                 max_length);
  }
}

void OpsOnCuda::select_topk(const ops::SelectTopk& a) {
  if (a.score.dim(0) == 0) return;
  if (!selects(a.topk.dim(1))) return PlainCuda::select_topk(a);
  constexpr std::string_view kOp = "select_topk";
  const Scratch scratch(arena_);
  auto* any_nan = reinterpret_cast<uint32_t*>(arena_.allocate_bytes(4));
  cuda::fill_bytes(stream_, reinterpret_cast<std::byte*>(any_nan), 0, 4);
  cuda::SelectTopk rows;
  rows.score = reinterpret_cast<const float*>(device_bytes(kOp, "score", a.score));
  rows.score_stride = a.score.stride(0);
  rows.begin = dense_data<int32_t>(kOp, "begin", a.begin);
  rows.lengths.data = dense_data<int32_t>(kOp, "end", a.end);
  rows.n_rows = a.score.dim(0);
  rows.max_length = a.score.dim(1);
  rows.topk = dense_data<int32_t>(kOp, "topk", a.topk);
  rows.n_topk = static_cast<int>(a.topk.dim(1));
  rows.fault = any_nan;
  cuda::select_topk(rows, stream_.handle());
  cuda::settle_nan_rows({.any = any_nan,
                         .score = rows.score,
                         .score_stride = rows.score_stride,
                         .begin = rows.begin,
                         .lengths = rows.lengths,
                         .n_rows = rows.n_rows,
                         .max_length = rows.max_length,
                         .topk = rows.topk,
                         .n_topk = rows.n_topk,
                         .fault = optional_data<int32_t>(kOp, "faults", a.faults),
                         .fault_bit = cuda::plain::kNanIndexScore},
                        stream_.handle());
}

// Rows cut to K candidates take them all, and their scores are not read.
void OpsOnCuda::take_all(const ops::TakeAll& a) {
  if (a.topk.dim(0) == 0) return;
  if (!selects(a.topk.dim(1))) return PlainCuda::take_all(a);
  const Scratch scratch(arena_);
  const int n_topk = static_cast<int>(a.topk.dim(1));
  cuda::SelectTopk rows;
  rows.first = a.first;
  rows.lengths.data = dense_data<int32_t>("take_all", "visible", a.visible);
  rows.n_rows = a.topk.dim(0);
  rows.max_length = int64_t{a.first} + n_topk;
  rows.topk = dense_data<int32_t>("take_all", "topk", a.topk);
  rows.n_topk = n_topk;
  rows.fault = reinterpret_cast<uint32_t*>(arena_.allocate_bytes(4));  // without scores nothing is written there
  cuda::select_topk(rows, stream_.handle());
}

}  // namespace levin
