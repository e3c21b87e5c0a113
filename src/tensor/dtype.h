// Element types of tensors in memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace levin {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,
  kF8E8M0,
  kI8,
  kI32,
  kI64,
  kMxfp4,  // e2m1 with an e8m0 scale to 32 columns of a row; of matrices alone (tensor/matrix.h)
  kNvfp4,  // e2m1 with an e4m3 scale to 16 columns of a row and an f32 scale to the matrix; likewise
};

int64_t dtype_bytes(DType dtype);          // of one element; not for kMxfp4 and kNvfp4, which pack two into a byte
std::string_view dtype_name(DType dtype);  // "f32", "bf16", "f16", "f8_e4m3", ...

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kF8E4M3;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

}  // namespace levin
