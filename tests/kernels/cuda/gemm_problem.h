// Random FP8 products for tests and benchmarks: values as quantisation of normal activations and weights leaves them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/numbers.h"

namespace levin::cuda {

constexpr int64_t kScaleBlock = 128;

inline int64_t blocks_of(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

// Normal values, rounded to e4m3 after scaling the expected largest of a block to the format's range.
inline std::vector<uint8_t> random_e4m3(int64_t n, uint64_t seed) {
  std::vector<uint8_t> table(4096);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (uint8_t& code : table) code = f32_to_e4m3(normal(generator) * 140.0f);
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  uint64_t state = seed * 2 + 1;
  for (uint8_t& code : codes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    code = table[state >> 52];
  }
  return codes;
}

inline std::vector<float> random_scales(int64_t n, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  std::vector<float> scales(static_cast<size_t>(n));
  for (float& scale : scales) scale = uniform(generator) * 0x1p-9f;
  return scales;
}

struct GemmProblem {
  int64_t n_tokens = 0, n = 0, k = 0, n_groups = 1;
  std::vector<uint8_t> x;      // [T, K]
  std::vector<float> x_scale;  // [T, K / 128]
  std::vector<uint8_t> w;      // [G, N, K]
  std::vector<float> w_scale;  // [G, N / 128, K / 128]

  GemmProblem(int64_t tokens, int64_t outputs, int64_t inputs, int64_t groups, uint64_t seed)
      : n_tokens(tokens),
        n(outputs),
        k(inputs),
        n_groups(groups),
        x(random_e4m3(tokens * inputs, seed)),
        x_scale(random_scales(tokens * blocks_of(inputs), seed + 1)),
        w(random_e4m3(groups * outputs * inputs, seed + 2)),
        w_scale(random_scales(groups * blocks_of(outputs) * blocks_of(inputs), seed + 3)) {}

  struct Exact {
    double value = 0;     // the product in double
    double absolute = 0;  // the sum of its terms' magnitudes
  };
  Exact exact(int64_t row, int64_t group, int64_t column) const {
    Exact e;
    const int64_t n_blocks = blocks_of(k);
    for (int64_t b = 0; b < n_blocks; ++b) {
      double sum = 0, magnitude = 0;
      for (int64_t i = b * kScaleBlock; i < std::min(k, (b + 1) * kScaleBlock); ++i) {
        const double term = double{e4m3_to_f32(x[static_cast<size_t>(row * k + i)])} *
                            double{e4m3_to_f32(w[static_cast<size_t>((group * n + column) * k + i)])};
        sum += term;
        magnitude += std::fabs(term);
      }
      const double scale =
          double{x_scale[static_cast<size_t>(row * n_blocks + b)]} *
          double{w_scale[static_cast<size_t>((group * blocks_of(n) + column / kScaleBlock) * n_blocks + b)]};
      e.value += scale * sum;
      e.absolute += scale * magnitude;
    }
    return e;
  }
};

}  // namespace levin::cuda
