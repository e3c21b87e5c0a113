#include "kernels/cuda/index/topk.h"

#include <fmt/core.h>

#include "base/check.h"
#include "kernels/cuda/index/topk_launch.h"
#include "kernels/cuda/plan_thresholds.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/tiles/score_key.cuh"

namespace levin::cuda {
namespace {

constexpr int kMaxTopk = 2048;

// Blocks that share a row: as many as its length pays for; no more than it takes to hold it where they would share
// SMs.
int n_split_for(int64_t n_rows, int64_t max_length) {
  int n_split = n_rows <= select_rows_at_once() ? kSelectMaxSplit : kSelectMaxSplit / 2;
  const auto is_too_many = [&](int n) {
    if (max_length < n * kSelectMinKeys) return true;
    return n_rows * n > n_sms() && max_length <= n / 2 * kSelectHeldKeys;
  };
  while (n_split > 1 && is_too_many(n_split)) n_split /= 2;
  return n_split;
}

}  // namespace

std::string topk_support(int n_topk) {
  if (n_topk >= 64 && n_topk <= kMaxTopk && n_topk % 64 == 0) return {};
  return fmt::format("top-k on CUDA selects a multiple of 64 up to 2048, not {}", n_topk);
}

void select_topk(const SelectTopk& a, StreamHandle stream) {
  LEVIN_CHECK(topk_support(a.n_topk).empty(), "{}", topk_support(a.n_topk));
  LEVIN_CHECK(a.fault != nullptr && a.n_tokens >= 1, "top-k needs a place to report NaN and the rows of a request");
  LEVIN_CHECK(reinterpret_cast<uintptr_t>(a.histogram) % 16 == 0, "counts of scores must be 16-byte aligned");
  LEVIN_CHECK(!a.settles_nan_rows || a.histogram != nullptr, "rows with NaN are settled at once with counts alone");
  if (a.n_rows > 0) launch_select_topk(a, n_split_for(a.n_rows, a.max_length), stream);
}

std::vector<int64_t> select_topk_thresholds(int64_t max_length, int64_t most_rows) {
  return plan_thresholds(most_rows, [&](int64_t n_rows) { return n_split_for(n_rows, max_length); });
}

void index_topk(const IndexTopk& a, const IndexPlan& plan, const IndexShape& shape, StreamHandle stream) {
  LEVIN_CHECK(plan.skip_length <= a.in.first + a.n_topk,
              "the index plan skips rows up to {}, but {} top-k indices need scores", plan.skip_length, a.n_topk);
  index_scores({.in = a.in,
                .score = a.score,
                .score_stride = a.score_stride,
                .histogram = a.histogram,
                .min_ranked = a.n_topk,
                .fault = a.fault},
               plan, shape, stream);
  select_topk({.score = a.score,
               .score_stride = a.score_stride,
               .first = a.in.first,
               .lengths = a.in.lengths,
               .n_tokens = shape.n_tokens,
               .n_rows = a.in.n_rows,
               .max_length = shape.max_length,
               .tables = a.physical ? a.in.tables : PageTables{},
               .histogram = a.histogram,
               .topk = a.topk,
               .n_topk = a.n_topk,
               .fault = a.fault,
               .settles_nan_rows = a.settles_nan_rows,
               .row_fault = a.row_fault,
               .row_fault_bit = a.row_fault_bit},
              stream);
}

}  // namespace levin::cuda
