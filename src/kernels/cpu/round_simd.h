// Rounding of activations, the Hadamard rotation and the sum of expert outputs for any vector type of simd.h; contracts
// in kernels/cpu/matmul.h, formulas in ops/quantize.h and ops/moe.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/simd.h"

namespace levin::kernels {
namespace {

template <class V>
void round_rows_to_bf16(const RoundRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const float* x = job.x + row * job.x_stride;
    uint16_t* out = static_cast<uint16_t*>(job.out) + row * job.out_stride;
    int64_t k = 0;
    for (; k + 16 <= job.k; k += 16) V::store_bf16(out + k, V::load(x + k));
    if (k == job.k) continue;
    uint16_t tail[16];
    V::store_bf16(tail, V::load_n(x + k, static_cast<int>(job.k - k)));
    for (int64_t i = k; i < job.k; ++i) out[i] = tail[i - k];
  }
}

// base/numbers.h, e4m3_pow2_scale.
LEVIN_INLINE float pow2_scale_of(float amax) {
  const float ratio = (amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f);
  uint32_t bits;
  __builtin_memcpy(&bits, &ratio, sizeof(bits));
  bits = ((bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0)) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

// One block of at most 128 columns. Dividing by a power of two is multiplying by its inverse, exactly.
template <class V>
LEVIN_INLINE float quantize_block(const float* x, uint8_t* out, int n) {
  typename V::F32 largest = V::zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) largest = V::max(V::abs(V::load(x + i)), largest);
  if (i < n) largest = V::max(V::abs(V::load_n(x + i, n - i)), largest);
  const float scale = pow2_scale_of(V::reduce_max(largest));
  const typename V::F32 inverse = V::broadcast(1.0f / scale);
  for (i = 0; i + 16 <= n; i += 16) V::store_e4m3(out + i, V::mul(V::load(x + i), inverse));
  if (i < n) {
    uint8_t tail[16];
    V::store_e4m3(tail, V::mul(V::load_n(x + i, n - i), inverse));
    for (int j = i; j < n; ++j) out[j] = tail[j - i];
  }
  return scale;
}

template <class V>
void quantize_rows_fp8(const RoundRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const float* x = job.x + row * job.x_stride;
    uint8_t* out = static_cast<uint8_t*>(job.out) + row * job.out_stride;
    float* scale = job.scale + row * job.scale_stride;
    for (int64_t k = 0; k < job.k; k += 128) {
      const int64_t n = job.k - k < 128 ? job.k - k : 128;
      scale[k / 128] = quantize_block<V>(x + k, out + k, static_cast<int>(n));
    }
  }
}

// One stage of butterflies over strides of at least 16 columns.
template <class V>
LEVIN_INLINE void butterflies(float* x, int64_t d, int64_t stride) {
  for (int64_t base = 0; base < d; base += 2 * stride) {
    for (int64_t i = base; i < base + stride; i += 16) {
      const typename V::F32 a = V::load(x + i), b = V::load(x + i + stride);
      V::store(x + i, V::add(a, b));
      V::store(x + i + stride, V::sub(a, b));
    }
  }
}

// Strides 1, 2, 4 and 8 stay inside 16 columns; there 16 vectors are transposed, so that lanes are never crossed.
template <class V>
LEVIN_INLINE void short_butterflies(float* x) {
  typename V::F32 v[16];
  LEVIN_UNROLL
  for (int i = 0; i < 16; ++i) v[i] = V::load(x + 16 * i);
  V::transpose(v);
  LEVIN_UNROLL
  for (int stride = 1; stride < 16; stride *= 2) {
    LEVIN_UNROLL
    for (int i = 0; i < 16; ++i) {
      if ((i & stride) != 0) continue;
      const typename V::F32 a = v[i], b = v[i + stride];
      v[i] = V::add(a, b);
      v[i + stride] = V::sub(a, b);
    }
  }
  V::transpose(v);
  LEVIN_UNROLL
  for (int i = 0; i < 16; ++i) V::store(x + 16 * i, v[i]);
}

LEVIN_INLINE void plain_butterflies(float* x, int64_t d, int64_t last_stride) {
  for (int64_t stride = 1; stride <= last_stride; stride *= 2) {
    for (int64_t i = 0; i < d; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

// Columns first .. first+255 of a row, or for narrower rows as many rows from `row` as make 256 columns together.
template <class V>
LEVIN_INLINE void turn_square(const HadamardRows& job, int64_t row, int64_t first) {
  alignas(64) float square[256];
  const auto place = [&](int64_t i) {  // of vector i of the square; null beyond the last row
    const int64_t column = first + 16 * i, at = row + column / job.d;
    return at < job.n_rows ? job.x + at * job.x_stride + column % job.d : nullptr;
  };
  for (int64_t i = 0; i < 16; ++i) {
    const float* x = place(i);
    V::store(square + 16 * i, x != nullptr ? V::load(x) : V::zero());
  }
  short_butterflies<V>(square);
  for (int64_t i = 0; i < 16; ++i) {
    if (float* x = place(i); x != nullptr) V::store(x, V::load(square + 16 * i));
  }
}

LEVIN_INLINE void hadamard_narrow(const HadamardRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    float* x = job.x + row * job.x_stride;
    plain_butterflies(x, job.d, job.d / 2);
    for (int64_t i = 0; i < job.d; ++i) x[i] *= job.factor;
  }
}

template <class V>
void hadamard_rows(const HadamardRows& job) {
  if (job.d < 16) return hadamard_narrow(job);
  const int64_t rows_at_once = job.d < 256 ? 256 / job.d : 1;
  const typename V::F32 factor = V::broadcast(job.factor);
  for (int64_t row = 0; row < job.n_rows; ++row) {
    if (row % rows_at_once == 0) {
      for (int64_t first = 0; first < job.d; first += 256) turn_square<V>(job, row, first);
    }
    float* x = job.x + row * job.x_stride;
    for (int64_t stride = 16; stride < job.d; stride *= 2) butterflies<V>(x, job.d, stride);
    for (int64_t i = 0; i < job.d; i += 16) V::store(x + i, V::mul(V::load(x + i), factor));
  }
}

template <class V>
void combine_rows(const CombineRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const int32_t* sources = job.rows + row * job.n_terms;
    const float* weights = job.weights + row * job.weights_stride;
    for (int64_t i = 0; i < job.d; i += 16) {
      const int n = static_cast<int>(job.d - i < 16 ? job.d - i : 16);
      typename V::F32 total = V::zero();
      for (int64_t j = 0; j < job.n_terms; ++j) {
        const typename V::F32 y = V::load_n(job.y + sources[j] * job.d + i, n);
        total = V::fma(V::broadcast(weights[j]), y, total);
      }
      if (job.last != nullptr) total = V::add(total, V::load_n(job.last + row * job.last_stride + i, n));
      V::store_n(job.out + row * job.out_stride + i, total, n);
    }
  }
}

// What every set has in common; products and operands are filled in by each set.
template <class V>
MatmulKernels round_kernels() {
  MatmulKernels kernels;
  kernels.round_to_bf16 = round_rows_to_bf16<V>;
  kernels.quantize_fp8 = quantize_rows_fp8<V>;
  kernels.hadamard = hadamard_rows<V>;
  kernels.combine = combine_rows<V>;
  return kernels;
}

}  // namespace
}  // namespace levin::kernels
