#include "kernels/cuda/gemm/gemm_fp8.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "kernels/cuda/plan_thresholds.h"

namespace levin::cuda {
namespace {

constexpr int kFewRowsWidths[] = {64, 56, 48, 32, 16}, kRowsWidths[] = {64, 32, 16}, kGemvWidths[] = {32, 56, 48};

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Columns of the busiest SM, in strips of `width`.
int most_columns(const GemmFp8Shape& s, int width) { return ceil_div(ceil_div(s.n, width), s.n_sms) * width; }

// The first width that leaves the busiest SM about the fewest columns.
int choose_width(const GemmFp8Shape& s, std::span<const int> widths) {
  int best = 0, best_columns = 1 << 30;
  for (const int width : widths) {
    const int columns = most_columns(s, width);
    if (columns < best_columns - best_columns / 16) {
      best = width;
      best_columns = columns;
    }
  }
  return best;
}

// Scales of the weights that a block of GEMV rows has: a strip may straddle two blocks of 128 rows.
int64_t gemv_scales(const GemmFp8Shape& s, int width) {
  const int n_strips = ceil_div(s.n, width), n_strips_of_block = ceil_div(n_strips, std::min(s.n_sms, n_strips));
  return int64_t{n_strips_of_block} * (128 % width == 0 ? 1 : 2) * (s.k / 128);
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

// Up to 64 rows. Tiles of 64 have the deep ring, which a block needs that streams more weights than it holds.
GemmFp8Plan rows_plan(const GemmFp8Shape& s) {
  constexpr int64_t kDeepRingBytes = 192 * 1024;
  const int width = choose_width(s, kRowsWidths);
  const bool streams = int64_t{most_columns(s, width)} * s.k > kDeepRingBytes;
  const int rows = streams || s.rows_per_group > 32 ? 64 : s.rows_per_group > 16 ? 32 : 16;
  return {GemmKernel::kRows, rows, width};
}

// Cycles that the tiles of the busiest SM take for 128 of k. Copies bring 49 bytes a cycle to an SM, whatever other SMs are brought at
// the same time; the largest tiles multiply for longer than that.
double cycles_of_tiles(const GemmFp8Shape& s, const GemmFp8Plan& p) {
  constexpr double kBytesPerCycle = 49, kProducts128 = 1080, kProducts136 = 1240;
  const int row_tiles = ceil_div(s.rows_per_group, p.rows), tile_rows = ceil_div(s.rows_per_group, row_tiles);
  const int blocks = p.kernel == GemmKernel::kTiles ? 2 : 1;  // that share a tile's rows
  const int rounds = ceil_div(row_tiles * ceil_div(ceil_div(s.n, p.width), blocks), s.n_sms / blocks);
  const double loads = 128 * (tile_rows + p.width) / kBytesPerCycle;
  const double products = p.rows < 256 ? 0 : p.width == 128 ? kProducts128 : kProducts136;
  return rounds * std::max(loads, products);
}

// The first of them on equal terms: tiles of 64 rows start to load before the kernel before has ended.
GemmFp8Plan many_rows_plan(const GemmFp8Shape& s) {
  constexpr GemmFp8Plan kPlans[] = {{GemmKernel::kRows, 64, 64},    {GemmKernel::kRows, 64, 32},
                                    {GemmKernel::kTiles, 256, 128}, {GemmKernel::kTiles, 256, 136},
                                    {GemmKernel::kTiles, 128, 128}, {GemmKernel::kTiles, 128, 96},
                                    {GemmKernel::kTiles, 128, 64},  {GemmKernel::kTiles, 128, 32}};
  return *std::ranges::min_element(kPlans, {}, [&](const GemmFp8Plan& p) { return cycles_of_tiles(s, p); });
}

}  // namespace

std::string GemmFp8Plan::describe() const {
  constexpr const char* kNames[] = {"GEMV", "few rows", "rows", "tiles"};
  return fmt::format("{} {}x{}", kNames[static_cast<int>(kernel)], rows, width);
}

GemmFp8Plan plan_gemm_fp8(const GemmFp8Shape& s) {
  if (s.n_groups > 1) return groups_plan(s.rows_per_group);
  if (s.rows_per_group > 64) return many_rows_plan(s);
  if (s.rows_per_group > 8) return rows_plan(s);
  if (s.rows_per_group <= kMaxGemvRows && s.k % 128 == 0 && s.k <= kMaxGemvK) {
    const int width = choose_width(s, kGemvWidths);
    if (gemv_scales(s, width) <= kMaxGemvScales) return {GemmKernel::kGemv, kMaxGemvRows, width};
  }
  return {GemmKernel::kFewRows, 8, choose_width(s, kFewRowsWidths)};
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
