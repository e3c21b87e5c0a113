// Activations to e4m3 with a power-of-two scale per row and 128 columns, as gemm_fp8 takes them.
//
//   quantize_fp8       codes = e4m3(x / s) of each row and block,  s = 2^ceil(log2(max(amax, 1e-4) / 448))
//   silu_mul_quantize  the same of silu(min(gate, limit)) * min(max(up, -limit), limit), in f32
//   transpose_scales   [T, ceil(K / 128)], the layout of ops/quantize.h, to that of the products
//
// Form      codes and scales, for FP8 weights; or, for MXFP4 weights, the same rounded values as bf16, which holds them
//           exactly
// Bits      equal to ops/quantize.h and ops/moe.h on the CPU for the same f32 values
// Limits    K a multiple of 16
#pragma once

#include <cstdint>
#include <limits>

struct CUstream_st;

namespace levin::cuda {

struct QuantizedRows {
  uint8_t* codes = nullptr;  // [T, K] e4m3, rows code_row_bytes apart
  int64_t code_row_bytes = 0;
  float* scale =
      nullptr;  // of row t and block b at b * scale_ld + t * scale_row_stride; products take a row stride of 1
  int64_t scale_ld = 0;
  int64_t scale_row_stride = 1;
  uint16_t* values = nullptr;  // [T, K] bf16, rows values_ld elements apart, 16-byte aligned; if given, the only output
  int64_t values_ld = 0;
};

struct QuantizeFp8 {
  const void* x = nullptr;  // [T, K] bf16 or f32, rows x_ld elements apart, 16-byte aligned
  bool x_is_f32 = false;
  int64_t x_ld = 0;
  QuantizedRows out;
  int n_tokens = 0;
  int k = 0;
  bool pdl = false;
};
void quantize_fp8(const QuantizeFp8& a, CUstream_st* stream);

struct SiluMulQuantize {
  const void* gate = nullptr;  // [T, F] bf16, rows ld elements apart
  const void* up = nullptr;    // [T, F] bf16, rows ld elements apart
  int64_t ld = 0;
  float limit = std::numeric_limits<float>::infinity();
  QuantizedRows out;  // of K = F
  int n_tokens = 0;
  int d_hidden = 0;  // F
  bool pdl = false;
};
void silu_mul_quantize(const SiluMulQuantize& a, CUstream_st* stream);

// Scales as ops have them, a row's blocks side by side, as products take them.
struct TransposeScales {
  const float* from = nullptr;  // [T, n_blocks], rows from_ld elements apart
  int64_t from_ld = 0;
  float* to = nullptr;  // [n_blocks, to_ld], to_ld at least T
  int64_t to_ld = 0;
  int n_rows = 0;  // T
  int n_blocks = 0;
};
void transpose_scales(const TransposeScales& a, CUstream_st* stream);

}  // namespace levin::cuda
