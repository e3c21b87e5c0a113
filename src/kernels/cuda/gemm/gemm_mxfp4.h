// Products of bf16 activations with MXFP4 weights, dense and grouped by expert.
//
//   out[t, n] = sum_k x[t, k] * w[g, n, k],   w = e2m1 code * 2^(e8m0 scale of its 32 columns - 127), g the row's group
//
// Tree      Blocks of 128 k: eight bf16 matrix-unit steps of 16 k, ascending, from zero; blocks are added ascending, from
//           zero, in f32. Every instance realises it: a row's bits depend on its own values and the weights alone. K is
//           never split.
// Numerics  codes times scales are exact in bf16 (tensor/matrix.h, kMxMinScale .. kMxMaxScale), so this is the product
//           with the weights as if they had been stored as bf16. For e4m3 activations pass what their codes and scales
//           stand for (QuantizedRows::values): power-of-two scales make that exact too.
// Weights   in a layout of their own, packed once at load by pack_mxfp4()
// Limits    N and K multiples of 8, at most kMaxGroups groups; ask gemm_mxfp4_support() at load
// Memory    no scratch; safe to capture; group_begin is read on the device
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/grouped_shape.h"

struct CUstream_st;

namespace levin::cuda {

// One matrix as checkpoints hold it.
struct Mxfp4Rows {
  const uint8_t* codes = nullptr;   // [N, K / 2] bytes, the even k in the low nibble
  const uint8_t* scales = nullptr;  // [N, ceil(K / 32)] e8m0, kMxMinScale .. kMxMaxScale
  int n = 0;
  int k = 0;
};

// Bytes of one packed matrix, a multiple of 16; those of groups follow each other.
int64_t packed_mxfp4_bytes(int n, int k);

// The largest scale of a matrix: below 2, as trained weights have them; wide scales take a slower kernel.
enum class Mxfp4Scales : uint8_t { kNarrow, kWide, kNotExact };

// Host memory to host memory. kNotExact if a scale lies outside the range in which values are exact: `out` is not
// complete then, and nothing can multiply it.
Mxfp4Scales pack_mxfp4(const Mxfp4Rows& from, std::byte* out);

struct GemmMxfp4 {
  const uint16_t* x = nullptr;                // [T, K] bf16, 16-byte aligned
  int64_t x_ld = 0;                           // elements between rows, a multiple of 8
  const std::byte* w = nullptr;               // [G] packed matrices, 16-byte aligned
  Mxfp4Scales scales = Mxfp4Scales::kNarrow;  // kWide if one of the matrices has wide ones
  void* out = nullptr;                        // [T, N] dense, bf16 or f32; rows of no group are left as they are
  bool out_is_f32 = false;
  int n_tokens = 0;  // T
  int n = 0;
  int k = 0;
  int n_groups = 1;                      // G
  const int32_t* group_begin = nullptr;  // [G + 1] on the device, as in gemm_fp8.h; null if G is 1
  bool pdl = false;                      // as in gemm_fp8.h
};

// Rows of a tile: 8, 16, 32, 64 or 128. It changes speed only, never a bit of the result. rows_per_group is an average.
int plan_gemm_mxfp4(int rows_per_group, int n_groups);

// plan_thresholds() of its rows_per_group, for tests.
std::vector<int64_t> gemm_mxfp4_thresholds(int64_t most_rows, int n_groups);

// Empty if the kernels can do it, otherwise the reason.
std::string gemm_mxfp4_support(const GroupedShape& w);

void gemm_mxfp4(const GemmMxfp4& a, int tile_rows, CUstream_st* stream);

}  // namespace levin::cuda
