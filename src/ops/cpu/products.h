// Several products of one step at once, cut over the threads by their cost. Internal to ops/cpu: matmul, matmul_per_head
// and the experts.
//
// Rows become operands (kernels/cpu/matmul.h) first, in one parallel loop, then all products run in a second one. A
// product's panels, and its rows where panels are few, may go to different threads; by the tree of ops/matmul.h that
// never shows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cpu_backend.h"
#include "ops/op_times.h"
#include "tensor/matrix.h"

namespace levin {

// Rows of activations as an op receives them.
struct InputRows {
  const void* x = nullptr;  // row 0
  DType dtype = DType::kF32;
  int64_t stride = 0;            // elements
  const float* scale = nullptr;  // [*, ceil(K / 128)], e4m3 only
  int64_t scale_stride = 0;
  const int32_t* rows = nullptr;  // the n_rows rows to take; null: 0 .. n_rows-1
  int64_t n_rows = 0;
  int64_t k = 0;
};

// Rows as a product's operand.
struct PreparedRows {
  InputRows input;
  DType dtype = DType::kF32;
  const void* data = nullptr;  // in the arena; null where the input's own rows are taken
};

struct Product {
  const PreparedRows* x = nullptr;
  const Matrix* w = nullptr;
  float* out = nullptr;  // [n_rows, N]
  int64_t out_stride = 0;
};

// The operand type of rows of type `x` against `w`.
DType operand_dtype(const CpuBackend& cpu, DType x, const Matrix& w);

// What n_rows rows of such operands against `w` read and compute.
OpWork product_work(DType operand, const Matrix& w, int64_t n_rows);

// Whether the kernel set multiplies bf16 as such, products and dots with cache rows alike.
bool multiplies_bf16(const CpuBackend& cpu);

// Fills `data` where `input` and `dtype` are set; scratch from the arena, which the caller releases.
void prepare_rows(CpuBackend& cpu, std::span<PreparedRows> rows);

// The same rows, each converted to `dtype` once and left a plain row: for inputs that many operands share.
InputRows widen_rows(CpuBackend& cpu, const InputRows& input, DType dtype);

void run_products(CpuBackend& cpu, std::span<const Product> products);

}  // namespace levin
