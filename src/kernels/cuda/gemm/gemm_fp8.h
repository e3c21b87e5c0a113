// Products of e4m3 activations with e4m3 weights, dense and grouped by expert.
//
//   out[t, n] = sum_b sx[t, b] * sw[g, n / 128, b] * sum_{k in block b} x[t, k] * w[g, n, k]
//               b over blocks of 128 k, g the row's group
//
// Tree      A block is four matrix-unit steps of 32 k, ascending, from zero; blocks are promoted ascending,
//           total = fma(block, sx * sw, total) from zero, in f32. Every kernel here realises it, whatever T, the tile
//           or the group: a row's bits depend on its own values and the weights alone. K is never split.
// Kernels   GEMV rows (gemm_fp8_gemv_sm90.cu): 1 or 2 rows of a dense product, K a multiple of 128; the shortest path
//           from the kernel before to the one after
//           few rows (gemm_fp8_few_rows_sm90.cu): up to 8 rows with a strip of weights, dense or grouped; bandwidth-bound
//           rows (gemm_fp8_rows_sm90.cu): 9 to 64 rows, likewise, or more where all their tiles find an SM
//           tiles (gemm_fp8_tiles_sm90.cu): 128 or 256 rows by 32 to 136 columns in cluster pairs; compute-bound work
// Limits    K a multiple of 16, N a multiple of 8, at most kMaxGroups groups; ask gemm_fp8_support() at load
// Memory    no scratch; safe to capture; group_begin is read on the device
// Overlap   a product with group_begin lets the next kernel of the stream start once group_begin is complete: the kernel after
//           that one may read it before its own grid_dependency_wait() (`groups_settled`)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/grouped_shape.h"

struct CUstream_st;

namespace levin::cuda {

constexpr int kMaxGemvRows = 2;            // of a plan of GEMV rows,
constexpr int kMaxGemvK = 32768;           // whose activations stay in shared memory,
constexpr int kMaxGemvScales = 24 * 1024;  // with the scales of a block's strips

struct GemmFp8 {
  const uint8_t* x = nullptr;  // [T, K] e4m3, 16-byte aligned
  int64_t x_row_bytes = 0;     // a multiple of 16
  const float* x_scale =
      nullptr;  // [ceil(K / 128), x_scale_ld]: the scale of row t and block b at b * x_scale_ld + t; 16-byte aligned
  int64_t x_scale_ld = 0;          // at least T, a multiple of 4; given, never deduced from a shape
  const uint8_t* w = nullptr;      // [G, N, K] e4m3, 16-byte aligned, dense
  const float* w_scale = nullptr;  // [G, ceil(N / 128), ceil(K / 128)], dense
  void* out = nullptr;             // [T, N] dense, bf16 or f32, 16-byte aligned; rows of no group are left as they are
  bool out_is_f32 = false;
  int n_tokens = 0;  // T
  int n = 0;
  int k = 0;
  int n_groups = 1;  // G
  const int32_t* group_begin =
      nullptr;  // [G + 1] on the device: rows group_begin[g] .. group_begin[g+1]-1 use w[g]; null if G is 1
  // A product with the same group_begin is the last kernel but one of the stream.
  bool groups_settled = false;
  bool pdl =
      false;  // weights may load while the previous kernel of the stream still runs: nothing on the stream writes them
};

enum class GemmKernel : uint8_t { kGemv, kFewRows, kRows, kTiles };

// Which instance runs. It changes speed only, never a bit of the result.
struct GemmFp8Plan {
  GemmKernel kernel = GemmKernel::kRows;
  int rows = 16;  // rows of a tile: 2 (kGemv); 8 (kFewRows); 16, 32, 64 (kRows); 128, 256 (kTiles)
  // Columns of a tile: 32, 48, 56 (kGemv); 16, 32, 48, 56, 64 (kFewRows); 16, 32, 64 (kRows); of 128 rows 32, 64, 96, 128, of 256
  // rows 128, 136 (kTiles).
  int width = 64;

  std::string describe() const;  // "rows 16x64"
  friend bool operator==(const GemmFp8Plan&, const GemmFp8Plan&) = default;
};

struct GemmFp8Shape {
  int rows_per_group = 0;  // on average; T for dense products
  int n = 0;
  int k = 0;
  int n_groups = 1;
  int n_sms = 132;
};
GemmFp8Plan plan_gemm_fp8(const GemmFp8Shape& shape);

// plan_thresholds() of its rows_per_group, for tests.
std::vector<int64_t> gemm_fp8_thresholds(const GemmFp8Shape& shape, int64_t most_rows);

// Empty if the kernels can do it, otherwise the reason.
std::string gemm_fp8_support(const GroupedShape& w);

void gemm_fp8(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream);

// The families; the plan must be one of theirs.
void gemm_fp8_gemv(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream);
void gemm_fp8_few_rows(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream);
void gemm_fp8_rows(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream);
void gemm_fp8_tiles(const GemmFp8& a, const GemmFp8Plan& plan, CUstream_st* stream);

}  // namespace levin::cuda
