// The oracle of the other sets: one loop for each sum, in the order of the tree.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "kernels/cpu/matmul.h"
#include "tensor/matrix.h"
#include "tensor/row_formats.h"

namespace levin::kernels {
namespace {

DType operand_f32(DType, DType) { return DType::kF32; }

float element(const void* row, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(row)[i];
    case DType::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(row)[i]);
    default:
      return e4m3_to_f32(static_cast<const uint8_t*>(row)[i]);
  }
}

// The weight of column k and output `lane` of a panel; scales of groups are part of it, those of blocks are not.
float weight(const std::byte* panel, DType dtype, int64_t k, int64_t lane) {
  if (is_fp4(dtype)) {
    const Fp4Place place = fp4_place(dtype, k, lane);
    uint32_t word;
    std::memcpy(&word, panel + place.word, sizeof(word));
    const auto scale = std::to_integer<uint8_t>(panel[place.scale]);
    return e2m1_to_f32(word >> place.bit & 0xF) * (dtype == DType::kNvfp4 ? e4m3_to_f32(scale) : e8m0_to_f32(scale));
  }
  if (dtype == DType::kF8E4M3) return element(panel, dtype, e4m3_place(k, lane));
  return element(panel, dtype, dtype == DType::kF32 ? k * kPanel + lane : k / 2 * 2 * kPanel + 2 * lane + k % 2);
}

// Row `row`, column k of an operand of groups.
int64_t operand_index(int64_t row, int64_t k, int64_t n_rows, int64_t n_k) {
  const int64_t group = row / kRowGroup * kRowGroup;
  return group * n_k + k * std::min(kRowGroup, n_rows - group) + row - group;
}

void prepare(const PrepareJob& job) {
  float* operand = static_cast<float*>(job.operand);
  for (int64_t row = job.row_begin; row < job.row_end; ++row) {
    const int64_t source = job.rows != nullptr ? job.rows[row] : row;
    const std::byte* x = static_cast<const std::byte*>(job.x) + source * job.x_stride * dtype_bytes(job.x_dtype);
    for (int64_t k = 0; k < job.k; ++k) operand[operand_index(row, k, job.n_rows, job.k)] = element(x, job.x_dtype, k);
  }
}

// Output n of a row, from zero.
float product_of(const ProductJob& job, int64_t row, int64_t n) {
  const bool plain = job.n_rows <= kRowGroup;
  const auto* x = static_cast<const float*>(plain ? job.plain_rows[static_cast<size_t>(row)] : job.operand);
  const std::byte* panel = job.panels + n / kPanel * job.panel_bytes;
  const int64_t lane = n % kPanel, scale_row = job.x_scale_rows != nullptr ? job.x_scale_rows[row] : row;
  const int64_t n_blocks = (job.k + kPromoteBlock - 1) / kPromoteBlock;
  float total = 0.0f;
  for (int64_t block = 0; block < n_blocks; ++block) {
    float sum = 0.0f;
    for (int64_t k = block * kPromoteBlock; k < std::min(job.k, (block + 1) * kPromoteBlock); ++k) {
      sum = std::fma(x[plain ? k : operand_index(row, k, job.n_rows, job.k)], weight(panel, job.w_dtype, k, lane), sum);
    }
    const float sx = job.x_scale != nullptr ? job.x_scale[scale_row * job.x_scale_stride + block] : 1.0f;
    const float sw = job.w_scales != nullptr ? job.w_scales[n / kWeightBlock * n_blocks + block] : 1.0f;
    total = std::fma(sum, sx * sw, total);
  }
  return total;
}

void product(const ProductJob& job) {
  for (int64_t row = job.row_begin; row < job.row_end; ++row) {
    for (int64_t n = job.panel_begin * kPanel; n < std::min(job.n, job.panel_end * kPanel); ++n) {
      job.out[row * job.out_stride + n] = product_of(job, row, n);
    }
  }
}

void round_rows_to_bf16(const RoundRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const float* x = job.x + row * job.x_stride;
    std::transform(x, x + job.k, static_cast<uint16_t*>(job.out) + row * job.out_stride, f32_to_bf16);
  }
}

void quantize_rows_fp8(const RoundRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const float* x = job.x + row * job.x_stride;
    uint8_t* out = static_cast<uint8_t*>(job.out) + row * job.out_stride;
    for (int64_t begin = 0; begin < job.k; begin += kQuantBlock) {
      const int64_t end = std::min(job.k, begin + kQuantBlock);
      float amax = 0.0f;
      for (int64_t k = begin; k < end; ++k) amax = std::fabs(x[k]) > amax ? std::fabs(x[k]) : amax;
      const float scale = e4m3_pow2_scale(amax);
      for (int64_t k = begin; k < end; ++k) out[k] = f32_to_e4m3(x[k] / scale);
      job.scale[row * job.scale_stride + begin / kQuantBlock] = scale;
    }
  }
}

void hadamard_rows(const HadamardRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    float* x = job.x + row * job.x_stride;
    for (int64_t stride = 1; stride < job.d; stride *= 2) {
      for (int64_t i = 0; i < job.d; ++i) {
        if ((i & stride) != 0) continue;
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
    for (int64_t i = 0; i < job.d; ++i) x[i] *= job.factor;
  }
}

void combine_rows(const CombineRows& job) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    for (int64_t i = 0; i < job.d; ++i) {
      float total = 0.0f;
      for (int64_t j = 0; j < job.n_terms; ++j) {
        const float y = job.y[job.rows[row * job.n_terms + j] * job.d + i];
        total = std::fma(job.weights[row * job.weights_stride + j], y, total);
      }
      job.out[row * job.out_stride + i] = job.last != nullptr ? total + job.last[row * job.last_stride + i] : total;
    }
  }
}

}  // namespace

MatmulKernels matmul_kernels_plain() {
  return {.operand_dtype = operand_f32,
          .prepare = prepare,
          .product = product,
          .round_to_bf16 = round_rows_to_bf16,
          .quantize_fp8 = quantize_rows_fp8,
          .hadamard = hadamard_rows,
          .combine = combine_rows};
}

}  // namespace levin::kernels
