#include "tensor/dtype.h"

#include "base/check.h"

namespace levin {

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kMxfp4:
    case DType::kNvfp4:
      break;
  }
  LEVIN_CHECK(false, "dtype_bytes: elements of {} are half a byte", dtype_name(dtype));
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kF8E8M0:
      return "f8_e8m0";
    case DType::kI8:
      return "i8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kMxfp4:
      return "mxfp4";
    case DType::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

}  // namespace levin
