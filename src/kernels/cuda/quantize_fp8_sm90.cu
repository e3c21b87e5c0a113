// quantize_fp8 and silu_mul_quantize. A warp rounds 256 columns of one row: 16 lanes a block of 128, 8 columns a lane.
//
//   grid  x: groups of 4 warps over the columns, y: rows     block  4 warps     smem  none
//   edge  columns beyond K do not take part; a row's last block may be short
//   cost  reads 2 or 4 bytes a value, writes 1; bandwidth-bound
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/quantize_fp8.h"
#include "kernels/cuda/tiles/f32_math.cuh"

namespace levin::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kLaneColumns = 8;
constexpr int kWarpColumns = 32 * kLaneColumns;
constexpr int kBlockLanes = 16;  // lanes that share a scale

__device__ __forceinline__ void load_8(float (&v)[kLaneColumns], const float* x) {
  const float4 low = *reinterpret_cast<const float4*>(x), high = *reinterpret_cast<const float4*>(x + 4);
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void load_8(float (&v)[kLaneColumns], const __nv_bfloat16* x) {
  const uint4 raw = *reinterpret_cast<const uint4*>(x);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// base/numbers.h, e4m3_pow2_scale: the exponent of the rounded quotient, plus one if any mantissa bit is set.
__device__ __forceinline__ uint32_t scale_exponent(float amax) {
  const uint32_t bits = __float_as_uint(__fmul_rn(amax > 1e-4f ? amax : 1e-4f, 1.0f / 448.0f));
  return (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

// Rounds this lane's 8 columns from `column` of row t with its block's scale. Lanes beyond K hold zeros and write
// nothing.
__device__ __forceinline__ void round_8(const float (&v)[kLaneColumns], const QuantizedRows& out, int t, int column,
                                        int k) {
  float amax = 0;
#pragma unroll
  for (const float value : v) amax = fmaxf(amax, fabsf(value));
#pragma unroll
  for (int step = kBlockLanes / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, step));
  if (column >= k) return;
  const uint32_t exponent = scale_exponent(amax);
  const float inverse = __uint_as_float((254 - exponent) << 23);  // exact: both are powers of two
  uint32_t codes[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 scaled = {v[4 * half + 2 * i] * inverse, v[4 * half + 2 * i + 1] * inverse};
      pairs[i] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    }
    codes[half] = pairs[0] | pairs[1] << 16;
  }
  *reinterpret_cast<uint2*>(out.codes + t * out.code_row_bytes + column) = {codes[0], codes[1]};
  if (column % 128 == 0) out.scale[column / 128 * out.scale_ld + t] = __uint_as_float(exponent << 23);
}

__device__ __forceinline__ int first_column() {
  return (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kWarpColumns +
         static_cast<int>(threadIdx.x) % 32 * kLaneColumns;
}

template <class In>
__global__ void __launch_bounds__(kWarps * 32) quantize_fp8_kernel(QuantizeFp8 a) {
  let_next_start();
  wait_for_previous();
  const int t = static_cast<int>(blockIdx.y), column = first_column();
  float v[kLaneColumns] = {};
  if (column < a.k) load_8(v, static_cast<const In*>(a.x) + t * a.x_ld + column);
  round_8(v, a.out, t, column, a.k);
}

__global__ void __launch_bounds__(kWarps * 32) silu_mul_quantize_kernel(SiluMulQuantize a) {
  let_next_start();
  wait_for_previous();
  const int t = static_cast<int>(blockIdx.y), column = first_column();
  float gate[kLaneColumns] = {}, up[kLaneColumns] = {};
  if (column < a.d_hidden) {
    load_8(gate, static_cast<const __nv_bfloat16*>(a.gate) + t * a.ld + column);
    load_8(up, static_cast<const __nv_bfloat16*>(a.up) + t * a.ld + column);
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) gate[i] = __fmul_rn(silu_f32(gate[i]), up[i]);
  round_8(gate, a.out, t, column, a.d_hidden);
}

Launch launch_for(int n_rows, int n_columns, bool follows_closely, cudaStream_t stream) {
  Launch l;
  l.grid = dim3(static_cast<unsigned>((n_columns + kWarps * kWarpColumns - 1) / (kWarps * kWarpColumns)),
                static_cast<unsigned>(n_rows));
  l.block = dim3(kWarps * 32);
  l.follows_closely = follows_closely;
  l.stream = stream;
  return l;
}

}  // namespace

void quantize_fp8(const QuantizeFp8& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  const Launch l = launch_for(a.n_tokens, a.k, a.follows_closely, stream);
  if (a.x_is_f32)
    launch_kernel(quantize_fp8_kernel<float>, l, a);
  else
    launch_kernel(quantize_fp8_kernel<__nv_bfloat16>, l, a);
}

void silu_mul_quantize(const SiluMulQuantize& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  launch_kernel(silu_mul_quantize_kernel, launch_for(a.n_tokens, a.d_hidden, a.follows_closely, stream), a);
}

}  // namespace levin::cuda
