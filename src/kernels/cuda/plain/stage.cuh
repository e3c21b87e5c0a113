// Reading many values of one type at once: a thread asks for all of them before it looks at the first, so that it waits for
// memory once. What a type is, is decided before the loads, not between them.
#pragma once

#include <cstdint>

#include "base/numbers.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(uint16_t bf16) { return bf16_to_f32(bf16); }
__device__ __forceinline__ float to_f32(uint8_t e4m3) { return e4m3_to_f32(e4m3); }

// use(i, value i) for i < n, value i being what stands at place(i) of `values`; place(i) may be asked for any i < kMost.
template <int kMost, class T, class Place, class Use>
__device__ __forceinline__ void read_many(const T* values, int n, const Place& place, const Use& use) {
  T raw[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) raw[i] = values[place(i < n ? i : 0)];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < n) use(i, to_f32(raw[i]));
  }
}

// The same for f32, bf16 or e4m3. n is at least 1.
template <int kMost, class Place, class Use>
__device__ __forceinline__ void read_many(const void* values, DType dtype, int n, const Place& place, const Use& use) {
  if (dtype == DType::kF32) return read_many<kMost>(static_cast<const float*>(values), n, place, use);
  if (dtype == DType::kBF16) return read_many<kMost>(static_cast<const uint16_t*>(values), n, place, use);
  read_many<kMost>(static_cast<const uint8_t*>(values), n, place, use);
}

}  // namespace levin::cuda::plain
