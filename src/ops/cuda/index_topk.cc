#include "ops/index_topk.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/index/topk.h"
#include "kernels/cuda/plain/faults.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"

namespace levin {
namespace {

constexpr int64_t kAnyTopk = 64;  // that the kernels select

OpForm form_of(const ops::IndexQuery& q, int64_t n_topk) {
  return {.op = "index_topk", .keys = q.format, .n_heads = q.q.dim(1), .n_topk = n_topk};
}

// A selection alone is the same on both sets.
bool selects(int64_t n_topk) { return cuda::topk_support(static_cast<int>(n_topk)).empty(); }

cuda::RowLengths row_lengths(std::string_view op, const View& visible, int n_tokens) {
  return {.data = dense_data<int32_t>(op, "visible", visible), .request_stride = n_tokens, .token_stride = 1};
}

cuda::IndexScoreInputs score_inputs(std::string_view op, const ops::IndexQuery& q) {
  LEVIN_CHECK(q.cache.n_pages > 0, "{}: cache.n_pages is {}; on CUDA it is needed", op, q.cache.n_pages);
  return {.q = dense_bytes(op, "q", q.q),
          .w = dense_data<float>(op, "w", q.w),
          .n_rows = q.q.dim(0),
          .n_heads = static_cast<int>(q.q.dim(1)),
          .lengths = row_lengths(op, q.visible, q.tokens_together),
          .tables = page_tables(op, q.cache),
          .pages = q.cache.pages,
          .n_pages = q.cache.n_pages,
          .page_bytes = q.cache.page_bytes,
          .first = q.first};
}

int64_t longest(const ops::IndexQuery& q) { return q.cache.tables.dim(1) * kPageTokens; }

ops::IndexQuery rows_of(const ops::IndexQuery& q, int64_t begin, int64_t n) {
  ops::IndexQuery some = q;
  some.q = q.q.slice_first(begin, n);
  some.w = q.w.slice_first(begin, n);
  some.seq = q.seq.slice_first(begin, n);
  some.visible = q.visible.slice_first(begin, n);
  some.plan = {};  // that of all rows
  return some;
}

}  // namespace

cuda::IndexShape OpsOnCuda::index_shape(int64_t n_rows, int tokens_together, int64_t max_length) const {
  return {.n_requests = static_cast<int>(n_rows),
          .n_tokens = tokens_together,
          .n_blocks = device_.n_sms,
          .max_length = max_length};
}

cuda::IndexPlan OpsOnCuda::index_plan(std::string_view op, const ops::IndexQuery& q, const cuda::IndexShape& shape,
                                      int64_t skip_length) {
  const int64_t n_bytes = cuda::index_plan_bytes(shape);
  if (!q.plan.empty()) {
    LEVIN_CHECK(q.plan.n_elements() * 4 == n_bytes, "{}: a plan of {} bytes for a step that has one of {}", op,
                q.plan.n_elements() * 4, n_bytes);
    return {.shape = shape, .skip_length = skip_length, .memory = device_bytes(op, "plan", q.plan)};
  }
  return cuda::build_index_plan({.lengths = row_lengths(op, q.visible, shape.n_tokens),
                                 .sequence = dense_data<int32_t>(op, "seq", q.seq),
                                 .n_rows = q.q.dim(0),
                                 .shape = shape,
                                 .skip_length = skip_length,
                                 .memory = arena_.allocate_bytes(n_bytes)},
                                stream_.handle());
}

int64_t OpsOnCuda::index_plan_words(const ops::PlanIndex& a) const {
  const int64_t n_rows = a.visible.dim(0), max_length = a.n_pages * kPageTokens;
  if (n_rows == 0 || !selects(a.n_topk) || n_rows > rows_at_once(max_length, a.tokens_together)) return 0;
  return cuda::index_plan_bytes(index_shape(n_rows, a.tokens_together, max_length)) / 4;
}

void OpsOnCuda::plan_index(const ops::PlanIndex& a) {
  constexpr std::string_view kOp = "plan_index";
  cuda::build_index_plan({.lengths = row_lengths(kOp, a.visible, a.tokens_together),
                          .sequence = dense_data<int32_t>(kOp, "seq", a.seq),
                          .n_rows = a.visible.dim(0),
                          .shape = index_shape(a.visible.dim(0), a.tokens_together, a.n_pages * kPageTokens),
                          .skip_length = a.first + a.n_topk,
                          .memory = dense_bytes(kOp, "plan", a.plan)},
                         stream_.handle());
}

void OpsOnCuda::index_scores(const ops::IndexScores& a) {
  if (a.query.q.dim(0) == 0) return;
  if (!why_not_sm90(form_of(a.query, kAnyTopk)).empty()) return PlainCuda::index_scores(a);
  constexpr std::string_view kOp = "index_scores";
  const Scratch scratch(arena_);
  const int64_t max_length = std::min(longest(a.query), a.score.dim(1));
  const cuda::IndexShape shape = index_shape(a.query.q.dim(0), a.query.tokens_together, max_length);
  cuda::index_scores({.in = score_inputs(kOp, a.query),
                      .score = reinterpret_cast<float*>(device_bytes(kOp, "score", a.score)),
                      .score_stride = a.score.stride(0)},
                     index_plan(kOp, a.query, shape, a.query.first), shape, stream_.handle());
}

void OpsOnCuda::topk_of_rows(const ops::IndexTopk& a, int64_t max_length) {
  constexpr std::string_view kOp = "index_topk";
  const int64_t n_rows = a.topk.dim(0), n_topk = a.topk.dim(1);
  const Scratch scratch(arena_);
  const cuda::IndexShape shape = index_shape(n_rows, a.query.tokens_together, max_length);
  const cuda::IndexPlan plan = index_plan(kOp, a.query, shape, a.query.first + n_topk);
  const cuda::IndexTopk rows{
      .in = score_inputs(kOp, a.query),
      .score = reinterpret_cast<float*>(arena_.allocate(DType::kF32, {n_rows, max_length}).bytes()),
      .score_stride = max_length,
      .histogram = reinterpret_cast<uint32_t*>(score_counts_.data()),
      .topk = dense_data<int32_t>(kOp, "topk", a.topk),
      .n_topk = static_cast<int>(n_topk),
      .fault = plan.fault(),
      .settles_nan_rows = true,
      .row_fault = optional_data<int32_t>(kOp, "faults", a.faults),
      .row_fault_bit = cuda::plain::kNanIndexScore};
  cuda::index_topk(rows, plan, shape, stream_.handle());
}

// As many as there are counts of, and scores in half of the scratch.
int64_t OpsOnCuda::rows_at_once(int64_t max_length, int tokens_together) const {
  const int64_t n = std::min(scratch_bytes_ / 2 / (4 * max_length), kCountedRows);
  return std::max<int64_t>(1, n / tokens_together) * tokens_together;
}

void OpsOnCuda::index_topk(const ops::IndexTopk& a) {
  if (a.topk.dim(0) == 0) return;
  if (!why_not_sm90(form_of(a.query, a.topk.dim(1))).empty()) return PlainCuda::index_topk(a);
  const int64_t n_rows = a.topk.dim(0), max_length = longest(a.query);
  const int64_t together = a.query.tokens_together, most = rows_at_once(max_length, a.query.tokens_together);
  if (n_rows <= most) return topk_of_rows(a, max_length);
  const int64_t step = even_step(n_rows / together, most / together) * together;
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
