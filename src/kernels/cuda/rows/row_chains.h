// Chains of row work around the products and caches, one launch each. Between input and output nothing is rounded but by
// f32 operations, the same ones in the same order as the CPU's ops: results are bit for bit those of ops/norm.h,
// ops/rope.h, ops/quantize.h and ops/cache_rows.h on the same f32 values.
//
//   norm_rows         x (added to the residual stream, if there is one) -> rms_norm -> bf16 or f32, and e4m3 for a product
//   rotate_queries    the heads' rotated parts -> rope -> bf16: sparse_mla's q_rope
//   write_latent      c and k of a token -> rms_norm of c, rope of k -> a row of the latent cache (656 or 1152 bytes)
//   index_queries     heads of 128 -> rope -> Hadamard -> e4m3; the query's scale and `factor` go into the head's weight
//   write_index_keys  k -> layer_norm -> rope -> Hadamard -> e4m3 -> a row of an index page and its scale
//   norm_and_append   norm_rows, write_latent and write_index_keys of a step's tokens by one launch, and a product of other rows
//                     with few outputs, in the order of ops/matmul.h
//   attention_queries rotate_queries and index_queries by one launch
//
// Shapes    rows of norm_rows: a multiple of 16 up to kMaxNormWidth. Latent 512 + 64, index heads 128 of which the first
//           64 are rotated, rotated parts 64 wide. Others are refused by chain_support().
// Padding   a token with a negative slot is not written; its input is not read
// Launch    with pdl the launch before may still run; only what it may have written is waited for, which norm weights are not
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/index/index_rows.h"
#include "kernels/cuda/rows/quantize_fp8.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"

namespace levin::cuda {

constexpr int kMaxNormWidth = 28672;
constexpr int kLatentWidth = 512;
constexpr int kRopeWidth = 64;

struct ChainWidths {
  int d_model = 0;
  int d_latent = kLatentWidth;
  int d_rope = kRopeWidth;
  int d_index = kIndexWidth;
};

// What the kernels lack for a model of these widths, in one line; empty if nothing.
std::string chain_support(const ChainWidths& widths);

// Rows of bf16, or f32, `ld` elements apart; 16-byte aligned, and multiples of 16 bytes apart, but for rotate_queries().
struct InputRows {
  const void* data = nullptr;
  bool is_f32 = false;
  int64_t ld = 0;
};

// Tables of each token, and which columns make a pair: (2j, 2j + 1), or (j, j + 32).
struct Rotation {
  const float* cos = nullptr;  // [T, 32]
  const float* sin = nullptr;  // [T, 32]
  bool half_split = false;
};

// Where a token's row goes: row slot % 64 of page slot / 64, or with tables of page table[slot / 64] of its sequence.
struct CacheSlots {
  const int32_t* slot = nullptr;       // [T]
  PageTables tables;                   // data null: slots are physical
  const int32_t* table_row = nullptr;  // [T], with tables only
  std::byte* pages = nullptr;          // 16-byte aligned
  int64_t page_bytes = 0;              // a multiple of 16
};

struct NormRows {
  InputRows x;                    // [T, D]
  float* residual = nullptr;      // [T, D], dense: x is added to it and the sum normed; may be null
  const float* weight = nullptr;  // [D], 16-byte aligned
  float eps = 0;
  uint16_t* normed = nullptr;   // [T, D] bf16, dense, may be null
  float* normed_f32 = nullptr;  // [T, D], dense, may be null, and x itself
  QuantizedRows rounded;        // of K = D, may be empty
  int n_tokens = 0;
  int d = 0;
  bool pdl = false;
};
void norm_rows(const NormRows& a, StreamHandle stream);

struct RotateQueries {
  InputRows x;              // [T, H, 64]
  int64_t head_stride = 0;  // elements
  Rotation rotation;
  uint16_t* out = nullptr;  // [T, H, 64] bf16, dense
  int n_tokens = 0;
  int n_heads = 0;
  bool pdl = false;
};
void rotate_queries(const RotateQueries& a, StreamHandle stream);

struct WriteLatent {
  InputRows x;                    // [T, 512 + 64]: latent, then the part to rotate
  const float* weight = nullptr;  // [512], 16-byte aligned
  float eps = 0;
  Rotation rotation;
  LatentRows format = LatentRows::kFp8;
  CacheSlots to;
  int n_tokens = 0;
  bool pdl = false;
};
void write_latent(const WriteLatent& a, StreamHandle stream);

struct IndexQueries {
  InputRows x;               // [T, H, 128]
  const float* w = nullptr;  // [T, H] f32, rows w_ld apart: the learned head weights
  int64_t w_ld = 0;
  float factor = 1;  // H^-1/2 * 128^-1/2
  Rotation rotation;
  bool hadamard = true;
  uint8_t* codes = nullptr;  // [T, H, 128] e4m3, dense
  float* weights = nullptr;  // [T, H] (w * factor) * the query's scale, dense
  int n_tokens = 0;
  int n_heads = 0;
  bool pdl = false;
};
void index_queries(const IndexQueries& a, StreamHandle stream);

struct WriteIndexKeys {
  InputRows x;                    // [T, 128]
  const float* weight = nullptr;  // [128], 16-byte aligned
  const float* bias = nullptr;    // [128], 16-byte aligned
  float eps = 0;
  Rotation rotation;
  bool hadamard = true;
  CacheSlots to;  // pages of 8192 key bytes, then 64 f32 scales
  int n_tokens = 0;
  bool pdl = false;
};
void write_index_keys(const WriteIndexKeys& a, StreamHandle stream);

// out[t, n] = sum_k x[t, k] * w[n, k]
struct FewOutputs {
  const float* x = nullptr;  // [T, K], rows x_ld apart, 16-byte aligned
  int64_t x_ld = 0;          // a multiple of 4
  const void* w = nullptr;   // [N, K] bf16, or f32, dense, 16-byte aligned
  bool w_is_f32 = false;
  float* out = nullptr;  // [T, N], rows out_ld apart
  int64_t out_ld = 0;
  int n_tokens = 0;  // up to kMaxFewOutputsTokens
  int n = 0;
  int k = 0;  // a multiple of 128 up to kMaxFewOutputsK
};
constexpr int kMaxFewOutputsTokens = 32;
constexpr int kMaxFewOutputsK = 8192;

// None of the parts reads what another writes. `pdl` of the parts is not looked at.
struct NormAndAppend {
  NormRows norm;  // up to kMaxSharedNormWidth wide
  WriteLatent latent;
  WriteIndexKeys keys;  // may have no tokens
  FewOutputs product;   // the same
  bool pdl = false;
};
constexpr int kMaxSharedNormWidth = 8192;
void norm_and_append(const NormAndAppend& a, StreamHandle stream);

struct AttentionQueries {
  RotateQueries rotate;
  IndexQueries index;
  bool pdl = false;
};
void attention_queries(const AttentionQueries& a, StreamHandle stream);

}  // namespace levin::cuda
