#include "model/weight_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "model/weight_table.h"

namespace levin {
namespace {

using io::StoredDtype;
using io::StoredTensor;

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
    case StoredDtype::kI8:  // e2m1 has no NaN
    case StoredDtype::kU8:
      return true;
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
  return invalid_model(fmt::format("{}{} is {} ({}); weights must be finite", tensor.name, position_text(tensor, i),
                                   std::isnan(value) ? "NaN"
                                   : value > 0       ? "infinite"
                                                     : "minus infinite",
                                   io::dtype_name(tensor.dtype)));
}

// Of 128 x 128 blocks. Copied, because tensors in files are not aligned.
Result<std::vector<float>> read_scales(const StoredTensor& scales) {
  std::vector<float> values(scales.bytes.size() / io::dtype_bytes(scales.dtype));
  if (scales.dtype == StoredDtype::kF8_E8M0) {
    std::transform(scales.bytes.begin(), scales.bytes.end(), values.begin(),
                   [](std::byte code) { return e8m0_to_f32(static_cast<uint8_t>(code)); });
  } else {
    std::memcpy(values.data(), scales.bytes.data(), scales.bytes.size());
  }
  const auto bad = std::find_if(values.begin(), values.end(), [](float s) { return !std::isfinite(s) || s <= 0; });
  if (bad == values.end()) return values;
  return invalid_model(fmt::format("{}{} is {}; scales must be finite and above 0", scales.name,
                                   position_text(scales, bad - values.begin()), *bad));
}

// The e8m0 codes of an MXFP4 matrix. A group of zeros may have any scale and gets one that matrices take.
Result<std::vector<uint8_t>> read_group_scales(const StoredTensor& tensor, const StoredTensor& scales) {
  std::vector<uint8_t> codes(scales.bytes.size());
  std::memcpy(codes.data(), scales.bytes.data(), codes.size());
  const int64_t n_groups = scales.shape[1], row_bytes = tensor.shape[1];
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] >= kMxMinScale && codes[i] <= kMxMaxScale) continue;
    const int64_t row = static_cast<int64_t>(i) / n_groups, group = static_cast<int64_t>(i) % n_groups;
    const int64_t begin = group * kMxGroup / 2, end = std::min(row_bytes, begin + kMxGroup / 2);
    const auto pairs =
        tensor.bytes.subspan(static_cast<size_t>(row * row_bytes + begin), static_cast<size_t>(end - begin));
    const bool zeros =
        std::all_of(pairs.begin(), pairs.end(), [](std::byte b) { return (b & std::byte{0x77}) == std::byte{}; });
    if (!zeros || codes[i] == 0xFF) {
      return invalid_model(fmt::format("{}{} is {}; scales of MXFP4 groups must be from 2^{} to 2^{}", scales.name,
                                       position_text(scales, static_cast<int64_t>(i)),
                                       codes[i] == 0xFF ? "NaN" : fmt::format("2^{}", codes[i] - 127),
                                       kMxMinScale - 127, kMxMaxScale - 127));
    }
    codes[i] = kMxMinScale;
  }
  return codes;
}

// The e4m3 codes of the scales of an NVFP4 matrix, whose factor must be right as well.
Result<std::vector<uint8_t>> read_nvfp4_scales(const StoredTensor& tensor, const StoredScales& scales) {
  if (!std::isfinite(scales.factor) || scales.factor <= 0) {
    return invalid_model(
        fmt::format("{}: the scale of the whole NVFP4 matrix, or its reciprocal, is {}; it must be finite and "
                    "above 0",
                    tensor.name, scales.factor));
  }
  const StoredTensor& groups = *scales.of_blocks;
  std::vector<uint8_t> codes(groups.bytes.size());
  std::memcpy(codes.data(), groups.bytes.data(), codes.size());
  const auto bad = std::find_if(codes.begin(), codes.end(), [](uint8_t code) { return code >= 0x7F; });
  if (bad == codes.end()) return codes;
  return invalid_model(fmt::format("{}{} is {}; scales of NVFP4 groups must be finite and not negative", groups.name,
                                   position_text(groups, bad - codes.begin()), e4m3_to_f32(*bad)));
}

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values;
  for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  return values;
}

