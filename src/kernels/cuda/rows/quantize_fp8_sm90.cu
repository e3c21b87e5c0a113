// quantize_fp8, silu_mul_quantize, and scales to their products' layout. A warp rounds 256 columns of one row: 16 lanes a block of 128, 8 columns a lane.
//
//   grid  x: groups of 4 warps over the columns, y: rows     block  4 warps     smem  none
//   edge  columns beyond K do not take part; a row's last block may be short
//   cost  reads 2 or 4 bytes a value, writes 1 or 2; bandwidth-bound
#include <cuda_bf16.h>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/rows/quantize_fp8.h"
#include "kernels/cuda/tiles/f32_math.cuh"
#include "kernels/cuda/tiles/quantize_row.cuh"

namespace levin::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kWarpColumns = 32 * kLaneColumns;

__device__ __forceinline__ int first_column() {
  return (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kWarpColumns +
         static_cast<int>(threadIdx.x) % 32 * kLaneColumns;
}

template <class In>
__global__ void __launch_bounds__(kWarps * 32) quantize_fp8_kernel(QuantizeFp8 a) {
  launch_dependents();
  grid_dependency_wait();
  const int t = static_cast<int>(blockIdx.y), column = first_column();
  float v[kLaneColumns] = {};
  if (column < a.k) load_8(v, static_cast<const In*>(a.x) + t * a.x_ld + column);
  round_8(v, a.out, t, column, a.k);
}

__global__ void __launch_bounds__(kWarps * 32) silu_mul_quantize_kernel(SiluMulQuantize a) {
  launch_dependents();
  grid_dependency_wait();
  const int t = static_cast<int>(blockIdx.y), column = first_column();
  float gate[kLaneColumns] = {}, up[kLaneColumns] = {};
  if (column < a.d_hidden) {
    load_8(gate, static_cast<const __nv_bfloat16*>(a.gate) + t * a.ld + column);
    load_8(up, static_cast<const __nv_bfloat16*>(a.up) + t * a.ld + column);
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) gate[i] = limited_silu_mul_f32(gate[i], up[i], a.limit);
  round_8(gate, a.out, t, column, a.d_hidden);
}

constexpr int kTransposeThreads = 128;

__global__ void __launch_bounds__(kTransposeThreads) transpose_scales_kernel(TransposeScales a) {
  launch_dependents();
  grid_dependency_wait();
  const int64_t i = int64_t{blockIdx.x} * kTransposeThreads + threadIdx.x;
  const int64_t t = i / a.n_blocks, b = i % a.n_blocks;
  if (t < a.n_rows) a.to[b * a.to_ld + t] = a.from[t * a.from_ld + b];
}

Launch launch_for(int n_rows, int n_columns, bool pdl, cudaStream_t stream) {
  Launch l;
  l.grid = dim3(static_cast<unsigned>((n_columns + kWarps * kWarpColumns - 1) / (kWarps * kWarpColumns)),
                static_cast<unsigned>(n_rows));
  l.block = dim3(kWarps * 32);
  l.pdl = pdl;
  l.stream = stream;
  return l;
}

}  // namespace

void quantize_fp8(const QuantizeFp8& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  const Launch l = launch_for(a.n_tokens, a.k, a.pdl, stream);
  if (a.x_is_f32)
    launch_kernel(quantize_fp8_kernel<float>, l, a);
  else
    launch_kernel(quantize_fp8_kernel<__nv_bfloat16>, l, a);
}

void silu_mul_quantize(const SiluMulQuantize& a, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  launch_kernel(silu_mul_quantize_kernel, launch_for(a.n_tokens, a.d_hidden, a.pdl, stream), a);
}

void transpose_scales(const TransposeScales& a, CUstream_st* stream) {
  if (a.n_rows == 0) return;
  Launch l;
  l.grid = dim3(static_cast<unsigned>((int64_t{a.n_rows} * a.n_blocks + kTransposeThreads - 1) / kTransposeThreads));
  l.block = dim3(kTransposeThreads);
  l.pdl = true;
  l.stream = stream;
  launch_kernel(transpose_scales_kernel, l, a);
}

}  // namespace levin::cuda
