// Random weights for op tests: a packed matrix next to the values it stands for.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/support.h"
#include "tensor/matrix.h"

namespace levin::testing {

struct TestMatrix {
  Matrix packed;
  std::vector<float> values;          // [N, K], as stored, without scales
  std::vector<float> scales;          // [ceil(N / 128), ceil(K / 128)], of e4m3; empty without scales
  std::vector<uint8_t> codes;         // as checkpoints hold them, of e4m3, mxfp4 and nvfp4
  std::vector<uint8_t> group_scales;  // of mxfp4 and nvfp4

  double at(int64_t n, int64_t k) const { return static_cast<double>(in_group(n, k)) * block_scale(n, k); }
  // What sums of a block are made of: exact in f32, and what they are multiplied with.
  float in_group(int64_t n, int64_t k) const {
    const float value = values[n * packed.k() + k];
    return group_scales.empty() ? value : value * group_scale(n, k);
  }
  float block_scale(int64_t n, int64_t k) const {
    if (packed.dtype() == DType::kNvfp4) return packed.factor();
    return group_scales.empty() ? packed.scale(n, k) : 1.0f;
  }
  float group_scale(int64_t n, int64_t k) const;  // of mxfp4 and nvfp4
  // As a CUDA device has them.
  std::vector<uint8_t> device_group_scales() const;
  // e4m3, mxfp4 and nvfp4 alone.
  RowMajorWeights source() const {
    return {.data = codes.data(),
            .dtype = packed.dtype(),
            .n = packed.n(),
            .k = packed.k(),
            .scales = scales.empty() ? nullptr : scales.data(),
            .group_scales = group_scales.empty() ? nullptr : group_scales.data(),
            .factor = packed.factor()};
  }
};

// dtype kF32, kBF16, kF8E4M3, kMxfp4 or kNvfp4; e4m3 codes are drawn from all finite ones, zeros and subnormals included, and
// get scales that are no powers of two unless `scaled` is false; mxfp4 and nvfp4 codes are drawn from all, mxfp4's scales from
// 2^-8 to 2^7, nvfp4's from all, zero among them, and its factor is no power of two.
TestMatrix random_matrix(Random& random, DType dtype, int64_t n, int64_t k, bool scaled = true);

// The matrix where the device can multiply with it: the packed one on the CPU, a copy in `memory` on a CUDA device.
const Matrix* on_device(TestDevice& device, const TestMatrix& w, Matrix& memory);

}  // namespace levin::testing
