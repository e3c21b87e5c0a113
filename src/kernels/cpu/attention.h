// Sparse attention on the CPU: some heads of one query token over its candidates among the cache rows, or of several
// tokens that have candidates in common, for which those are gathered once.
//
// Contract and tree are in ops/sparse_attention.h. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/row_formats.h"

namespace levin::kernels {

constexpr int64_t kCandidateTile = 64;  // candidates whose softmax is one step of the tree

// Rows of one cache: the selected ones, or a run.
struct CandidateRows {
  const std::byte* pages = nullptr;  // page id p at pages + p * page_bytes
  int64_t page_bytes = 0;
  const int32_t* table = nullptr;  // page ids of the sequence
  const int32_t* topk = nullptr;   // [n] ascending slots; null: slots first, first + 1, ...
  int64_t first = 0;
  int64_t n = 0;

  const std::byte* row(int64_t i, int64_t row_bytes) const {
    const int64_t slot = topk != nullptr ? topk[i] : first + i;
    return pages + table[slot / kPageTokens] * page_bytes + slot % kPageTokens * row_bytes;
  }
};

// A line is one head of one token; line l is head l % n_heads of token l / n_heads.
struct AttentionJob {
  const void* q_latent = nullptr;  // [n_tokens, n_heads, d_latent] f32, or bf16 with bf16 or fp8 rows
  const void* q_rope = nullptr;    // [n_tokens, n_heads, d_rope]   same dtype
  DType q_dtype = DType::kF32;
  int64_t q_latent_strides[2] = {};  // from token to token, from head to head
  int64_t q_rope_strides[2] = {};
  int64_t n_tokens = 1;
  int64_t n_heads = 0;
  CandidateRows rows;               // candidates 0 .. rows.n-1 of the last token
  CandidateRows more;               // those after them; none with several tokens
  const int64_t* n_seen = nullptr;  // [n_tokens] ascending: the candidates of token t are the first n_seen[t]
  float scale_log2 = 0;             // scale * log2(e), rounded to f32
  const float* sink = nullptr;      // [n_heads], may be null
  LatentFormat format;
  float* out = nullptr;  // [n_tokens, n_heads, d_value], overwritten
  int64_t out_strides[2] = {};
  std::byte* scratch = nullptr;  // scratch_bytes, aligned to 64

  int64_t n_lines() const { return n_tokens * n_heads; }
  int64_t n_candidates() const { return rows.n + more.n; }  // n_seen[n_tokens - 1]
  const std::byte* row(int64_t i) const {
    return i < rows.n ? rows.row(i, format.row_bytes) : more.row(i - rows.n, format.row_bytes);
  }
  // Element offset of a line, given the strides of its token and head.
  int64_t offset(int64_t line, const int64_t (&strides)[2]) const {
    return line / n_heads * strides[0] + line % n_heads * strides[1];
  }
};

struct AttentionKernels {
  int64_t (*scratch_bytes)(const LatentFormat& format, int64_t n_lines) = nullptr;
  void (*attend)(const AttentionJob&) = nullptr;
  int64_t n_lines = 6;  // that are taken at a time
};

AttentionKernels attention_kernels_plain();
AttentionKernels attention_kernels_avx2();
AttentionKernels attention_kernels_avx512();
AttentionKernels attention_kernels_avx512_bf16();
AttentionKernels attention_kernels_amx_bf16();

}  // namespace levin::kernels
