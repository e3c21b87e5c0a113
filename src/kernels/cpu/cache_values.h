// Cached values as f32, exactly, one at a time: what the plain kernels read.
#pragma once

#include <cstring>

#include "base/numbers.h"
#include "tensor/dtype.h"
#include "tensor/row_formats.h"

namespace levin::kernels {

template <class T>
T load_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Value i of a cached latent row: its latent part, then its rotated part.
inline float latent_value(const LatentFormat& f, const std::byte* row, int64_t i) {
  const bool rope = i >= f.d_latent;
  const std::byte* part = rope ? row + f.rope_offset : row;
  const int64_t at = rope ? i - f.d_latent : i;
  if (f.dtype == CacheDType::kF32 || (rope && f.rope_is_f32())) return load_as<float>(part + 4 * at);
  if (f.dtype == CacheDType::kBF16 || rope) return bf16_to_f32(load_as<uint16_t>(part + 2 * at));
  return e4m3_to_f32(load_as<uint8_t>(part + at)) * load_as<float>(row + f.scale_offset + 4 * (at / f.scale_columns));
}

// Value i of key `row` of a page, before its scale.
inline float index_key_value(const IndexKeyFormat& f, const std::byte* page, int64_t row, int64_t i) {
  const std::byte* key = page + row * f.key_bytes;
  switch (f.dtype) {
    case CacheDType::kF32:
      return load_as<float>(key + 4 * i);
    case CacheDType::kBF16:
      return bf16_to_f32(load_as<uint16_t>(key + 2 * i));
    case CacheDType::kFp8:
      return e4m3_to_f32(load_as<uint8_t>(key + i));
  }
  return 0;
}

inline float index_key_scale(const IndexKeyFormat& f, const std::byte* page, int64_t row) {
  return f.dtype == CacheDType::kFp8 ? load_as<float>(page + f.scale_offset + 4 * row) : 1.0f;
}

// Element i of a query.
inline float query_value(const void* q, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(q)[i];
  if (dtype == DType::kBF16) return bf16_to_f32(static_cast<const uint16_t*>(q)[i]);
  return e4m3_to_f32(static_cast<const uint8_t*>(q)[i]);
}

}  // namespace levin::kernels
