// Random weights for op tests: a packed matrix beside the values it stands for.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/support.h"
#include "tensor/matrix.h"

namespace levin::testing {

struct TestMatrix {
  Matrix packed;
  std::vector<float> values;  // [N, K], as stored, without scales
  std::vector<float> scales;  // [ceil(N / 128), ceil(K / 128)], empty without scales

  double at(int64_t n, int64_t k) const {
    return static_cast<double>(values[n * packed.k() + k]) * static_cast<double>(packed.scale(n, k));
  }
};

// dtype kF32, kBF16 or kF8E4M3; e4m3 codes are drawn from all finite ones, zeros and subnormals included, and get
// scales that are no powers of two unless `scaled` is false.
TestMatrix random_matrix(Random& random, DType dtype, int64_t n, int64_t k, bool scaled = true);

}  // namespace levin::testing
