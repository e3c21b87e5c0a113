#include "ops/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/fp8_groups.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"
#include "tensor/formats.h"

namespace levin {
namespace {

constexpr int64_t kFp4Block = 32;
constexpr int64_t kNvfp4Block = 16;

float largest(const float* x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax;
}

void round_block_to_fp4(float* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = e2m1_to_f32(f32_to_e2m1(x[i] / scale)) * scale;
}

// Every block of `block` columns, with the scale that its largest value gives.
void round_rows_to_fp4(CpuBackend& cpu, const View& x, int64_t block, float (*scale_of)(float amax)) {
  const int64_t n_rows = x.dim(0), k = x.dim(1);
  cpu.pool().parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t first = 0; first < k; first += block) {
        float* const values = x.row<float>(t) + first;
        const int64_t n = std::min(block, k - first);
        round_block_to_fp4(values, n, scale_of(largest(values, n)));
      }
    }
  });
}

// What e4m3 has nearest to a sixth of the largest value, its smallest number at least.
float nvfp4_scale(float amax) { return e4m3_to_f32(f32_to_e4m3(std::max(amax, kE2m1Max * 0x1p-9f) / kE2m1Max)); }

// The values that codes and scales stand for.
void quantize_to_bf16(CpuBackend& cpu, const ops::QuantizeFp8& a) {
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  const ArenaScope scope(cpu.arena());
  const View codes = cpu.arena().allocate(DType::kF8E4M3, {n_rows, k});
  const View scale = cpu.arena().allocate(DType::kF32, {n_rows, (k + kQuantBlock - 1) / kQuantBlock});
  cpu.quantize_fp8({.x = a.x, .out = codes, .scale = scale});
  cpu.pool().parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < k; ++i) {
        const float value = e4m3_to_f32(codes.row<uint8_t>(t)[i]) * scale.row<float>(t)[i / kQuantBlock];
        a.out.row<uint16_t>(t)[i] = f32_to_bf16(value);
      }
    }
  });
}

}  // namespace

void CpuBackend::round_to_bf16(const ops::RoundToBf16& a) {
  const float* x = a.x.data<float>();
  uint16_t* out = a.out.data<uint16_t>();
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    kernels_.matmul.round_to_bf16({.x = x + begin * a.x.stride(0),
                                   .x_stride = a.x.stride(0),
                                   .out = out + begin * a.out.stride(0),
                                   .out_stride = a.out.stride(0),
                                   .n_rows = end - begin,
                                   .k = k});
  });
}

void CpuBackend::quantize_fp8(const ops::QuantizeFp8& a) {
  if (a.out.dtype() == DType::kBF16) return quantize_to_bf16(*this, a);
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1), n_scales = (k + kQuantBlock - 1) / kQuantBlock;
  LEVIN_CHECK(a.scale.rank() == 2 && a.scale.dim(0) == n_rows && a.scale.dim(1) == n_scales,
              "quantize_fp8: scale is {}, expected [{}, {}]", a.scale.describe(), n_rows, n_scales);
  const float* x = a.x.data<float>();
  uint8_t* out = a.out.data<uint8_t>();
  float* scale = a.scale.data<float>();
  pool_.parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    kernels_.matmul.quantize_fp8({.x = x + begin * a.x.stride(0),
                                  .x_stride = a.x.stride(0),
                                  .out = out + begin * a.out.stride(0),
                                  .out_stride = a.out.stride(0),
                                  .scale = scale + begin * a.scale.stride(0),
                                  .scale_stride = a.scale.stride(0),
                                  .n_rows = end - begin,
                                  .k = k});
  });
}

void round_to_fp8_groups(float* x, int64_t n, int64_t group) {
  for (int64_t begin = 0; begin < n; begin += group) {
    const int64_t end = std::min(n, begin + group);
    const float scale = e4m3_pow2_scale(largest(x + begin, end - begin));
    for (int64_t i = begin; i < end; ++i) x[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
  }
}

void CpuBackend::round_to_fp8(const ops::RoundToFp8& a) {
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(a.x.row<float>(t), k, row.data());
      round_to_fp8_groups(row.data(), k, a.group);
      if (a.out.dtype() == DType::kF32) {
        std::copy_n(row.data(), k, a.out.row<float>(t));
      } else {
        std::transform(row.begin(), row.end(), a.out.row<uint16_t>(t), f32_to_bf16);
      }
    }
  });
}

void CpuBackend::round_to_fp4(const ops::RoundToFp4& a) { round_rows_to_fp4(*this, a.x, kFp4Block, e2m1_pow2_scale); }

void CpuBackend::round_to_nvfp4(const ops::RoundToNvfp4& a) { round_rows_to_fp4(*this, a.x, kNvfp4Block, nvfp4_scale); }

void CpuBackend::hadamard(const ops::Hadamard& a) {
  const int64_t n_tokens = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  float* x = a.x.data<float>();
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  pool_.parallel_for(n_tokens, row_grain(n_tokens, n_heads * d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.matmul.hadamard(
          {.x = x + t * a.x.stride(0), .x_stride = a.x.stride(1), .n_rows = n_heads, .d = d, .factor = factor});
    }
  });
}

}  // namespace levin
