#include "tensor/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
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

int64_t panel_bytes_of(DType dtype, int64_t k) {
  if (is_fp4(dtype)) return n_fp4_groups(dtype, k) * kPanel + (k + kMxWord - 1) / kMxWord * kPanel * 4;
  const int64_t together = dtype == DType::kF32 ? 1 : dtype == DType::kBF16 ? 2 : 4;  // k
  const int64_t k_stored = (k + together - 1) / together * together;
  return k_stored * kPanel * dtype_bytes(dtype);
}

int64_t bf16_place(int64_t k, int64_t lane) { return 2 * (k / 2 * 2 * kPanel + lane * 2 + k % 2); }  // in bytes

int64_t n_scales_of(int64_t n, int64_t k) {
  return (n + kWeightBlock - 1) / kWeightBlock * ((k + kWeightBlock - 1) / kWeightBlock);
}

constexpr float kLargestE4m3 = 448;

// Columns of all 16 rows of a panel that are read before the next: 16 streams of a few cache lines each stay in the
// nearest cache.
constexpr int64_t kColumnsAtOnce = 256;

// Panel [K][16] of f32. get(i) is source element i.
template <class Get>
void pack_single(float* out, int64_t n, int64_t k, const Get& get) {
  for (int64_t first = 0; first < n; first += kPanel, out += k * kPanel) {
    const int64_t n_rows = std::min(kPanel, n - first);
    for (int64_t begin = 0; begin < k; begin += kColumnsAtOnce) {
      const int64_t end = std::min(begin + kColumnsAtOnce, k);
      for (int64_t row = 0; row < n_rows; ++row) {
        for (int64_t col = begin; col < end; ++col) out[col * kPanel + row] = get((first + row) * k + col);
      }
    }
  }
}

// Panels of pairs of k, each moved as one integer; place(k, lane) is where it goes, in bytes.
template <class T, class Pair, class Place>
void pack_pairs(std::byte* out, int64_t panel_bytes, int64_t n, int64_t k, const void* source, const Place& place) {
  static_assert(sizeof(Pair) == 2 * sizeof(T));
  const std::byte* data = static_cast<const std::byte*>(source);
  for (int64_t first = 0; first < n; first += kPanel, out += panel_bytes) {
    const int64_t n_rows = std::min(kPanel, n - first);
    for (int64_t begin = 0; begin < k / 2; begin += kColumnsAtOnce) {
      const int64_t end = std::min(begin + kColumnsAtOnce, k / 2);
      for (int64_t row = 0; row < n_rows; ++row) {
        const std::byte* from = data + (first + row) * k * static_cast<int64_t>(sizeof(T));
        for (int64_t pair = begin; pair < end; ++pair) {
          std::memcpy(out + place(2 * pair, row), from + pair * static_cast<int64_t>(sizeof(Pair)), sizeof(Pair));
        }
      }
    }
    for (int64_t row = 0; k % 2 != 0 && row < n_rows; ++row) {
      std::memcpy(out + place(k - 1, row), data + ((first + row) * k + k - 1) * static_cast<int64_t>(sizeof(T)),
                  sizeof(T));
    }
  }
}

// The codes of up to four bytes, each a pair of columns, as the word that kernels read.
uint32_t mx_word(const std::byte* pairs, int64_t n_bytes) {
  uint32_t word = 0;
  for (int64_t i = 0; i < n_bytes; ++i) {
    const auto pair = std::to_integer<uint32_t>(pairs[i]);
    word |= (pair & 0xF) << (4 * i) | (pair >> 4) << (16 + 4 * i);
  }
  return word;
}

constexpr uint8_t kE4m3One = 0x38;

void check_group_scale(DType dtype, uint8_t scale, int64_t n, int64_t group) {
  if (dtype == DType::kMxfp4) {
    const bool normal = scale >= kMxMinScale && scale <= kMxMaxScale;
    LEVIN_CHECK(normal, "pack_matrix: scale [{}, {}] is 2^{}", n, group, scale - 127);
  } else {
    LEVIN_CHECK(scale < 0x7F, "pack_matrix: scale [{}, {}] is {}", n, group, e4m3_to_f32(scale));
  }
}

