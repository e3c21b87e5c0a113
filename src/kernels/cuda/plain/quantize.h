// Rounding of activations, and the Hadamard rotation. Contracts and trees: ops/quantize.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

struct RoundToBf16 {
  const float* x = nullptr;  // [T, K], rows x_ld apart
  int64_t x_ld = 0;
  uint16_t* out = nullptr;  // [T, K] bf16, rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t k = 0;
};
void round_to_bf16(const RoundToBf16& a, StreamHandle stream);

struct QuantizeFp8 {
  const float* x = nullptr;  // [T, K], rows x_ld apart
  int64_t x_ld = 0;
  uint8_t* codes = nullptr;    // [T, K] e4m3, rows out_ld apart; or null:
  uint16_t* values = nullptr;  // [T, K] bf16, rows out_ld apart: the rounded values
  int64_t out_ld = 0;
  float* scale = nullptr;  // [T, ceil(K / 128)], rows scale_ld apart; with codes alone
  int64_t scale_ld = 0;
  int64_t n_rows = 0;
  int64_t k = 0;
};
void quantize_fp8(const QuantizeFp8& a, StreamHandle stream);

struct RoundToFp4 {
  float* x = nullptr;  // [T, K], rows x_ld apart, rounded in place
  int64_t x_ld = 0;
  int64_t n_rows = 0;
  int64_t k = 0;
};
void round_to_fp4(const RoundToFp4& a, StreamHandle stream);

struct Hadamard {
  float* x = nullptr;  // [T, H, D], rotated in place; D a power of two
  int64_t x_ld = 0;    // from row to row
  int64_t head_ld = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t d = 0;
};
void hadamard(const Hadamard& a, StreamHandle stream);

}  // namespace levin::cuda::plain
