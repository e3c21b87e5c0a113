#include "kernels/cpu/gate_stream.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

constexpr int64_t kParts = 16;
using Parts = std::array<float, kParts>;

float folded(Parts parts) {
  for (int64_t half = kParts / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) parts[static_cast<size_t>(i)] += parts[static_cast<size_t>(i + half)];
  }
  return parts[0];
}

float inverse_root(float sum, int64_t n, float eps) { return 1 / std::sqrt(sum / static_cast<float>(n) + eps); }

}  // namespace

void gate_stream(const GateStreamJob& a) {
  Parts dot{}, squares{}, key_squares{};
  for (int64_t i = 0; i < a.d; ++i) {
    const auto part = static_cast<size_t>(i % kParts);
    dot[part] = std::fma(a.stream[i] * a.weight[i], a.key[i], dot[part]);
    squares[part] = std::fma(a.stream[i], a.stream[i], squares[part]);
    key_squares[part] = std::fma(a.key[i], a.key[i], key_squares[part]);
  }
  const float inverse = inverse_root(folded(squares), a.d, a.eps) * inverse_root(folded(key_squares), a.d, a.eps);
  const float score = folded(dot) * inverse / std::sqrt(static_cast<float>(a.d));
  const float root = std::sqrt(std::max(std::fabs(score), 1e-6f));
  const float gate = sigmoid<OneLane>(std::copysign(root, score));
  for (int64_t i = 0; i < a.d; ++i) a.stream[i] = std::fma(gate, a.value[i], a.stream[i]);
}

}  // namespace levin::kernels