// An nvfp4 group with a scale of zero becomes one of zeros with a scale of one, so that kernels may add exponents.
void pack_groups(std::byte* out, const RowMajorWeights& source) {
  const DType dtype = source.dtype;
  const int64_t n_groups = n_fp4_groups(dtype, source.k), row_bytes = source.k / 2;
  const int64_t panel = panel_bytes_of(dtype, source.k);
  const uint8_t neutral = dtype == DType::kNvfp4 ? kE4m3One : kMxMinScale;
  for (int64_t n = 0; n < (source.n + kPanel - 1) / kPanel * kPanel; ++n) {
    std::byte* to = out + n / kPanel * panel;
    const int64_t lane = n % kPanel;
    const uint8_t* scales = source.group_scales + n * n_groups;
    const auto is_zero = [&](int64_t k) { return dtype == DType::kNvfp4 && scales[k / kNvGroup] == 0; };
    for (int64_t group = 0; group < n_groups; ++group) {
      const bool own = n < source.n && !is_zero(group * fp4_group(dtype));
      if (own) check_group_scale(dtype, scales[group], n, group);
      to[fp4_place(dtype, group * fp4_group(dtype), lane).scale] = std::byte{own ? scales[group] : neutral};
    }
    const auto* row = static_cast<const std::byte*>(source.data) + n * row_bytes;
    for (int64_t k = 0; k < source.k && n < source.n; k += kMxWord) {
      const uint32_t word = is_zero(k) ? 0 : mx_word(row + k / 2, std::min(kMxWord / 2, row_bytes - k / 2));
      std::memcpy(to + fp4_place(dtype, k, lane).word, &word, sizeof(word));
    }
  }
}

// One block of w, from row n and column k on, as e4m3 into the panels at `out`. Returns its scale.
float round_block_to_e4m3(const Matrix& w, int64_t n, int64_t k, std::byte* out, int64_t panel_bytes) {
  const int64_t n_end = std::min(w.n(), n + kWeightBlock), k_end = std::min(w.k(), k + kWeightBlock);
  float values[kWeightBlock * kWeightBlock], largest = 0;
  for (int64_t row = n; row < n_end; ++row) {
    for (int64_t col = k; col < k_end; ++col) {
      const float value = w.stored(row, col);
      values[(row - n) * kWeightBlock + col - k] = value;
      largest = std::max(largest, std::fabs(value));
    }
  }
  // not below the normal numbers: there a quotient may be infinite, or 0 / 0
  const float scale = std::max(largest / kLargestE4m3, std::numeric_limits<float>::min());
  for (int64_t row = n; row < n_end; ++row) {
    std::byte* panel = out + row / kPanel * panel_bytes;
    for (int64_t col = k; col < k_end; ++col) {
      const float value = values[(row - n) * kWeightBlock + col - k];
      panel[e4m3_place(col, row % kPanel)] = std::byte{f32_to_e4m3(value / scale)};
    }
  }
  return scale;
}

}  // namespace

int64_t Matrix::panel_bytes() const { return panel_bytes_of(dtype_, k_); }

const std::byte* Matrix::panel(int64_t i) const {
  LEVIN_CHECK(device() == Device::kCpu, "Matrix::panel: [{}, {}] lies on a device, which has its own layout", n_, k_);
  return data_.data() + i * panel_bytes();
}

int64_t packed_matrix_bytes(DType dtype, int64_t n, int64_t k, bool has_scales) {
  return (n + kPanel - 1) / kPanel * panel_bytes_of(dtype, k) + (has_scales ? n_scales_of(n, k) * 4 : 0);
}

float Matrix::stored(int64_t n, int64_t k) const {
  const std::byte* p = panel(n / kPanel);
  const int64_t lane = n % kPanel;
  if (dtype_ == DType::kF32) return load_unaligned<float>(p, k * kPanel + lane);
  if (is_fp4(dtype_)) {
    const Fp4Place place = fp4_place(dtype_, k, lane);
    return e2m1_to_f32(load_unaligned<uint32_t>(p + place.word, 0) >> place.bit & 0xF);
  }
  if (dtype_ == DType::kBF16) return bf16_to_f32(load_unaligned<uint16_t>(p + bf16_place(k, lane), 0));
  return e4m3_to_f32(load_unaligned<uint8_t>(p + e4m3_place(k, lane), 0));
}

