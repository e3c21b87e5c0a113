// Pieces of row kernels. A block has one row; every thread of it calls these together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/numbers.h"
#include "kernels/cpu/cache_values.h"
#include "kernels/cpu/rows.h"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/paged_cache.h"
#include "kernels/cuda/plain/rows.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

using kernels::kNormPartials;
static_assert(kNormPartials <= kThreads, "a thread has a partial sum");

// step(sum, i) adds element i: kNormPartials sums, element i into sum i mod kNormPartials ascending, folded by halves.
template <class Step>
__device__ float row_sum(int64_t d, const Step& step) {
  __shared__ float partial[kNormPartials];
  const int p = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (p < kNormPartials) {
    float sum = 0;
#pragma unroll 8
    for (int64_t i = p; i < d; i += kNormPartials) sum = step(sum, i);
    partial[p] = sum;
  }
  for (int half = kNormPartials / 2; half > 0; half /= 2) {
    __syncthreads();
    if (p < half) partial[p] += partial[p + half];
  }
  __syncthreads();
  return partial[0];
}

__device__ __forceinline__ float inverse_root(float sum, int64_t d, float eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
}

// 1 / sqrt(mean of squares + eps) of x(0 .. d-1).
template <class Value>
__device__ float rms_inverse(int64_t d, float eps, const Value& x) {
  return inverse_root(row_sum(d, [&](float sum, int64_t i) { return __fmaf_rn(x(i), x(i), sum); }), d, eps);
}

struct Centre {
  float mean, inverse;
};
template <class Value>
__device__ Centre layer_centre(int64_t d, float eps, const Value& x) {
  const float mean = row_sum(d, [&](float sum, int64_t i) { return sum + x(i); }) / static_cast<float>(d);
  const float squares = row_sum(d, [&](float sum, int64_t i) {
    const float centred = x(i) - mean;
    return __fmaf_rn(centred, centred, sum);
  });
  return {mean, inverse_root(squares, d, eps)};
}

// Column i of x(0 .. d-1) after rotation by row t's angles.
template <class Value>
__device__ float rotated(const Rotation& r, int64_t t, int64_t d, int64_t i, const Value& x) {
  const int64_t half = d / 2, pair = r.half_split ? i % half : i / 2;
  const int64_t left = r.half_split ? pair : 2 * pair, right = r.half_split ? pair + half : 2 * pair + 1;
  const float cos = r.cos[t * r.ld + pair], sin = r.sin[t * r.ld + pair];
  const float u = x(left), v = x(right);
  return i == left ? __fmaf_rn(u, cos, -(v * sin)) : __fmaf_rn(v, cos, u * sin);
}

// x[0 .. d-1] in place, in shared or global memory.
__device__ inline void rotate_row(const Rotation& r, int64_t t, int64_t d, float* x) {
  __syncthreads();
  for (int64_t j = threadIdx.x; j < d / 2; j += blockDim.x) {
    float& left = x[r.half_split ? j : 2 * j];
    float& right = x[r.half_split ? j + d / 2 : 2 * j + 1];
    const float cos = r.cos[t * r.ld + j], sin = r.sin[t * r.ld + j], u = left, v = right;
    left = __fmaf_rn(u, cos, -(v * sin));
    right = __fmaf_rn(v, cos, u * sin);
  }
  __syncthreads();
}

// x[0 .. d-1] <- x H * factor in place, in shared or global memory.
__device__ inline void hadamard_row(int64_t d, float factor, float* x) {
  for (int64_t stride = 1; stride < d; stride *= 2) {
    __syncthreads();
    for (int64_t j = threadIdx.x; j < d / 2; j += blockDim.x) {
      const int64_t i = j / stride * 2 * stride + j % stride;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) x[i] *= factor;
  __syncthreads();
}

// The largest |x(0 .. n-1)|, NaN left out, in every lane of the calling warp.
template <class Value>
__device__ float warp_amax(int64_t n, const Value& x) {
  float amax = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
    const float magnitude = fabsf(x(i));
    amax = magnitude > amax ? magnitude : amax;
  }
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, amax, step);
    amax = other > amax ? other : amax;
  }
  return amax;
}

// x(0 .. n-1) to e4m3 by the calling warp; returns the scale.
template <class Value>
__device__ float quantize_block(int64_t n, const Value& x, uint8_t* out) {
  const float scale = e4m3_pow2_scale(warp_amax(n, x));
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) out[i] = f32_to_e4m3(x(i) / scale);
  return scale;
}

// x(0 .. d-1) to e4m3 with a scale per `columns`, a warp a block.
template <class Value>
__device__ void quantize_row(int64_t d, int64_t columns, const Value& x, uint8_t* out, float* scales) {
  const int64_t n_blocks = (d + columns - 1) / columns;
  for (int64_t block = threadIdx.x / 32; block < n_blocks; block += blockDim.x / 32) {
    const int64_t begin = block * columns, n = d - begin < columns ? d - begin : columns;
    const float scale = quantize_block(n, [&](int64_t i) { return x(begin + i); }, out + begin);
    if (threadIdx.x % 32 == 0) scales[block] = scale;
  }
}

template <class Value>
__device__ void store_row(bool as_f32, int64_t d, const Value& x, std::byte* out) {
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    if (as_f32) {
      reinterpret_cast<float*>(out)[i] = x(i);
    } else {
      reinterpret_cast<uint16_t*>(out)[i] = f32_to_bf16(x(i));
    }
  }
}

// A row of the latent cache: latent(0 .. d_latent-1), rope(0 .. d_rope-1).
template <class Latent, class Rope>
__device__ void store_latent(const LatentFormat& f, const Latent& latent, const Rope& rope, std::byte* row) {
  if (f.dtype == CacheDType::kFp8) {
    quantize_row(f.d_latent, f.scale_columns, latent, reinterpret_cast<uint8_t*>(row),
                 reinterpret_cast<float*>(row + f.scale_offset));
  } else {
    store_row(f.dtype == CacheDType::kF32, f.d_latent, latent, row);
  }
  store_row(f.rope_is_f32(), f.d_rope, rope, row + f.rope_offset);
}

// Key `row` of an index page. Its fp8 form has one scale.
template <class Value>
__device__ void store_index_key(const IndexKeyFormat& f, const Value& x, std::byte* page, int64_t row) {
  std::byte* key = page + row * f.key_bytes;
  if (f.dtype != CacheDType::kFp8) return store_row(f.dtype == CacheDType::kF32, f.d_index, x, key);
  quantize_row(f.d_index, f.d_index, x, reinterpret_cast<uint8_t*>(key),
               reinterpret_cast<float*>(page + f.scale_offset) + row);
}

}  // namespace levin::cuda::plain
