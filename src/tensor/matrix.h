// A weight matrix in the one layout that every CPU matrix product reads, whatever the number of rows. One on a CUDA device
// has that device's layout instead, which its products alone know (ops/cuda_backend.h says what it is), and one that is on
// its way there is kept row by row as checkpoints have it.
//
// W [N, K] is cut into panels of kPanel = 16 outputs; a panel holds its 16 rows interleaved along k, so that 16 vector
// lanes are 16 outputs and the reduction runs down memory:
//
//   f32           panel [K][16]
//   bf16          panel [ceil(K / 2)][16][2]      pairs of k side by side, as the bf16 dot instruction wants them
//   e4m3          panel [ceil(K / 4)][4][2][4][2]  4 k of 16 outputs in 64 bytes: four times the first pair of four
//                 outputs, then their second pair, so that widening by 128-bit lanes gives pairs as in bf16
//   mxfp4         panel of groups of 32 k: [16] e8m0 scales, then [4][16] words of 32 bits, each 8 k of one output: even
//                 k ascending in its lower half, odd ones in the upper. K is even; the last group has as many words as
//                 it needs
//   nvfp4         panel of groups of 16 k: [16] e4m3 scales, then [2][16] words as in mxfp4. K is a multiple of 16
//
// Rows beyond N and what K lacks to whole pairs or fours are zero. e4m3 matrices carry one f32 scale per 128 x 128 block (ragged last blocks
// allowed): w[n, k] = code[n, k] * scale[n / 128, k / 128]. In mxfp4 w[n, k] = code[n, k] * scale[n, k / 32]; every such
// value is exact in f32 and, because scales are kept to 2^-125 .. 2^125, in bf16: the type is a shorter way to write
// bf16, and products give the same bits as with that. In nvfp4 w[n, k] = code[n, k] * scale[n, k / 16] * factor, one
// factor to the matrix; code * scale is exact in bf16 as well (two and four significant bits), and the factor takes the
// place of the 128 x 128 blocks' scales. So the bits are those of a bf16 matrix whose blocks all have that scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace levin {

constexpr int64_t kPanel = 16;         // outputs side by side
constexpr int64_t kWeightBlock = 128;  // rows and columns that share a weight scale

constexpr int64_t kMxGroup = 32;                                   // columns of a row that share an e8m0 scale
constexpr int64_t kNvGroup = 16;                                   // or, in nvfp4, an e4m3 scale
constexpr int64_t kMxWord = 8;                                     // columns of a row that share a word
constexpr int64_t kMxGroupBytes = kPanel + kMxGroup / 2 * kPanel;  // of a whole group of a panel
constexpr int64_t kNvGroupBytes = kPanel + kNvGroup / 2 * kPanel;
constexpr uint8_t kMxMinScale = 2;    // 0.5 * 2^(2 - 127) is the smallest normal number
constexpr uint8_t kMxMaxScale = 252;  // 6 * 2^(252 - 127) is finite

// Groups of either 4-bit type, along a row.
constexpr bool is_fp4(DType dtype) { return dtype == DType::kMxfp4 || dtype == DType::kNvfp4; }
constexpr int64_t fp4_group(DType dtype) { return dtype == DType::kNvfp4 ? kNvGroup : kMxGroup; }
constexpr int64_t fp4_group_bytes(DType dtype) { return dtype == DType::kNvfp4 ? kNvGroupBytes : kMxGroupBytes; }
constexpr int64_t n_fp4_groups(DType dtype, int64_t k) { return (k + fp4_group(dtype) - 1) / fp4_group(dtype); }

// Where code k of output `lane` stands in a panel of mxfp4 or nvfp4.
struct Fp4Place {
  int64_t scale;  // bytes to its group's scale
  int64_t word;   // bytes to its word
  int bit;        // of the word, its lowest
};
constexpr Fp4Place fp4_place(DType dtype, int64_t k, int64_t lane) {
  const int64_t group = fp4_group(dtype), begin = k / group * fp4_group_bytes(dtype);
  return {.scale = begin + lane,
          .word = begin + kPanel + k % group / kMxWord * kPanel * 4 + lane * 4,
          .bit = static_cast<int>(k % 2 * 16 + k % kMxWord / 2 * 4)};
}

// Where code k of output `lane` stands in a panel of e4m3, in bytes.
constexpr int64_t e4m3_place(int64_t k, int64_t lane) {
  return k / 4 * 4 * kPanel + lane / 4 * 16 + k % 4 / 2 * 8 + lane % 4 * 2 + k % 2;
}

// How a matrix is kept on the host.
enum class MatrixForm : uint8_t {
  kPanels,       // for products
  kRows,         // row major, f16 as f32, to be moved to a device; no product reads it
  kRowsInPlace,  // the same where the source has it, which then must stay; dummies that nobody has made remain so
};

class Matrix {
 public:
  Matrix() = default;

  DType dtype() const { return dtype_; }  // kF32, kBF16, kF8E4M3, kMxfp4 or kNvfp4
  int64_t n() const { return n_; }        // outputs
  int64_t k() const { return k_; }        // inputs
  bool empty() const { return n_ == 0; }
  Device device() const { return data_.device(); }
  bool has_scales() const { return !scales_.empty(); }  // of 128 x 128 blocks; in nvfp4 each is the factor
  int64_t n_bytes() const { return data_.n_bytes() + scales_.n_bytes(); }