float Matrix::scale(int64_t n, int64_t k) const {
  if (is_fp4(dtype_)) {
    const auto code = load_unaligned<uint8_t>(panel(n / kPanel) + fp4_place(dtype_, k, n % kPanel).scale, 0);
    return dtype_ == DType::kNvfp4 ? e4m3_to_f32(code) * factor_ : e8m0_to_f32(code);
  }
  const float* scales = panel_scales(n / kPanel);
  return scales == nullptr ? 1.0f : scales[k / kWeightBlock];
}

Matrix matrix_on_device(DeviceMatrix&& parts) {
  LEVIN_CHECK(parts.data.device() == Device::kCuda, "matrix_on_device: [{}, {}] lies on the host", parts.n, parts.k);
  Matrix m;
  m.dtype_ = parts.dtype;
  m.n_ = parts.n;
  m.k_ = parts.k;
  m.has_wide_scales_ = parts.has_wide_scales;
  m.factor_ = parts.factor;
  m.data_ = std::move(parts.data);
  m.scales_ = std::move(parts.scales);
  return m;
}

bool can_be_joined(std::span<const Matrix* const> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Matrix& w = *parts[i];
    const bool ends_block = i + 1 == parts.size() || w.n() % kWeightBlock == 0;
    if (w.dtype() != DType::kF8E4M3 || !w.has_scales() || w.k() != parts[0]->k() || !ends_block) return false;
  }
  return !parts.empty();
}

Matrix joined_on_device(std::span<const Matrix* const> parts) {
  if (!can_be_joined(parts) || parts[0]->device() != Device::kCuda) return {};
  int64_t n = 0, data_bytes = 0, scales_bytes = 0;
  for (const Matrix* w : parts) {
    if (w->data().data() != parts[0]->data().data() + data_bytes ||
        w->scales().data() != parts[0]->scales().data() + scales_bytes)
      return {};
    n += w->n(), data_bytes += w->data().n_bytes(), scales_bytes += w->scales().n_bytes();
  }
  return matrix_on_device({.dtype = parts[0]->dtype(),
                           .n = n,
                           .k = parts[0]->k(),
                           .data = Buffer::borrowed(parts[0]->data().data(), data_bytes, Device::kCuda),
                           .scales = Buffer::borrowed(parts[0]->scales().data(), scales_bytes, Device::kCuda)});
}

Matrix pack_matrix(const RowMajorWeights& source) {
  Matrix m;
  m.n_ = source.n;
  m.k_ = source.k;
  m.dtype_ = source.dtype == DType::kF16 ? DType::kF32 : source.dtype;
  m.factor_ = source.factor;
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
    case DType::kBF16:
      pack_pairs<uint16_t, uint32_t>(out, m.panel_bytes(), m.n_, m.k_, source.data, bf16_place);
      break;
    case DType::kF8E4M3:
      pack_pairs<uint8_t, uint16_t>(out, m.panel_bytes(), m.n_, m.k_, source.data, e4m3_place);
      break;
    case DType::kMxfp4:
    case DType::kNvfp4:
      LEVIN_CHECK(m.k_ % (source.dtype == DType::kNvfp4 ? kNvGroup : 2) == 0, "pack_matrix: {} [{}, {}]",
                  dtype_name(source.dtype), m.n_, m.k_);
      LEVIN_CHECK(source.group_scales != nullptr, "pack_matrix: {} [{}, {}] without scales", dtype_name(source.dtype),
                  m.n_, m.k_);
      pack_groups(out, source);
      break;
    default:
      LEVIN_CHECK(false, "pack_matrix: dtype {}", dtype_name(source.dtype));
  }
  if (source.scales != nullptr) {
    const int64_t n_scales = n_scales_of(m.n_, m.k_);
    m.scales_ = Buffer(n_scales * 4);
    std::memcpy(m.scales_.data(), source.scales, static_cast<size_t>(n_scales) * 4);
  } else if (source.dtype == DType::kNvfp4) {
    m.scales_ = Buffer(n_scales_of(m.n_, m.k_) * 4);
    std::fill_n(reinterpret_cast<float*>(m.scales_.data()), n_scales_of(m.n_, m.k_), source.factor);
  }
  return m;
}

int64_t row_major_bytes(DType dtype, int64_t n, int64_t k) {
  return is_fp4(dtype) ? n * (k / 2) : n * k * dtype_bytes(dtype);
}

int64_t group_scale_bytes(DType dtype, int64_t n, int64_t k) {
  const int64_t factor_bytes = dtype == DType::kNvfp4 ? static_cast<int64_t>(sizeof(float)) : 0;
  return n * n_fp4_groups(dtype, k) + factor_bytes;
}

