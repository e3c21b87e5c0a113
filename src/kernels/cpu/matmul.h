// Products of activations with packed weights, and the rounding of activations, on the CPU.
//
// Contracts and the tree are in ops/matmul.h and ops/quantize.h; the panel layout of weights is in tensor/matrix.h.
// A product has two steps: prepare() once turns rows of x into the operand below, then product() runs any range of
// panels over it, on any thread.
//
//   operand   up to kRowGroup = 8 rows: each for itself and wherever it lies, K values of one type; in bf16 an odd last k
//             is followed by a zero.
//             More rows: in groups of kRowGroup, the last with what is left (r rows). A group lies along k, its rows
//             side by side:
//               f32    group [K][r]
//               bf16   group [ceil(K / 2)][r][2]     pairs of k; an odd last k is paired with zero
//             so group g starts at element 8 * g * K, K rounded up to even for bf16, and a group of one is a plain row.
//             The amx-bf16 set has groups of 16 instead, in tiles: matmul_amx.cc.
//
// Which of the two an input becomes is up to the set: operand_dtype(). bf16 only where the set multiplies bf16 and
// neither side is f32; everything else is multiplied as f32 values, which holds all types exactly.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace levin::kernels {

constexpr int64_t kRowGroup = 8;         // rows that share one load of a weight
constexpr int64_t kPromoteBlock = 128;   // k between two folds of the tree
constexpr int64_t kOperandPadding = 32;  // a row of a bf16 operand has room for K rounded up to this

struct PrepareJob {
  const void* x = nullptr;  // first row
  DType x_dtype = DType::kF32;
  int64_t x_stride = 0;           // elements between rows
  const int32_t* rows = nullptr;  // row i of the operand is row rows[i] of x; null: row i
  int64_t row_begin = 0;          // of the operand, a multiple of kRowGroup
  int64_t row_end = 0;            // a multiple of kRowGroup or n_rows
  int64_t n_rows = 0;
  int64_t k = 0;
  DType operand_dtype = DType::kF32;
  void* operand = nullptr;  // its beginning, for row 0
};

struct ProductJob {
  const void* operand = nullptr;                    // of more than kRowGroup rows
  std::array<const void*, kRowGroup> plain_rows{};  // of up to kRowGroup
  DType operand_dtype = DType::kF32;
  const float* x_scale = nullptr;  // [n_rows, ceil(K / 128)] by operand row, may be null
  int64_t x_scale_stride = 0;
  const int32_t* x_scale_rows = nullptr;  // the scales of operand row i are those of row x_scale_rows[i]; null: row i
  int64_t row_begin = 0;                  // a multiple of kRowGroup
  int64_t row_end = 0;                    // a multiple of kRowGroup or n_rows
  int64_t n_rows = 0;

  const std::byte* panels = nullptr;  // panel 0
  int64_t panel_bytes = 0;
  DType w_dtype = DType::kF32;
  const float* w_scales = nullptr;  // [ceil(N / 128), ceil(K / 128)], may be null; groups of mxfp4 hold their own
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  int64_t n = 0;
  int64_t k = 0;

  float* out = nullptr;    // [n_rows, N], row 0, column 0
  int64_t out_stride = 0;  // elements
};

// Rows of [n_rows, k] from and to other types.
struct RoundRows {
  const float* x = nullptr;
  int64_t x_stride = 0;
  void* out = nullptr;     // bf16 or e4m3
  int64_t out_stride = 0;  // elements
  float* scale = nullptr;  // [n_rows, ceil(k / 128)], e4m3 only
  int64_t scale_stride = 0;
  int64_t n_rows = 0;
  int64_t k = 0;
};

// x[n_rows, d] <- x H / sqrt(d), d a power of two; rows contiguous.
struct HadamardRows {
  float* x = nullptr;
  int64_t x_stride = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
  float factor = 1;  // 1 / sqrt(d) as f32
};

// out[t,:] = sum_j weights[t][j] * y[rows[t][j],:] by fused multiply-adds, j ascending from zero, then + last[t,:].
struct CombineRows {
  const float* y = nullptr;  // [*, d]
  int64_t y_stride = 0;
  const int32_t* rows = nullptr;   // [n_rows, n_terms]
  const float* weights = nullptr;  // [n_rows, n_terms]
  int64_t weights_stride = 0;
  int64_t n_terms = 0;
  const float* last = nullptr;  // [n_rows, d], may be null
  int64_t last_stride = 0;
  float* out = nullptr;  // [n_rows, d]
  int64_t out_stride = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};

// Products of f32 operands as the avx512 set takes them, for the sets above it, which differ in bf16 alone.
void product_f32_avx512(const ProductJob& job);
void product_f32_avx512_vbmi(const ProductJob& job);  // the same bits; e4m3 is looked up

struct MatmulKernels {
  int64_t free_rows = 2;  // that cost no more than loading the weights: how work is cut over threads
  DType (*operand_dtype)(DType x, DType w) = nullptr;
  void (*prepare)(const PrepareJob&) = nullptr;
  void (*product)(const ProductJob&) = nullptr;
  void (*round_to_bf16)(const RoundRows&) = nullptr;
  void (*quantize_fp8)(const RoundRows&) = nullptr;
  void (*hadamard)(const HadamardRows&) = nullptr;
  void (*combine)(const CombineRows&) = nullptr;
};

MatmulKernels matmul_kernels_plain();
MatmulKernels matmul_kernels_avx2();
MatmulKernels matmul_kernels_avx512();
MatmulKernels matmul_kernels_avx512_vbmi();  // the same bits; e4m3 is looked up, all else is shared
MatmulKernels matmul_kernels_avx512_bf16();
MatmulKernels matmul_kernels_amx_bf16();  // operands of more than kRowGroup rows in its own layout, matmul_amx.cc

}  // namespace levin::kernels
