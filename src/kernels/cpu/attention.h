// Sparse latent attention on the CPU: some heads of one query token over its picked cache rows.
//
// Contract and tree are in ops/sparse_attention.h. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/formats.h"

namespace levin::kernels {

constexpr int64_t kPickTile = 64;  // picks whose softmax is one step of the tree

struct AttentionJob {
  const void* q_latent = nullptr;  // [n_heads, d_latent] f32, or bf16 with bf16 or fp8 rows
  const void* q_rope = nullptr;    // [n_heads, d_rope]   same dtype
  DType q_dtype = DType::kF32;
  int64_t q_latent_stride = 0;
  int64_t q_rope_stride = 0;
  int64_t n_heads = 0;
  const int32_t* picks = nullptr;  // [n_picks], ascending slots
  int64_t n_picks = 0;
  float scale_log2 = 0;  // scale * log2(e), rounded to f32
  LatentFormat format;
  const std::byte* pages = nullptr;  // page id p at pages + p * page_bytes
  int64_t page_bytes = 0;
  const int32_t* table = nullptr;  // page ids of the sequence
  float* out = nullptr;            // [n_heads, d_latent], overwritten
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // scratch_bytes, aligned to 64

  const std::byte* row(int64_t pick) const {
    const int64_t slot = picks[pick];
    return pages + table[slot / kPageTokens] * page_bytes + slot % kPageTokens * format.row_bytes;
  }
};

struct AttentionKernels {
  int64_t (*scratch_bytes)(const LatentFormat& format, int64_t n_heads) = nullptr;
  void (*attend)(const AttentionJob&) = nullptr;
};

AttentionKernels attention_kernels_plain();
AttentionKernels attention_kernels_avx2();
AttentionKernels attention_kernels_avx512();

}  // namespace levin::kernels
