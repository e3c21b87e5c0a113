#include "tensor/matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"

namespace levin {
namespace {

template <class T>
T load_unaligned(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Panel [K][16] of f32.
template <class Get>
void pack_single(float* out, int64_t n, int64_t k, const Get& get) {
  for (int64_t row = 0; row < n; ++row) {
    float* panel = out + row / kPanel * k * kPanel + row % kPanel;
    for (int64_t col = 0; col < k; ++col) panel[col * kPanel] = get(row * k + col);
  }
}

// Panel [ceil(K/2)][16][2] of T.
template <class T>
void pack_pairs(T* out, int64_t n, int64_t k, const void* source) {
  const int64_t panel_elements = (k + 1) / 2 * 2 * kPanel;
  for (int64_t row = 0; row < n; ++row) {
    T* panel = out + row / kPanel * panel_elements + row % kPanel * 2;
    for (int64_t col = 0; col < k; ++col) {
      panel[col / 2 * 2 * kPanel + col % 2] = load_unaligned<T>(source, row * k + col);
    }
  }
}

}  // namespace

int64_t Matrix::panel_bytes() const {
  const int64_t k_stored = dtype_ == DType::kF32 ? k_ : (k_ + 1) / 2 * 2;
  return k_stored * kPanel * dtype_bytes(dtype_);
}

float Matrix::stored(int64_t n, int64_t k) const {
  const std::byte* p = panel(n / kPanel);
  const int64_t lane = n % kPanel;
  if (dtype_ == DType::kF32) return load_unaligned<float>(p, k * kPanel + lane);
  const int64_t i = k / 2 * 2 * kPanel + lane * 2 + k % 2;
  if (dtype_ == DType::kBF16) return bf16_to_f32(load_unaligned<uint16_t>(p, i));
  return e4m3_to_f32(load_unaligned<uint8_t>(p, i));
}

float Matrix::scale(int64_t n, int64_t k) const {
  const float* scales = panel_scales(n / kPanel);
  return scales == nullptr ? 1.0f : scales[k / kWeightBlock];
}

Matrix pack_matrix(const RowMajorWeights& source) {
  Matrix m;
  m.n_ = source.n;
  m.k_ = source.k;
  m.dtype_ = source.dtype == DType::kF16 ? DType::kF32 : source.dtype;
  m.data_ = Buffer(m.n_panels() * m.panel_bytes());
  std::byte* out = m.data_.data();
  switch (source.dtype) {
    case DType::kF32:
      pack_single(reinterpret_cast<float*>(out), m.n_, m.k_,
                  [&](int64_t i) { return load_unaligned<float>(source.data, i); });
      break;
    case DType::kF16:
      pack_single(reinterpret_cast<float*>(out), m.n_, m.k_,
                  [&](int64_t i) { return f16_to_f32(load_unaligned<uint16_t>(source.data, i)); });
      break;
    case DType::kBF16: pack_pairs(reinterpret_cast<uint16_t*>(out), m.n_, m.k_, source.data); break;
    case DType::kF8E4M3: pack_pairs(reinterpret_cast<uint8_t*>(out), m.n_, m.k_, source.data); break;
    default: LEVIN_CHECK(false, "pack_matrix: dtype {}", dtype_name(source.dtype));
  }
  if (source.scales != nullptr) {
    const int64_t n_scales = (m.n_ + kWeightBlock - 1) / kWeightBlock * m.n_k_blocks();
    m.scales_ = Buffer(n_scales * 4);
    std::memcpy(m.scales_.data(), source.scales, static_cast<size_t>(n_scales) * 4);
  }
  return m;
}

Matrix pack_matrix_exactly(const float* values, int64_t n, int64_t k) {
  const bool exact = std::all_of(values, values + n * k, [](float v) { return round_to_bf16(v) == v; });
  if (!exact) return pack_matrix({.data = values, .dtype = DType::kF32, .n = n, .k = k});
  std::vector<uint16_t> bf16(static_cast<size_t>(n * k));
  std::transform(values, values + n * k, bf16.begin(), f32_to_bf16);
  return pack_matrix({.data = bf16.data(), .dtype = DType::kBF16, .n = n, .k = k});
}

}  // namespace levin
