// The row copies between the ops of a model, small copies from and to the host, and a read of memory for measurements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// out[i,:] = x[rows[i],:], f32. Rows null: i / repeat, so that each row of x comes `repeat` times; a negative row leaves
// out[i,:] as it is. With out a slice of wider rows two calls put rows side by side.
struct CopyRows {
  const float* x = nullptr;  // rows x_ld apart
  int64_t x_ld = 0;
  const int32_t* rows = nullptr;  // [N], may be null
  int64_t repeat = 1;
  float* out = nullptr;  // [N, D], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;  // N
  int64_t d = 0;
};
void copy_rows(const CopyRows& a, StreamHandle stream);

// Bytes between the device and pinned memory of the host, few enough that a kernel of the stream has copied them before the copy
// engine would have begun.
struct CopyWords {
  const std::byte* from = nullptr;  // 4-byte aligned
  std::byte* to = nullptr;          // likewise
  int64_t n_bytes = 0;              // a multiple of 4
};
constexpr int64_t kMostCopiedWordsBytes = int64_t{256} << 10;  // above it the copy engine is as fast
void copy_words(const CopyWords& a, StreamHandle stream);

// x[t,:] = x[t,:] * factor * scale[t,:], in that order; without a scale x * factor. A factor of -1 negates exactly.
struct ScaleRows {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  float factor = 1;
  const float* scale = nullptr;  // [T, D], dense; may be null
  float* out = nullptr;          // [T, D], rows out_ld apart; may be x
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};
void scale_rows(const ScaleRows& a, StreamHandle stream);

// Reads memory, for measurements of how fast that is.
struct ReadBytes {
  const std::byte* from = nullptr;  // 16-byte aligned
  int64_t n_bytes = 0;              // a multiple of 16
  int32_t* unused = nullptr;        // written if the bytes have one improbable sum, so that they are read
};
void read_bytes(const ReadBytes& a, StreamHandle stream);

}  // namespace levin::cuda::plain