// [rows, cols] to [cols, rows], a square of 16 at a time so that both sides stay in cache.
template <class T>
void transpose(const T* from, int64_t rows, int64_t cols, T* to) {
  constexpr int64_t kSquare = 16;
  for (int64_t row = 0; row < rows; row += kSquare) {
    for (int64_t col = 0; col < cols; col += kSquare) {
      for (int64_t i = row; i < std::min(row + kSquare, rows); ++i) {
        for (int64_t j = col; j < std::min(col + kSquare, cols); ++j) to[j * rows + i] = from[i * cols + j];
      }
    }
  }
}

const DummyTensor* dummies_of(const StoredTensor& tensor) { return tensor.dummies ? &*tensor.dummies : nullptr; }

int64_t n_blocks_of(int64_t k) { return (k + kWeightBlock - 1) / kWeightBlock; }

// Of values that last no longer than the call.
MatrixForm copied(MatrixForm form) { return form == MatrixForm::kPanels ? form : MatrixForm::kRows; }

// Rows row .. row+n-1 of an FP8 matrix, whole blocks of them; scales are those of the whole matrix.
Matrix pack_rows(const StoredTensor& tensor, const std::vector<float>& scales, int64_t row, int64_t n,
                 MatrixForm form) {
  const int64_t k = tensor.shape[1];
  return keep_matrix({.data = tensor.bytes.data() + row * k,
                      .dtype = DType::kF8E4M3,
                      .n = n,
                      .k = k,
                      .scales = scales.data() + row / kWeightBlock * n_blocks_of(k)},
                     form);
}

// The same rows as columns.
Matrix pack_transposed_rows(const StoredTensor& tensor, const std::vector<float>& scales, int64_t row, int64_t n,
                            MatrixForm form) {
  const int64_t k = tensor.shape[1], n_blocks = n / kWeightBlock, k_blocks = n_blocks_of(k);
  std::vector<std::byte> codes(static_cast<size_t>(n * k));
  std::vector<float> block_scales(static_cast<size_t>(n_blocks * k_blocks));
  transpose(tensor.bytes.data() + row * k, n, k, codes.data());
  transpose(scales.data() + row / kWeightBlock * k_blocks, n_blocks, k_blocks, block_scales.data());
  return keep_matrix({.data = codes.data(), .dtype = DType::kF8E4M3, .n = k, .k = n, .scales = block_scales.data()},
                     copied(form));
}

Result<Matrix> store_mxfp4(const StoredTensor& tensor, const StoredScales& scales, MatrixForm form) {
  LEVIN_ASSIGN(const std::vector<uint8_t> codes, read_group_scales(tensor, *scales.of_blocks));
  return keep_matrix({.data = tensor.bytes.data(),
                      .dtype = DType::kMxfp4,
                      .n = tensor.shape[0],
                      .k = tensor.shape[1] * 2,
                      .group_scales = codes.data(),
                      .dummies = dummies_of(tensor)},
                     form);
}

Result<Matrix> store_nvfp4(const StoredTensor& tensor, const StoredScales& scales, MatrixForm form) {
  LEVIN_ASSIGN(const std::vector<uint8_t> codes, read_nvfp4_scales(tensor, scales));
  return keep_matrix({.data = tensor.bytes.data(),
                      .dtype = DType::kNvfp4,
                      .n = tensor.shape[0],
                      .k = tensor.shape[1] * 2,
                      .group_scales = codes.data(),
                      .factor = scales.factor,
                      .dummies = dummies_of(tensor)},
                     form);
}

Result<std::vector<float>> dequantise_nvfp4(const StoredTensor& tensor, const StoredScales& scales) {
  LEVIN_ASSIGN(const std::vector<uint8_t> codes, read_nvfp4_scales(tensor, scales));
  std::vector<float> values(tensor.bytes.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto pair = std::to_integer<uint32_t>(tensor.bytes[i / 2]);
    const float scale = e4m3_to_f32(codes[i / static_cast<size_t>(kNvGroup)]) * scales.factor;
    values[i] = e2m1_to_f32(i % 2 == 0 ? pair & 0xF : pair >> 4) * scale;
  }
  return values;
}

}  // namespace

bool takes_fp8_input(StoredDtype dtype) { return dtype == StoredDtype::kF8_E4M3 || dtype == StoredDtype::kI8; }

