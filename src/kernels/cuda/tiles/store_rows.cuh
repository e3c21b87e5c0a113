// Writing a warp's part of an accumulator tile, 16 rows of N columns, to a row-major matrix in f32 or bf16.
//
// f32 goes out as it lies: four lanes hold 32 bytes of a row. bf16 is turned in shared memory, 64 columns at a time, so
// that eight lanes write 128 bytes of a row.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/prims/mbarrier.cuh"

namespace levin::cuda {

// One warp's turning place: 128 bytes of each of 16 rows, padded so that eight rows of 16 bytes fall into different
// banks.
struct alignas(16) WarpStrip {
  static constexpr int kRowBytes = 128 + 16;
  uint8_t rows[16][kRowBytes];
};

// Where the warp's rows go: rows row .. row + n_rows - 1 (n_rows up to 16, the others are dropped), columns from
// `column` on, cut at n.
struct RowTarget {
  void* out;
  bool out_is_f32;
  int n;  // columns of the matrix, a multiple of 8
  int row;
  int n_rows;
  int column;  // a multiple of 8
};

// Stores matrices of 8 rows of 16 bytes from the accumulator's layout; each lane names the place of one row.
__device__ __forceinline__ void store_matrices(void* row, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(a), "r"(b)
               : "memory");
}
__device__ __forceinline__ void store_matrices(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Columns 8 * kFirst .. 8 * (kFirst + kCount) - 1 of the tile, kCount up to 8, through the strip.
template <int kFirst, int kCount, int kRegs>
__device__ __forceinline__ void store_bf16_columns(const float (&d)[kRegs], WarpStrip& strip, const RowTarget& t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* place = strip.rows[lane % 16] + lane / 16 * 16;
#pragma unroll
  for (int j = 0; j + 1 < kCount; j += 2) {
    constexpr int kOf = 4 * kFirst;
    store_matrices(place + 16 * j, pack_bf16(d[kOf + 4 * j], d[kOf + 4 * j + 1]),
                   pack_bf16(d[kOf + 4 * j + 2], d[kOf + 4 * j + 3]), pack_bf16(d[kOf + 4 * j + 4], d[kOf + 4 * j + 5]),
                   pack_bf16(d[kOf + 4 * j + 6], d[kOf + 4 * j + 7]));
  }
  if constexpr (kCount % 2 != 0) {
    constexpr int kLast = 4 * (kFirst + kCount - 1);
    store_matrices(strip.rows[lane % 16] + 16 * (kCount - 1), pack_bf16(d[kLast], d[kLast + 1]),
                   pack_bf16(d[kLast + 2], d[kLast + 3]));
  }
  __syncwarp();
  const int piece = lane % 8, column = t.column + 8 * (kFirst + piece);
  const bool wanted = piece < kCount && column < t.n;
  auto* to = static_cast<__nv_bfloat16*>(t.out) + int64_t{t.row + lane / 8} * t.n + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 value = *reinterpret_cast<const uint4*>(strip.rows[4 * i + lane / 8] + 16 * piece);
    if (wanted && 4 * i + lane / 8 < t.n_rows) *reinterpret_cast<uint4*>(to + int64_t{4 * i} * t.n) = value;
  }
  __syncwarp();
}

template <int N>
__device__ __forceinline__ void store_f32(const float (&d)[N / 2], const RowTarget& t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = t.column + 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    if (row >= t.n_rows) continue;
    float* to = static_cast<float*>(t.out) + int64_t{t.row + row} * t.n + column;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      if (column + 8 * j < t.n) *reinterpret_cast<float2*>(to + 8 * j) = {d[4 * j + 2 * h], d[4 * j + 2 * h + 1]};
  }
}

template <int kFirst, int N>
__device__ __forceinline__ void store_bf16_from(const float (&d)[N / 2], WarpStrip& strip, const RowTarget& t) {
  if constexpr (kFirst < N / 8) {
    constexpr int kCount = N / 8 - kFirst < 8 ? N / 8 - kFirst : 8;
    store_bf16_columns<kFirst, kCount>(d, strip, t);
    store_bf16_from<kFirst + 8, N>(d, strip, t);
  }
}

// d is the warp's part of a [64, N] accumulator (prims/wgmma.cuh). All lanes call.
template <int N>
__device__ __forceinline__ void store_rows(const float (&d)[N / 2], WarpStrip& strip, const RowTarget& t) {
  if (t.out_is_f32)
    store_f32<N>(d, t);
  else
    store_bf16_from<0, N>(d, strip, t);
}

}  // namespace levin::cuda
