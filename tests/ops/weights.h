// Random weights for op tests: a packed matrix beside the values it stands for.
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
  std::vector<uint8_t> codes;         // as checkpoints hold them, of e4m3 and mxfp4
  std::vector<uint8_t> group_scales;  // of mxfp4

  double at(int64_t n, int64_t k) const {
    return static_cast<double>(values[n * packed.k() + k]) * static_cast<double>(packed.scale(n, k));
  }
  // e4m3 and mxfp4 alone.
  RowMajorWeights source() const {
    return {.data = codes.data(),
            .dtype = packed.dtype(),
            .n = packed.n(),
            .k = packed.k(),
            .scales = scales.empty() ? nullptr : scales.data(),
            .group_scales = group_scales.empty() ? nullptr : group_scales.data()};
  }
};

// dtype kF32, kBF16, kF8E4M3 or kMxfp4; e4m3 codes are drawn from all finite ones, zeros and subnormals included, and
// get scales that are no powers of two unless `scaled` is false; mxfp4 codes are drawn from all, scales from 2^-8 to 2^7.
TestMatrix random_matrix(Random& random, DType dtype, int64_t n, int64_t k, bool scaled = true);

// The matrix where the device can multiply with it: the packed one on the CPU, a copy in `memory` on a CUDA device.
const Matrix* on_device(TestDevice& device, const TestMatrix& w, Matrix& memory);

}  // namespace levin::testing
