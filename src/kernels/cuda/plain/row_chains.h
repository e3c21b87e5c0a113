// Chains of row work, one launch each. Contract: ops/row_chains.h; inputs f32 or bf16.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/cache_rows.h"
#include "kernels/cuda/plain/rows.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

struct ChainInput {
  const void* x = nullptr;  // rows ld apart
  DType dtype = DType::kF32;
  int64_t ld = 0;
};

struct NormRows {
  ChainInput x;               // [T, D]
  float* residual = nullptr;  // [T, D], rows residual_ld apart, updated; may be null
  int64_t residual_ld = 0;
  const float* weight = nullptr;  // [D]
  float eps = 0;
  uint16_t* normed = nullptr;  // [T, D] bf16, dense; may be null
  uint8_t* codes = nullptr;    // [T, D] e4m3, dense; may be null
  float* scale = nullptr;      // [T, ceil(D / 128)], dense, of the codes
  int64_t n_rows = 0;
  int64_t d = 0;
};
void norm_rows(const NormRows& a, StreamHandle stream);

struct RotateQueries {
  ChainInput x;  // [T, H, Dr], heads head_ld apart
  int64_t head_ld = 0;
  Rotation rotation;
  uint16_t* out = nullptr;  // [T, H, Dr] bf16, dense
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t d = 0;
};
void rotate_queries(const RotateQueries& a, StreamHandle stream);

struct WriteLatent {
  ChainInput x;                   // [T, Rk + Dr]
  const float* weight = nullptr;  // [Rk]
  float eps = 0;
  Rotation rotation;
  LatentFormat format;
  CacheSlots to;
  int64_t n_rows = 0;
};
void write_latent(const WriteLatent& a, StreamHandle stream);

struct IndexQueries {
  ChainInput x;              // [T, Hi, Di], heads side by side
  const float* w = nullptr;  // [T, Hi], rows w_ld apart
  int64_t w_ld = 0;
  float factor = 1;
  Rotation rotation;
  int64_t d_rope = 0;  // the first columns of a head, rotated
  bool hadamard = true;
  uint8_t* codes = nullptr;  // [T, Hi, Di] e4m3, dense
  float* weights = nullptr;  // [T, Hi], dense
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t d = 0;  // at most 128
};
void index_queries(const IndexQueries& a, StreamHandle stream);

struct WriteIndexKeys {
  ChainInput x;                   // [T, Di]
  const float* weight = nullptr;  // [Di]
  const float* bias = nullptr;    // [Di]
  float eps = 0;
  Rotation rotation;
  int64_t d_rope = 0;
  bool hadamard = true;
  IndexKeyFormat format;  // d_index at most kMaxIndexWidth
  CacheSlots to;
  int64_t n_rows = 0;
};
constexpr int64_t kMaxIndexWidth = 4096;  // of a key in write_index_keys(), which waits in shared memory
void write_index_keys(const WriteIndexKeys& a, StreamHandle stream);

}  // namespace levin::cuda::plain
