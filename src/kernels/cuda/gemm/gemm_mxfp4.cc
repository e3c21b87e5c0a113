#include "kernels/cuda/gemm/gemm_mxfp4.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/gemm/gemm_mxfp4_launch.h"
#include "kernels/cuda/gemm/gemm_mxfp4_layout.h"
#include "kernels/cuda/plan_thresholds.h"
#include "tensor/matrix.h"

namespace levin::cuda {
namespace {

uint32_t code_at(const Mxfp4Rows& from, int row, int column) {
  if (row >= from.n || column >= from.k) return 0;
  const uint8_t pair = from.codes[(int64_t{row} * from.k + column) / 2];
  return column % 2 == 0 ? pair & 0xFu : pair >> 4;
}

// The codes that one thread multiplies in one step of a tile whose first element is [row, column].
uint32_t word_of(const Mxfp4Rows& from, int row, int column, int thread, int step) {
  uint32_t word = 0;
  for (int r = 0; r < 4; ++r) {
    const int n = row + 16 * (thread / 32) + thread % 32 / 4 + 8 * (r % 2);
    const int k = column + 16 * step + 8 * (r / 2) + 2 * (thread % 4);
    word |= mx_half_bits(code_at(from, n, k), r) | mx_half_bits(code_at(from, n, k + 1), r) << 16;
  }
  return word;
}

void pack_codes(const Mxfp4Rows& from, int row, int column, std::byte* tile) {
  for (int step = 0; step < 8; ++step) {
    for (int thread = 0; thread < 128; ++thread) {
      const uint32_t word = word_of(from, row, column, thread, step);
      std::memcpy(tile + ((step / 4 * 128 + thread) * 4 + step % 4) * 4, &word, sizeof(word));
    }
  }
}

// The scales of one tile; returns the largest, or 0 if one is out of range.
uint8_t pack_scales(const Mxfp4Rows& from, int row, int column, std::byte* out) {
  uint8_t largest = kMxMinScale;
  const int n_groups = (from.k + static_cast<int>(kMxGroup) - 1) / static_cast<int>(kMxGroup);
  for (int i = 0; i < kMxStripRows; ++i) {
    for (int g = 0; g < 4; ++g) {
      const int group = column / static_cast<int>(kMxGroup) + g;
      uint8_t scale = 127;
      if (row + i < from.n && group < n_groups) scale = from.scales[int64_t{row + i} * n_groups + group];
      if (scale < kMxMinScale || scale > kMxMaxScale) return 0;
      largest = std::max(largest, scale);
      out[i * 4 + g] = std::byte{scale};
    }
  }
  return largest;
}

}  // namespace

int64_t packed_mxfp4_bytes(int n, int k) { return mx_strips(n) * mx_tiles_of_strip(k) * kMxTileBytes; }

Mxfp4Scales pack_mxfp4(const Mxfp4Rows& from, std::byte* out) {
  constexpr uint8_t kTwo = 128;  // the code of 2
  Mxfp4Scales scales = Mxfp4Scales::kNarrow;
  for (int row = 0; row < mx_strips(from.n) * kMxStripRows; row += kMxStripRows) {
    for (int column = 0; column < from.k; column += kMxTileColumns) {
      pack_codes(from, row, column, out);
      const uint8_t largest = pack_scales(from, row, column, out + kMxCodeBytes);
      if (largest == 0) return Mxfp4Scales::kNotExact;
      if (largest > kTwo) scales = Mxfp4Scales::kWide;
      out += kMxTileBytes;
    }
  }
  return scales;
}

// The tile that most groups fit in. A second tile converts the same weights again, but a larger one multiplies for rows that it
// does not have: one deviation weighs these against each other.
int plan_gemm_mxfp4(int rows_per_group, int n_groups) {
  const double most_rows = n_groups > 1 ? rows_by_chance(rows_per_group, 1) : rows_per_group;
  for (const int rows : {8, 16, 32, 64})
    if (most_rows <= rows) return rows;
  return 128;
}

std::vector<int64_t> gemm_mxfp4_thresholds(int64_t most_rows, int n_groups) {
  return plan_thresholds(most_rows,
                         [n_groups](int64_t n_rows) { return plan_gemm_mxfp4(static_cast<int>(n_rows), n_groups); });
}

std::string gemm_mxfp4_support(const GroupedShape& w) {
  if (w.n <= 0 || w.n % 8 != 0)
    return fmt::format("MXFP4 products on CUDA need outputs in multiples of 8, not {}", w.n);
  if (w.k <= 0 || w.k % 8 != 0) return fmt::format("MXFP4 products on CUDA need inputs in multiples of 8, not {}", w.k);
  if (w.n_groups < 1 || w.n_groups > kMaxGroups)
    return fmt::format("MXFP4 products on CUDA take 1 to {} groups, not {}", kMaxGroups, w.n_groups);
  return {};
}

void gemm_mxfp4(const GemmMxfp4& a, int tile_rows, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  const std::string refused = gemm_mxfp4_support({.n = a.n, .k = a.k, .n_groups = a.n_groups});
  LEVIN_CHECK(refused.empty(), "{}", refused);
  LEVIN_CHECK(a.scales != Mxfp4Scales::kNotExact, "gemm_mxfp4: weights that could not be packed");
  LEVIN_CHECK((a.n_groups == 1) == (a.group_begin == nullptr), "gemm_mxfp4: {} groups {} group_begin", a.n_groups,
              a.group_begin ? "with" : "without");
  LEVIN_CHECK(
      reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && reinterpret_cast<uintptr_t>(a.w) % 16 == 0 && a.x_ld % 8 == 0,
      "gemm_mxfp4: x and w must be 16-byte aligned, rows of x ({}) a multiple of 8 apart", a.x_ld);
  launch_gemm_mxfp4(a, tile_rows, stream);
}

}  // namespace levin::cuda