ops::Operand input_operand(const StoredTensor& tensor, const Numerics& numerics) {
  return takes_fp8_input(tensor.dtype) ? numerics.fp8_input : numerics.input;
}

Result<std::vector<float>> dequantise(const StoredTensor& tensor, const StoredScales* scales) {
  if (tensor.dtype == StoredDtype::kU8) return dequantise_nvfp4(tensor, *scales);
  LEVIN_TRY(check_finite(tensor));
  std::vector<float> values(tensor.bytes.size() / io::dtype_bytes(tensor.dtype));
  if (scales == nullptr) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = element_as_f32(tensor, static_cast<int64_t>(i));
    return values;
  }
  const int64_t n = tensor.shape[0], k = tensor.shape[1];
  LEVIN_ASSIGN(const std::vector<float> s, read_scales(*scales->of_blocks));
  const std::array<float, 256> decoded = e4m3_values();
  const int64_t side = scales->block, n_k_blocks = scales->of_blocks->shape[1];
  for (int64_t row = 0; row < n; ++row) {
    const std::byte* codes = tensor.bytes.data() + row * k;
    float* out = values.data() + row * k;
    for (int64_t block = 0; block < n_k_blocks; ++block) {
      const float scale = s[static_cast<size_t>(row / side * n_k_blocks + block)];
      const int64_t end = std::min(k, (block + 1) * side);
      for (int64_t col = block * side; col < end; ++col) out[col] = decoded[static_cast<size_t>(codes[col])] * scale;
    }
  }
  return values;
}

Result<Matrix> store_matrix(const StoredTensor& tensor, const StoredScales* scales, MatrixForm form) {
  if (tensor.dtype == StoredDtype::kI8) return store_mxfp4(tensor, *scales, form);
  if (tensor.dtype == StoredDtype::kU8) return store_nvfp4(tensor, *scales, form);
  if (scales != nullptr && scales->block != kWeightBlock) {
    LEVIN_ASSIGN(const std::vector<float> values, dequantise(tensor, scales));
    return pack_matrix_exactly(values.data(), tensor.shape[0], tensor.shape[1], copied(form));
  }
  LEVIN_TRY(check_finite(tensor));
  std::vector<float> scale_values;
  if (scales != nullptr) {
    LEVIN_ASSIGN(scale_values, read_scales(*scales->of_blocks));
  }
  return keep_matrix({.data = tensor.bytes.data(),
                      .dtype = matrix_dtype(tensor.dtype),
                      .n = tensor.shape[0],
                      .k = tensor.shape[1],
                      .scales = scales != nullptr ? scale_values.data() : nullptr,
                      .dummies = dummies_of(tensor)},
                     form);
}

Result<Vector> store_vector(const StoredTensor& tensor) {
  LEVIN_TRY(check_finite(tensor));
  const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0], n = tensor.shape.back();
  Vector out;
  out.storage = Buffer::for_tensor(DType::kF32, {rows * n});
  float* values = reinterpret_cast<float*>(out.storage.data());
  for (int64_t i = 0; i < rows * n; ++i) values[i] = element_as_f32(tensor, i);
  out.view = tensor.shape.size() == 1 ? View::of(values, {n}) : View::of(values, {rows, n});
  return out;
}

Status store_row_groups(const StoredTensor& tensor, const StoredScales* scales, int64_t n_groups, MatrixForm form,
                        std::vector<Matrix>* groups) {
  const int64_t n = tensor.shape[0] / n_groups, k = tensor.shape[1];
  if (scales != nullptr && scales->block == kWeightBlock && n % kWeightBlock == 0) {
    LEVIN_TRY(check_finite(tensor));
    LEVIN_ASSIGN(const std::vector<float> block_scales, read_scales(*scales->of_blocks));
    for (int64_t g = 0; g < n_groups; ++g) groups->push_back(pack_rows(tensor, block_scales, g * n, n, form));
    return {};
  }
  LEVIN_ASSIGN(const std::vector<float> values, dequantise(tensor, scales));
  for (int64_t g = 0; g < n_groups; ++g) groups->push_back(pack_matrix_exactly(values.data() + g * n * k, n, k, form));
  return {};
}