void copy_group_scales(const RowMajorWeights& source, std::byte* out) {
  const auto n_scales = static_cast<size_t>(source.n * n_fp4_groups(source.dtype, source.k));
  std::memcpy(out, source.group_scales, n_scales);
  if (source.dtype == DType::kNvfp4) std::memcpy(out + n_scales, &source.factor, sizeof(source.factor));
}

Matrix keep_rows(const RowMajorWeights& source, bool in_place) {
  Matrix m;
  m.n_ = source.n;
  m.k_ = source.k;
  m.dtype_ = source.dtype == DType::kF16 ? DType::kF32 : source.dtype;
  m.factor_ = source.factor;
  const int64_t n_bytes = row_major_bytes(m.dtype_, m.n_, m.k_);
  if (source.dtype == DType::kF16) {
    m.data_ = Buffer(n_bytes);
    auto* out = reinterpret_cast<float*>(m.data_.data());
    for (int64_t i = 0; i < m.n_ * m.k_; ++i) out[i] = f16_to_f32(load_unaligned<uint16_t>(source.data, i));
  } else if (source.dummies != nullptr) {
    LEVIN_CHECK(in_place, "keep_rows: dummies of [{}, {}] that nobody has made", m.n_, m.k_);
    m.data_ = Buffer::unmade(*source.dummies, n_bytes);
  } else if (in_place) {
    m.data_ = Buffer::borrowed(static_cast<const std::byte*>(source.data), n_bytes);
  } else {
    m.data_ = Buffer(n_bytes);
    std::memcpy(m.data_.data(), source.data, static_cast<size_t>(n_bytes));
  }
  if (source.scales != nullptr) {
    m.scales_ = Buffer(n_scales_of(m.n_, m.k_) * 4);
    std::memcpy(m.scales_.data(), source.scales, static_cast<size_t>(m.scales_.n_bytes()));
  } else if (source.group_scales != nullptr) {
    m.scales_ = Buffer(group_scale_bytes(source.dtype, m.n_, m.k_));
    copy_group_scales(source, m.scales_.data());
  }
  return m;
}

Matrix keep_matrix(const RowMajorWeights& source, MatrixForm form) {
  return form == MatrixForm::kPanels ? pack_matrix(source) : keep_rows(source, form == MatrixForm::kRowsInPlace);
}

Matrix pack_matrix_exactly(const float* values, int64_t n, int64_t k, MatrixForm form) {
  const MatrixForm copied = form == MatrixForm::kPanels ? form : MatrixForm::kRows;
  // A value fits bf16 if the lower half of its bits is zero.
  uint32_t lower = 0;
  for (int64_t i = 0; i < n * k; ++i) lower |= std::bit_cast<uint32_t>(values[i]) & 0xFFFFu;
  if (lower != 0) return keep_matrix({.data = values, .dtype = DType::kF32, .n = n, .k = k}, copied);
  std::vector<uint16_t> bf16(static_cast<size_t>(n * k));
  std::transform(values, values + n * k, bf16.begin(),
                 [](float v) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16); });
  return keep_matrix({.data = bf16.data(), .dtype = DType::kBF16, .n = n, .k = k}, copied);
}

Matrix round_matrix_to_e4m3(const Matrix& w, ThreadPool& pool) {
  LEVIN_CHECK(w.dtype() == DType::kBF16 || w.dtype() == DType::kF32, "round_matrix_to_e4m3: w is {}",
              dtype_name(w.dtype()));
  Matrix m;
  m.n_ = w.n();
  m.k_ = w.k();
  m.dtype_ = DType::kF8E4M3;
  m.data_ = Buffer(m.n_panels() * m.panel_bytes());
  m.scales_ = Buffer(n_scales_of(m.n_, m.k_) * 4);
  auto* scales = reinterpret_cast<float*>(m.scales_.data());
  pool.parallel_for((m.n_ + kWeightBlock - 1) / kWeightBlock, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < m.n_k_blocks(); ++k) {
        scales[n * m.n_k_blocks() + k] =
            round_block_to_e4m3(w, n * kWeightBlock, k * kWeightBlock, m.data_.data(), m.panel_bytes());
      }
    }
  });
  return m;
}

}  // namespace levin
