#include "kernels/cuda/index/topk.h"

#include <fmt/core.h>

#include <algorithm>

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
  int n_split = 8;
  const auto is_too_many = [&](int n) {
    if (max_length < n * kSelectMinKeys) return true;
    return n_rows * n > n_sms() && max_length <= n / 2 * kSelectHeldKeys;
  };
  while (n_split > 1 && is_too_many(n_split)) n_split /= 2;
  return n_split;
}

// How prefill cuts its scratch for runs of n_rows: plan, histograms, scores.
struct PrefillScratch {
  int64_t histogram_offset;
  int64_t score_offset;
  int64_t score_stride;
  int64_t n_bytes;
};

IndexShape prefill_shape(int64_t n_rows, int64_t max_length, int n_blocks) {
  return {.n_requests = static_cast<int>((n_rows + kMaxQueryTokens - 1) / kMaxQueryTokens),
          .n_tokens = kMaxQueryTokens,
          .n_blocks = n_blocks,
          .max_length = max_length};
}

PrefillScratch prefill_scratch(int64_t n_rows, int64_t max_length, int n_blocks) {
  const auto round = [](int64_t n_bytes) { return (n_bytes + 255) / 256 * 256; };
  PrefillScratch s{};
  s.score_stride = (max_length + 63) / 64 * 64;
  s.histogram_offset = round(index_plan_bytes(prefill_shape(n_rows, max_length, n_blocks)));
  s.score_offset = s.histogram_offset + n_rows * kScoreBins * 4;
  s.n_bytes = s.score_offset + n_rows * s.score_stride * 4;
  return s;
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

int64_t prefill_scratch_bytes(int64_t n_rows_at_once, int64_t max_length, int n_blocks) {
  return prefill_scratch(n_rows_at_once, max_length, n_blocks).n_bytes;
}

void prefill_index_topk(const PrefillIndexTopk& a, StreamHandle stream) {
  int64_t rows_at_once = (a.n_rows + kMaxQueryTokens - 1) / kMaxQueryTokens * kMaxQueryTokens;
  while (rows_at_once > kMaxQueryTokens &&
         prefill_scratch_bytes(rows_at_once, a.max_length, a.n_blocks) > a.scratch_bytes)
    rows_at_once = std::max<int64_t>(kMaxQueryTokens, rows_at_once / 2 / kMaxQueryTokens * kMaxQueryTokens);
  const PrefillScratch cut = prefill_scratch(rows_at_once, a.max_length, a.n_blocks);
  LEVIN_CHECK(cut.n_bytes <= a.scratch_bytes,
              "{} bytes of scratch for prefill index scores, {} needed for eight rows of {} keys", a.scratch_bytes,
              cut.n_bytes, a.max_length);
  uint32_t* histogram = reinterpret_cast<uint32_t*>(a.scratch + cut.histogram_offset);
  cudaMemsetAsync(histogram, 0, static_cast<size_t>(rows_at_once * kScoreBins * 4), stream);
  for (int64_t row = 0; row < a.n_rows; row += rows_at_once) {
    const int64_t n_rows = std::min(rows_at_once, a.n_rows - row);
    const IndexShape shape = prefill_shape(n_rows, a.max_length, a.n_blocks);
    const RowLengths lengths{a.visible + row, kMaxQueryTokens, 1};
    const IndexPlan plan = build_index_plan(
        {.lengths = lengths, .n_rows = n_rows, .shape = shape, .skip_length = a.first + a.n_topk, .memory = a.scratch},
        stream);
    index_topk({.in = {.q = static_cast<const std::byte*>(a.q) + row * a.n_heads * kIndexWidth,
                       .w = a.w + row * a.n_heads,
                       .n_rows = n_rows,
                       .n_heads = a.n_heads,
                       .lengths = lengths,
                       .tables = {.data = a.table, .stride = 0},
                       .pages = a.pages,
                       .n_pages = a.n_pages,
                       .page_bytes = a.page_bytes,
                       .first = a.first,
                       .reread = true},
                .physical = a.physical,
                .score = reinterpret_cast<float*>(a.scratch + cut.score_offset),
                .score_stride = cut.score_stride,
                .histogram = histogram,
                .topk = a.topk + row * a.n_topk,
                .n_topk = a.n_topk,
                .fault = a.fault},
               plan, shape, stream);
  }
}

}  // namespace levin::cuda
