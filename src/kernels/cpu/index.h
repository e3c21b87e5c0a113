// The lightning indexer on the CPU: scores of query rows against pages of keys, and the exact choice of the best.
//
// Contracts and trees are in ops/index_topk.h. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/row_formats.h"

namespace levin::kernels {

// Scores of some rows of one sequence against its pages page_begin .. page_end-1.
struct IndexScoreJob {
  const void* q = nullptr;  // [n_rows, n_heads, d_index] f32, bf16 or e4m3, as the key format asks
  DType q_dtype = DType::kF32;
  int64_t q_row_stride = 0;
  int64_t q_head_stride = 0;
  const float* w = nullptr;  // [n_rows, n_heads]
  int64_t w_stride = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  IndexKeyFormat format;
  const std::byte* pages = nullptr;  // page id p at pages + p * page_bytes
  int64_t page_bytes = 0;
  const int32_t* table = nullptr;  // page ids of the sequence
  int64_t page_begin = 0;          // page numbers
  int64_t page_end = 0;
  int64_t first = 0;                 // slots first <= s < visible[row] are scored, others left as they are
  const int32_t* visible = nullptr;  // [n_rows]
  float* score = nullptr;            // [n_rows, S], by slot
  int64_t score_stride = 0;
  std::byte* scratch = nullptr;  // score_scratch_bytes, aligned to 64
};

// The choice of the best of one row: slots begin <= s < end.
struct SelectJob {
  const float* score = nullptr;  // [S], by slot
  int64_t begin = 0;
  int64_t end = 0;
  int64_t n_topk = 0;          // K
  int32_t* topk = nullptr;     // [K], ascending, unused tail = -1
  int32_t* scratch = nullptr;  // select_scratch_elements(end - begin)
};

constexpr int64_t kNoNan = -1;  // what select() returns when all is well

// Query rows that score() takes at a time at most; more than that brings nothing.
constexpr int64_t kIndexRows = 16;

inline int64_t select_scratch_elements(int64_t n_candidates) { return 2 * (n_candidates + 64); }

struct IndexKernels {
  int64_t (*score_scratch_bytes)(int64_t n_heads, int64_t d_index) = nullptr;
  void (*score)(const IndexScoreJob&) = nullptr;  // n_rows <= kIndexRows
  int64_t (*select)(const SelectJob&) = nullptr;  // the first slot whose score is NaN, or kNoNan
};

IndexKernels index_kernels_plain();
IndexKernels index_kernels_avx2();
IndexKernels index_kernels_avx512();
IndexKernels index_kernels_avx512_bf16();
IndexKernels index_kernels_amx_bf16();

}  // namespace levin::kernels
