#include "kernels/cuda/gemm/gemm_fp8.h"

#include <fmt/core.h>

#include <span>

#include "base/check.h"
#include "kernels/cuda/plan_thresholds.h"

namespace levin::cuda {
namespace {

constexpr int kStripWidths[] = {64, 56, 48, 32, 16}, kGemvWidths[] = {32, 56, 48};

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The first width that leaves the busiest SM about the fewest columns.
int choose_width(const GemmFp8Shape& s, std::span<const int> widths) {
  int best = 0, best_columns = 1 << 30;
  for (const int width : widths) {
    const int columns = ceil_div(ceil_div(s.n, width), s.n_sms) * width;
    if (columns < best_columns - best_columns / 16) {
      best = width;
      best_columns = columns;
    }
  }
  return best;
}

// A tile that nearly every group fits in: where rows are few, the bytes of the weights are the cost, which a second tile would read
// again, whereas rows that a tile does not have cost little.
GemmFp8Plan groups_plan(double rows_per_group) {
  const double rows = rows_by_chance(rows_per_group, 2);
  if (rows <= 8) return {GemmKernel::kFewRows, 8, 48};
  if (rows <= 16) return {GemmKernel::kRows, 16, 64};
  if (rows <= 64) return {GemmKernel::kRows, 64, 64};
  return {GemmKernel::kTiles, rows <= 128 ? 128 : 256, 128};
}

// The tile whose rounds over the SMs cover the fewest elements; small tiles load more for each of them.
GemmFp8Plan tiles_plan(const GemmFp8Shape& s) {
  struct Choice {
    int rows, width;
    double cost;  // of one element, relative
  };
  constexpr Choice kChoices[] = {{256, 128, 1.0}, {256, 136, 1.08}, {128, 128, 1.15}};
  GemmFp8Plan best;
  double best_cost = 1e300;
  for (const Choice& c : kChoices) {
    const int pairs = ceil_div(s.rows_per_group, c.rows) * ceil_div(ceil_div(s.n, c.width), 2);
    const double cost = c.cost * ceil_div(pairs, s.n_sms / 2) * c.rows * c.width;
    if (cost < best_cost) {
      best = GemmFp8Plan{GemmKernel::kTiles, c.rows, c.width};
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

std::string GemmFp8Plan::describe() const {
  constexpr const char* kNames[] = {"GEMV", "few rows", "rows", "tiles"};
  return fmt::format("{} {}x{}", kNames[static_cast<int>(kernel)], rows, width);
}

GemmFp8Plan plan_gemm_fp8(const GemmFp8Shape& s) {
  if (s.n_groups > 1) return groups_plan(s.rows_per_group);
  // Up to two rounds of 64 rows read the weights twice, but keep every SM busy where few tiles would not.
  const bool few_tiles = ceil_div(s.n, 128) <= s.n_sms / 2;
  if (s.rows_per_group > (few_tiles ? 128 : 64)) return tiles_plan(s);
  if (s.rows_per_group <= kMaxGemvRows && s.k % 128 == 0 && s.k <= kMaxGemvK)
    return {GemmKernel::kGemv, kMaxGemvRows, choose_width(s, kGemvWidths)};
  if (s.rows_per_group <= 8) return {GemmKernel::kFewRows, 8, choose_width(s, kStripWidths)};
  const int rows = s.rows_per_group <= 16 ? 16 : s.rows_per_group <= 32 ? 32 : 64;
  return {GemmKernel::kRows, rows, choose_width(s, kStripWidths)};
}

std::vector<int64_t> gemm_fp8_thresholds(const GemmFp8Shape& shape, int64_t most_rows) {
  return plan_thresholds(most_rows, [&](int64_t n_rows) {
    GemmFp8Shape s = shape;
    s.rows_per_group = static_cast<int>(n_rows);
    return plan_gemm_fp8(s);
  });
}

std::string gemm_fp8_support(const GroupedShape& w) {
  if (w.n <= 0 || w.n % 8 != 0) return fmt::format("FP8 products on CUDA need outputs in multiples of 8, not {}", w.n);
  if (w.k <= 0 || w.k % 16 != 0) return fmt::format("FP8 products on CUDA need inputs in multiples of 16, not {}", w.k);
  if (w.n_groups < 1 || w.n_groups > kMaxGroups)
    return fmt::format("FP8 products on CUDA take 1 to {} groups, not {}", kMaxGroups, w.n_groups);
  return {};
}

void gemm_fp8(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  const std::string refused = gemm_fp8_support({.n = a.n, .k = a.k, .n_groups = a.n_groups});
  LEVIN_CHECK(refused.empty(), "{}", refused);
  LEVIN_CHECK((a.n_groups == 1) == (a.group_begin == nullptr), "gemm_fp8: {} groups {} group_begin", a.n_groups,
              a.group_begin ? "with" : "without");
  switch (plan.kernel) {
    case GemmKernel::kGemv:
      LEVIN_CHECK(a.n_tokens <= kMaxGemvRows && a.n_groups == 1 && a.k % 128 == 0 && a.k <= kMaxGemvK,
                  "gemm_fp8: {} rows of {} in {} groups; the GEMV kernel takes up to {} rows of one group, K a "
                  "multiple of 128 up to {}",
                  a.n_tokens, a.k, a.n_groups, kMaxGemvRows, kMaxGemvK);
      return gemm_fp8_gemv(a, plan, stream);
    case GemmKernel::kFewRows:
      return gemm_fp8_few_rows(a, plan, stream);
    case GemmKernel::kRows:
      return gemm_fp8_rows(a, plan, stream);
    case GemmKernel::kTiles:
      return gemm_fp8_tiles(a, plan, stream);
  }
}

}  // namespace levin::cuda