Status store_expert_ids(const StoredTensor& tensor, int64_t n_experts, MoeWeights* weights) {
  const int64_t n_vocab = tensor.shape[0], n_active = tensor.shape[1];
  weights->hash_storage = Buffer::for_tensor(DType::kI32, {n_vocab, n_active});
  weights->hash_experts = View(weights->hash_storage.data(), DType::kI32, {n_vocab, n_active});
  auto* all_ids = reinterpret_cast<int32_t*>(weights->hash_storage.data());
  for (int64_t token = 0; token < n_vocab; ++token) {
    int32_t* ids = all_ids + token * n_active;
    for (int64_t a = 0; a < n_active; ++a) {
      const auto id = element<int64_t>(tensor, token * n_active + a);
      if (id < 0 || id >= n_experts) {
        return invalid_model(fmt::format("{}{} is {}; expert ids are 0 to {}", tensor.name,
                                         position_text(tensor, token * n_active + a), id, n_experts - 1));
      }
      ids[a] = static_cast<int32_t>(id);
    }
    std::sort(ids, ids + n_active);
    if (const int32_t* twice = std::adjacent_find(ids, ids + n_active); twice != ids + n_active) {
      return invalid_model(fmt::format("{}: row {} names expert {} twice", tensor.name, token, *twice));
    }
  }
  return {};
}

Status store_up_projection(const StoredTensor& tensor, const StoredScales* scales, const UpProjectionShape& shape,
                           MatrixForm form, const UpProjectionParts& parts) {
  if (scales != nullptr && shape.d_nope % kWeightBlock == 0 && shape.d_value % kWeightBlock == 0) {
    LEVIN_TRY(check_finite(tensor));
    LEVIN_ASSIGN(const std::vector<float> block_scales, read_scales(*scales->of_blocks));
    for (int64_t head = 0; head < shape.n_heads; ++head) {
      const int64_t row = head * (shape.d_nope + shape.d_value);
      parts.k_up->push_back(pack_transposed_rows(tensor, block_scales, row, shape.d_nope, form));
      parts.v_up->push_back(pack_rows(tensor, block_scales, row + shape.d_nope, shape.d_value, form));
    }
    return {};
  }
  LEVIN_ASSIGN(const std::vector<float> values, dequantise(tensor, scales));
  const int64_t d_latent = shape.d_latent;
  std::vector<float> transposed(static_cast<size_t>(d_latent * shape.d_nope));
  for (int64_t head = 0; head < shape.n_heads; ++head) {
    const float* keys = values.data() + head * (shape.d_nope + shape.d_value) * d_latent;  // [Dn, Rk], then [Dv, Rk]
    transpose(keys, shape.d_nope, d_latent, transposed.data());
    parts.k_up->push_back(pack_matrix_exactly(transposed.data(), d_latent, shape.d_nope, form));
    parts.v_up->push_back(pack_matrix_exactly(keys + shape.d_nope * d_latent, shape.d_value, d_latent, form));
  }
  return {};
}

Result<Table> store_table(const StoredTensor& tensor, MatrixForm form) {
  LEVIN_TRY(check_finite(tensor));
  const int64_t n = tensor.shape[0], d = tensor.shape[1];
  const DType dtype = tensor.dtype == StoredDtype::kBF16 ? DType::kBF16 : DType::kF32;
  const bool in_place = form == MatrixForm::kRowsInPlace && tensor.dtype != StoredDtype::kF16;
  Table table;
  if (tensor.dummies) {
    table.storage = Buffer::unmade(*tensor.dummies, n * d * dtype_bytes(dtype));
  } else if (in_place) {
    table.storage = Buffer::borrowed(tensor.bytes.data(), std::ssize(tensor.bytes));
  } else {
    table.storage = Buffer::for_tensor(dtype, {n, d});
  }
  table.view = View(table.storage.data(), dtype, {n, d});
  if (in_place) return table;
  if (tensor.dtype == StoredDtype::kF16) {
    auto* values = reinterpret_cast<float*>(table.storage.data());
    for (int64_t i = 0; i < n * d; ++i) values[i] = element_as_f32(tensor, i);
  } else {
    std::memcpy(table.storage.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return table;
}

}  // namespace levin
