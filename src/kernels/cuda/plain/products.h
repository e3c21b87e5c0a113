// Products of activations with weights. Contract and tree: ops/matmul.h, with one fused multiply-add per k whatever the
// types.
//
//   matmul           out[t,n]   = sum_k x[t,k] w[n,k]
//   matmul_per_head  out[t,h,n] = sum_k x[t,h,k] w_h[n,k]
//   matmul_grouped   out[p,n]   = sum_k x[row of p,k] w_{expert of p}[n,k] for the pairs of an ExpertPlan (moe.h)
//
// Weights   row major, as checkpoints hold them; several matrices of one shape stand one after another
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

struct Weights {
  // [N, K] f32, bf16 or e4m3; mxfp4 and nvfp4: [N, K / 2] bytes, the even k in the low nibble
  const void* data = nullptr;
  DType dtype = DType::kF32;
  const float* scales = nullptr;  // [ceil(N / 128), ceil(K / 128)], e4m3 alone; null: ones
  // mxfp4: [N, ceil(K / 32)] e8m0; nvfp4: [N, K / 16] e4m3, then the four bytes of the matrix's f32 factor, unaligned
  const uint8_t* group_scales = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int64_t step = 1;  // of several matrices: 2, where another of this shape follows each
};

struct ProductInput {
  const void* x = nullptr;  // [T, K] f32, bf16 or e4m3, rows ld apart
  DType dtype = DType::kF32;
  int64_t ld = 0;
  const float* scale = nullptr;  // [T, ceil(K / 128)], rows scale_ld apart; e4m3 alone
  int64_t scale_ld = 0;
};

struct Matmul {
  ProductInput x;
  Weights w;
  float* out = nullptr;  // [T, N], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
};
void matmul(const Matmul& a, StreamHandle stream);

struct MatmulPerHead {
  ProductInput x;  // [T, H, K], heads x_head_ld apart; f32 or bf16
  int64_t x_head_ld = 0;
  Weights w;             // H of them
  float* out = nullptr;  // [T, H, N], rows out_ld apart, heads out_head_ld apart
  int64_t out_ld = 0;
  int64_t out_head_ld = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
};
void matmul_per_head(const MatmulPerHead& a, StreamHandle stream);

// Pairs (token, index) in order of expert, cut into tiles of kPairTile pairs of one expert.
constexpr int64_t kPairTile = 16;
struct PairTile {
  int32_t expert = -1;  // -1: none
  int32_t begin = 0;    // into `order`
  int32_t n = 0;
};
struct MatmulGrouped {
  ProductInput x;
  int64_t pairs_per_row = 1;  // pair p multiplies row p / pairs_per_row of x
  Weights w;                  // E of them
  const PairTile* tiles = nullptr;
  int64_t n_tiles = 0;             // capacity
  const int32_t* order = nullptr;  // pairs by expert
  float* out = nullptr;            // [pairs, N], rows out_ld apart
  int64_t out_ld = 0;
};
void matmul_grouped(const MatmulGrouped& a, StreamHandle stream);

}  // namespace levin::cuda::plain
