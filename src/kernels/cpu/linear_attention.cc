#include "kernels/cpu/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

// Values of the state that are updated together: with all keys they stay in the first cache from the first pass over them
// to the second.
constexpr int64_t kColumns = 32;

[[gnu::always_inline]] inline void delta_columns(const DeltaStep& a, int64_t first, int64_t n) {
  float delta[kColumns] = {}, out[kColumns] = {};
  for (int64_t k = 0; k < a.d; ++k) {
    float* row = a.state + k * a.d + first;
    const float decay = a.decay[k], key = a.k[k];
    for (int64_t v = 0; v < n; ++v) {
      row[v] *= decay;
      delta[v] += row[v] * key;
    }
  }
  for (int64_t v = 0; v < n; ++v) delta[v] = a.beta * (a.v[first + v] - delta[v]);
  for (int64_t k = 0; k < a.d; ++k) {
    float* row = a.state + k * a.d + first;
    const float key = a.k[k], query = a.q != nullptr ? a.q[k] : 0;
    for (int64_t v = 0; v < n; ++v) {
      row[v] += key * delta[v];
      out[v] += row[v] * query;
    }
  }
  if (a.q != nullptr) std::copy_n(out, n, a.out + first);
}

}  // namespace

void short_conv(const ShortConvRow& a) {
  std::fill_n(a.out, a.n_channels, 0.0f);
  for (int64_t i = 0; i < a.n_taps; ++i) {
    const float* row = a.rows[i];
    for (int64_t c = 0; c < a.n_channels; ++c) a.out[c] += a.weight[c * a.n_taps + i] * row[c];
  }
  for (int64_t c = 0; c < a.n_channels; ++c) a.out[c] = silu<OneLane>(a.out[c]);
}

void unit_row(const UnitRow& a) {
  float sum = 0;
  for (int64_t c = 0; c < a.d; ++c) sum += a.x[c] * a.x[c];
  const float norm = std::sqrt(sum + 1e-6f);
  for (int64_t c = 0; c < a.d; ++c) a.out[c] = a.x[c] / norm * a.factor;
}

void decay_row(const DecayRow& a) {
  const float rate = exp<OneLane>(a.log_rate);
  for (int64_t c = 0; c < a.d; ++c) {
    a.out[c] = exp<OneLane>(a.lower * sigmoid<OneLane>(rate * (a.x[c] + a.bias[c])));
  }
}

void delta_step(const DeltaStep& a) {
  int64_t first = 0;
  for (; first + kColumns <= a.d; first += kColumns) delta_columns(a, first, kColumns);
  if (first < a.d) delta_columns(a, first, a.d - first);
}

float sigmoid_of(float x) { return sigmoid<OneLane>(x); }

}  // namespace levin::kernels
