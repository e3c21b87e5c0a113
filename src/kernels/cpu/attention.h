// Sparse attention on the CPU: some heads of one query token over its candidates among the cache rows.
//
// Contract and tree are in ops/sparse_attention.h. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/formats.h"

namespace levin::kernels {

constexpr int64_t kCandidateTile = 64;  // candidates whose softmax is one step of the tree

// Rows of one cache: the picked ones, or a run.
struct CandidateRows {
  const std::byte* pages = nullptr;  // page id p at pages + p * page_bytes
  int64_t page_bytes = 0;
  const int32_t* table = nullptr;  // page ids of the sequence
  const int32_t* picks = nullptr;  // [n] ascending slots; null: slots first, first + 1, ...
  int64_t first = 0;
  int64_t n = 0;

  const std::byte* row(int64_t i, int64_t row_bytes) const {
    const int64_t slot = picks != nullptr ? picks[i] : first + i;
    return pages + table[slot / kPageTokens] * page_bytes + slot % kPageTokens * row_bytes;
  }
};

struct AttentionJob {
  const void* q_latent = nullptr;  // [n_heads, d_latent] f32, or bf16 with bf16 or fp8 rows
  const void* q_rope = nullptr;    // [n_heads, d_rope]   same dtype
  DType q_dtype = DType::kF32;
  int64_t q_latent_stride = 0;
  int64_t q_rope_stride = 0;
  int64_t n_heads = 0;
  CandidateRows rows;           // candidates 0 .. rows.n-1
  CandidateRows more;           // those after them
  float scale_log2 = 0;         // scale * log2(e), rounded to f32
  const float* sink = nullptr;  // [n_heads], may be null
  LatentFormat format;
  float* out = nullptr;  // [n_heads, d_value], overwritten
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // scratch_bytes, aligned to 64

  int64_t n_candidates() const { return rows.n + more.n; }
  const std::byte* row(int64_t i) const {
    return i < rows.n ? rows.row(i, format.row_bytes) : more.row(i - rows.n, format.row_bytes);
  }
};

struct AttentionKernels {
  int64_t (*scratch_bytes)(const LatentFormat& format, int64_t n_heads) = nullptr;
  void (*attend)(const AttentionJob&) = nullptr;
};

AttentionKernels attention_kernels_plain();
AttentionKernels attention_kernels_avx2();
AttentionKernels attention_kernels_avx512();
AttentionKernels attention_kernels_avx512_bf16();

}  // namespace levin::kernels
