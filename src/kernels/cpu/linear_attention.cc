#include "kernels/cpu/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_math.h"

namespace levin::kernels {

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

void delta_update(const DeltaStep& a) {
  const int64_t d = a.d;
  std::fill_n(a.delta, d, 0.0f);
  for (int64_t k = 0; k < d; ++k) {
    float* row = a.state + k * d;
    const float decay = a.decay[k], key = a.k[k];
    for (int64_t v = 0; v < d; ++v) {
      row[v] *= decay;
      a.delta[v] += row[v] * key;
    }
  }
  for (int64_t v = 0; v < d; ++v) a.delta[v] = a.beta * (a.v[v] - a.delta[v]);
  for (int64_t k = 0; k < d; ++k) {
    float* row = a.state + k * d;
    const float key = a.k[k];
    for (int64_t v = 0; v < d; ++v) row[v] += key * a.delta[v];
  }
}

void delta_read(const float* state, const float* q, int64_t d, float* out) {
  std::fill_n(out, d, 0.0f);
  for (int64_t k = 0; k < d; ++k) {
    const float* row = state + k * d;
    for (int64_t v = 0; v < d; ++v) out[v] += row[v] * q[k];
  }
}

float sigmoid_of(float x) { return sigmoid<OneLane>(x); }

}  // namespace levin::kernels