  int64_t n_panels() const { return (n_ + kPanel - 1) / kPanel; }
  int64_t panel_bytes() const;
  const std::byte* panel(int64_t i) const;  // of a matrix on the host, in panels

  // The scales of the block row that panel i lies in: one f32 per 128 columns. Null for matrices without scales.
  const float* panel_scales(int64_t i) const {
    if (scales_.empty()) return nullptr;
    return reinterpret_cast<const float*>(scales_.data()) + i * kPanel / kWeightBlock * n_k_blocks();
  }
  int64_t n_k_blocks() const { return (k_ + kWeightBlock - 1) / kWeightBlock; }

  // Row by row, or as a CUDA device has them; scales of groups are e8m0 codes, or e4m3 codes in nvfp4, with the factor's
  // four bytes after the last.
  const Buffer& data() const { return data_; }
  const Buffer& scales() const { return scales_; }
  // On a CUDA device: what its products read.
  const std::byte* device_data() const { return data_.data(); }
  const float* device_scales() const { return reinterpret_cast<const float*>(scales_.data()); }
  bool has_wide_scales() const { return has_wide_scales_; }  // of mxfp4: one is 2 or more
  float factor() const { return factor_; }                   // of nvfp4; 1 in all other types

  float stored(int64_t n, int64_t k) const;  // the element as stored, before its scale; slow, for plain code and tests
  float scale(int64_t n, int64_t k) const;   // of its block or group; 1 without

 private:
  friend Matrix pack_matrix(const struct RowMajorWeights& source);
  friend Matrix keep_rows(const struct RowMajorWeights& source, bool in_place);
  friend Matrix round_matrix_to_e4m3(const Matrix& w, ThreadPool& pool);
  friend Matrix matrix_on_device(struct DeviceMatrix&& parts);

  DType dtype_ = DType::kF32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  bool has_wide_scales_ = false;
  float factor_ = 1;
  Buffer data_;
  Buffer scales_;
};

// Bytes of a packed matrix, scales included; has_scales as Matrix::has_scales().
int64_t packed_matrix_bytes(DType dtype, int64_t n, int64_t k, bool has_scales);

// The parts of a matrix that lies on a device, already in its layout.
struct DeviceMatrix {
  DType dtype = DType::kF8E4M3;
  int64_t n = 0;
  int64_t k = 0;
  Buffer data;
  Buffer scales;
  bool has_wide_scales = false;
  float factor = 1;  // nvfp4 only
};
Matrix matrix_on_device(DeviceMatrix&& parts);

// Whether matrices one below the other are a matrix: e4m3 with scales and one K, of whole blocks of rows but for the last.
bool can_be_joined(std::span<const Matrix* const> parts);
// That matrix, which borrows them, where they stand one after another on a device; otherwise an empty one.
Matrix joined_on_device(std::span<const Matrix* const> parts);

// A matrix as checkpoints hold it: row major, [N, K].
struct RowMajorWeights {
  const void* data = nullptr;  // unaligned is fine; mxfp4 and nvfp4: [N, K / 2] bytes, the even k in the low nibble
  DType dtype = DType::kF32;   // kF32, kBF16, kF16, kF8E4M3, kMxfp4 or kNvfp4
  int64_t n = 0;
  int64_t k = 0;
  const float* scales = nullptr;  // [ceil(N / 128), ceil(K / 128)]; e4m3 only, may be null
  // [N, ceil(K / 32)] e8m0, kMxMinScale .. kMxMaxScale, in mxfp4; [N, K / 16] e4m3, finite and not below 0, in nvfp4
  const uint8_t* group_scales = nullptr;
  float factor = 1;                      // nvfp4 only, finite and above 0
  const DummyTensor* dummies = nullptr;  // instead of data, in place alone: values that a device will make
};

// Copies into the panel layout. f16 becomes f32, all others keep their type. All values are kept exactly.
Matrix pack_matrix(const RowMajorWeights& source);

// Bytes of the rows of a matrix as checkpoints and devices have it, without scales; and of the scales of its groups, with
// nvfp4's factor.
int64_t row_major_bytes(DType dtype, int64_t n, int64_t k);
int64_t group_scale_bytes(DType dtype, int64_t n, int64_t k);
void copy_group_scales(const struct RowMajorWeights& source, std::byte* out);

// In the given form. Scales are copied always.
Matrix keep_matrix(const RowMajorWeights& source, MatrixForm form);

// The same from f32 values that were computed: stored as bf16 if every value fits bf16 exactly, otherwise as f32. Rows are
// copied.
Matrix pack_matrix_exactly(const float* values, int64_t n, int64_t k, MatrixForm form = MatrixForm::kPanels);

// A bf16 or f32 matrix rounded to e4m3, to nearest. The scale of a 128 x 128 block makes 448 of its largest magnitude, or
// is the smallest normal number where that would be less.
Matrix round_matrix_to_e4m3(const Matrix& w, ThreadPool& pool);

}  // namespace levin
