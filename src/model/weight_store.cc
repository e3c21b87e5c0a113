#include "model/weight_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"

namespace levin {
namespace {

using io::StoredDtype;
using io::StoredTensor;

Error invalid(std::string message) { return {ErrorKind::kModelInvalid, std::move(message)}; }

template <class T>
T element(const StoredTensor& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

DType matrix_dtype(StoredDtype dtype) {
  switch (dtype) {
    case StoredDtype::kF32:
      return DType::kF32;
    case StoredDtype::kBF16:
      return DType::kBF16;
    case StoredDtype::kF16:
      return DType::kF16;
    case StoredDtype::kF8_E4M3:
      return DType::kF8E4M3;
    default:
      LEVIN_CHECK(false, "weight stored as {}", io::dtype_name(dtype));
  }
  return DType::kF32;
}

float element_as_f32(const StoredTensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case StoredDtype::kF32:
      return element<float>(tensor, i);
    case StoredDtype::kBF16:
      return bf16_to_f32(element<uint16_t>(tensor, i));
    case StoredDtype::kF16:
      return f16_to_f32(element<uint16_t>(tensor, i));
    default:
      return e4m3_to_f32(element<uint8_t>(tensor, i));
  }
}

// Whether any element has all bits of `mask` set: the exponent of infinities and NaNs, or an e4m3 NaN without its sign.
// Without a branch in the loop, so that it runs at the speed of memory.
template <class T>
bool any_has_bits(const StoredTensor& tensor, T mask) {
  const size_t n = tensor.bytes.size() / sizeof(T);
  const std::byte* data = tensor.bytes.data();
  bool found = false;
  for (size_t i = 0; i < n; ++i) {
    T bits;
    std::memcpy(&bits, data + i * sizeof(T), sizeof(T));
    found |= (bits & mask) == mask;
  }
  return found;
}

bool all_finite(const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case StoredDtype::kF32:
      return !any_has_bits<uint32_t>(tensor, 0x7F800000u);
    case StoredDtype::kBF16:
      return !any_has_bits<uint16_t>(tensor, 0x7F80u);
    case StoredDtype::kF16:
      return !any_has_bits<uint16_t>(tensor, 0x7C00u);
    default:
      return !any_has_bits<uint8_t>(tensor, 0x7Fu);
  }
}

std::string position_text(const StoredTensor& tensor, int64_t i) {
  if (tensor.shape.size() < 2) return fmt::format("[{}]", i);
  return fmt::format("[{}, {}]", i / tensor.shape[1], i % tensor.shape[1]);
}

Status check_finite(const StoredTensor& tensor) {
  if (all_finite(tensor)) return {};
  int64_t i = 0;
  while (std::isfinite(element_as_f32(tensor, i))) ++i;
  const float value = element_as_f32(tensor, i);
  return invalid(fmt::format("{}{} is {} ({}); weights must be finite", tensor.name, position_text(tensor, i),
                             std::isnan(value) ? "NaN"
                             : value > 0       ? "infinite"
                                               : "minus infinite",
                             io::dtype_name(tensor.dtype)));
}

// Copied, because tensors in files are not aligned.
Result<std::vector<float>> read_scales(const StoredTensor& scales) {
  std::vector<float> values(scales.bytes.size() / sizeof(float));
  std::memcpy(values.data(), scales.bytes.data(), scales.bytes.size());
  const auto bad = std::find_if(values.begin(), values.end(), [](float s) { return !std::isfinite(s) || s <= 0; });
  if (bad == values.end()) return values;
  return invalid(fmt::format("{}{} is {}; scales must be finite and above 0", scales.name,
                             position_text(scales, bad - values.begin()), *bad));
}

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values;
  for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  return values;
}

