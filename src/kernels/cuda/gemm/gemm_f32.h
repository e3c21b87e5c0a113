// Products of f32 activations with f32, bf16 or e4m3 weights, dense and per head.
//
//   out[t, h, n] = sum_k x[t, h, k] * w[h, n, k], e4m3 times its scale
//
// Tree      that of ops/matmul.h for f32 activations: inside a block of 128 k one fused multiply-add per k, ascending, from
//           zero; blocks ascending, total = fma(block, scale, total) from zero, scale 1 but for e4m3. So the bits are
//           those of the plain kernels, whatever the plan: a thread has whole blocks of an output, and where several
//           threads or thread blocks share its K, their blocks' sums are added one by one, in the order of k.
// Out       f32, bf16, or e4m3 with a scale to 128 columns, bit for bit quantize_fp8() of the f32 sums
// Kernels   strips (gemm_f32_sm90.cuh): instances for tiles of 1 to 64 rows; bound by the weights' bytes up to 8 rows, then by
//           multiply-adds outside the matrix unit, which adds in another order
//           warp tiles (gemm_f32_warp_tiles_sm90.cu): tens of rows, four outputs or more, weights bf16 or e4m3
//           many rows (gemm_f32_many_rows_sm90.cu): tiles of 256 rows and 128 outputs, bound by multiply-adds
// Limits    rows of weights are multiples of 16 bytes; ask gemm_f32_support() at load
// Memory    no scratch; safe to capture
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/rows/quantize_fp8.h"
#include "tensor/dtype.h"

struct CUstream_st;

namespace levin::cuda {

struct GemmF32 {
  const float* x = nullptr;  // [T, H, K], 16-byte aligned
  int64_t x_ld = 0;          // elements between rows, a multiple of 4
  int64_t x_head_ld = 0;     // and between heads, likewise; any if H is 1
  const void* w = nullptr;   // [H, N, K], 16-byte aligned, dense
  DType w_type = DType::kBF16;
  const float* w_scale = nullptr;  // [H, ceil(N / 128), ceil(K / 128)], dense, e4m3 alone; null: ones
  void* out = nullptr;             // [T, H, N] f32, or bf16: the sums rounded; null where `rounded` is given
  bool out_is_bf16 = false;
  int64_t out_ld = 0;       // elements between rows
  int64_t out_head_ld = 0;  // and between heads
  QuantizedRows
      rounded;       // instead of out: codes and scales of rows [T, H * N], for plans of which rounds_rows() is true
  int n_tokens = 0;  // T
  int n_heads = 1;   // H
  int n = 0;
  int k = 0;
  // Weights may load while the previous kernel of the stream still runs: nothing on the stream writes them.
  bool pdl = false;
  // That the previous kernel keeps to its end, and this one's blocks so cannot have before: fewer blocks may then be faster.
  int n_busy_sms = 0;
};

struct GemmF32Shape {
  int n_rows = 0;  // T
  DType w_type = DType::kBF16;
  int n = 0;
  int k = 0;
  int n_heads = 1;
  int n_sms = 132;
};

enum class GemmF32Kernel : uint8_t { kStrips, kWarpTiles, kManyRows };

// Which instance runs, and who shares a strip of weights. It changes speed only, never a bit of the result.
struct GemmF32Plan {
  GemmF32Kernel kernel = GemmF32Kernel::kStrips;
  int tile = 0;     // of strips or warp tiles, an instance by its number (gemm_f32_launch.h),
  int strip = 0;    // which multiplies so many outputs
  int rows = 0;     // of so many rows at a time
  int split = 1;    // groups or slots of a thread block that share the K of a strip, a power of two
  int cluster = 1;  // thread blocks that share it

  std::string describe() const;  // "strips of 128 by 8 rows, K in 8 x 2"
  friend bool operator==(const GemmF32Plan&, const GemmF32Plan&) = default;
};
GemmF32Plan plan_gemm_f32(const GemmF32Shape& shape);
// All of the kernel's for a shape, for tests.
std::vector<GemmF32Plan> gemm_f32_plans(const GemmF32Shape& shape);

// Whether a thread block of the plan has whole blocks of 128 columns of the rows that it multiplies, so that it can round them.
bool rounds_rows(const GemmF32Plan& plan, const GemmF32Shape& shape);

// Where they change with the rows, up to most_rows; for tests.
std::vector<int64_t> gemm_f32_thresholds(const GemmF32Shape& shape, int64_t most_rows);

// Empty if the kernel can do it, otherwise the reason.
std::string gemm_f32_support(DType w_type, int64_t k);

void gemm_f32(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream);

}  // namespace levin::cuda