// Row-major f32 values of a matrix, scales applied.
Result<std::vector<float>> dequantise(const StoredTensor& tensor, const StoredTensor* scales) {
  const int64_t n = tensor.shape[0], k = tensor.shape[1];
  std::vector<float> values(static_cast<size_t>(n * k));
  if (scales == nullptr) {
    for (int64_t i = 0; i < n * k; ++i) values[static_cast<size_t>(i)] = element_as_f32(tensor, i);
    return values;
  }
  LEVIN_ASSIGN(const std::vector<float> s, read_scales(*scales));
  const std::array<float, 256> decoded = e4m3_values();
  const int64_t n_k_blocks = scales->shape[1];
  for (int64_t row = 0; row < n; ++row) {
    const std::byte* codes = tensor.bytes.data() + row * k;
    float* out = values.data() + row * k;
    for (int64_t block = 0; block < n_k_blocks; ++block) {
      const float scale = s[static_cast<size_t>(row / kWeightBlock * n_k_blocks + block)];
      const int64_t end = std::min(k, (block + 1) * kWeightBlock);
      for (int64_t col = block * kWeightBlock; col < end; ++col)
        out[col] = decoded[static_cast<size_t>(codes[col])] * scale;
    }
  }
  return values;
}

// [rows, cols] to [cols, rows], a square of 16 at a time so that both sides stay in cache.
void transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  constexpr int64_t kSquare = 16;
  for (int64_t row = 0; row < rows; row += kSquare) {
    for (int64_t col = 0; col < cols; col += kSquare) {
      for (int64_t i = row; i < std::min(row + kSquare, rows); ++i) {
        for (int64_t j = col; j < std::min(col + kSquare, cols); ++j) to[j * rows + i] = from[i * cols + j];
      }
    }
  }
}

}  // namespace

ops::Operand input_operand(const StoredTensor& tensor, const Numerics& numerics) {
  return tensor.dtype == StoredDtype::kF8_E4M3 ? numerics.fp8_input : numerics.input;
}

Result<Matrix> store_matrix(const StoredTensor& tensor, const StoredTensor* scales) {
  LEVIN_TRY(check_finite(tensor));
  std::vector<float> scale_values;
  if (scales != nullptr) {
    LEVIN_ASSIGN(scale_values, read_scales(*scales));
  }
  return pack_matrix({.data = tensor.bytes.data(),
                      .dtype = matrix_dtype(tensor.dtype),
                      .n = tensor.shape[0],
                      .k = tensor.shape[1],
                      .scales = scales != nullptr ? scale_values.data() : nullptr});
}

Result<Vector> store_vector(const StoredTensor& tensor) {
  LEVIN_TRY(check_finite(tensor));
  const int64_t n = tensor.shape[0];
  Vector out;
  out.storage = Buffer::for_tensor(DType::kF32, {n});
  out.view = View(out.storage.data(), DType::kF32, {n});
  float* values = out.view.data<float>();
  for (int64_t i = 0; i < n; ++i) values[i] = element_as_f32(tensor, i);
  return out;
}

Status store_up_projection(const StoredTensor& tensor, const StoredTensor* scales, const UpProjectionShape& shape,
                           AttentionWeights* weights) {
  LEVIN_TRY(check_finite(tensor));
  LEVIN_ASSIGN(const std::vector<float> values, dequantise(tensor, scales));
  const int64_t d_latent = shape.d_latent;
  std::vector<float> transposed(static_cast<size_t>(d_latent * shape.d_nope));
  for (int64_t head = 0; head < shape.n_heads; ++head) {
    const float* keys = values.data() + head * (shape.d_nope + shape.d_value) * d_latent;  // [Dn, Rk], then [Dv, Rk]
    transpose(keys, shape.d_nope, d_latent, transposed.data());
    weights->k_up.push_back(pack_matrix_exactly(transposed.data(), d_latent, shape.d_nope));
    weights->v_up.push_back(pack_matrix_exactly(keys + shape.d_nope * d_latent, shape.d_value, d_latent));
  }
  return {};
}

Status store_embedding(const StoredTensor& tensor, ModelWeights* weights) {
  LEVIN_TRY(check_finite(tensor));
  const int64_t n = tensor.shape[0], d = tensor.shape[1];
  const DType dtype = tensor.dtype == StoredDtype::kBF16 ? DType::kBF16 : DType::kF32;
  weights->embed_storage = Buffer::for_tensor(dtype, {n, d});
  weights->embed = View(weights->embed_storage.data(), dtype, {n, d});
  if (tensor.dtype == StoredDtype::kF16) {
    float* values = weights->embed.data<float>();
    for (int64_t i = 0; i < n * d; ++i) values[i] = element_as_f32(tensor, i);
  } else {
    std::memcpy(weights->embed_storage.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return {};
}

}  // namespace levin
