// One head of linear attention with the gated delta rule, and the short convolution before it. One kernel for all sets:
// every loop over columns is of independent multiplications and additions, which compilers vectorise as they are.
// Contracts and trees in ops/linear_attention.h.
#pragma once

#include <cstdint>

namespace levin::kernels {

// out[c] = silu(sum_i weight[c, i] * rows[i][c]), rows from the oldest to the newest.
struct ShortConvRow {
  const float* const* rows = nullptr;  // n_taps rows of n_channels
  const float* weight = nullptr;       // [n_channels, n_taps]
  int64_t n_taps = 0;
  int64_t n_channels = 0;
  float* out = nullptr;  // [n_channels]
};
void short_conv(const ShortConvRow& a);

// out = x / sqrt(sum of squares + 1e-6) * factor
struct UnitRow {
  const float* x = nullptr;  // [d]
  int64_t d = 0;
  float factor = 1;
  float* out = nullptr;  // [d], may be x
};
void unit_row(const UnitRow& a);

// out[c] = exp(lower * sigmoid(exp(log_rate) * (x[c] + bias[c])))
struct DecayRow {
  const float* x = nullptr;     // [d]
  const float* bias = nullptr;  // [d]
  float log_rate = 0;
  float lower = 0;
  int64_t d = 0;
  float* out = nullptr;  // [d]
};
void decay_row(const DecayRow& a);

// One token's update of the state, and what its query reads of it then.
struct DeltaStep {
  const float* k = nullptr;      // [d], unit
  const float* v = nullptr;      // [d]
  const float* decay = nullptr;  // [d], factors
  float beta = 0;
  int64_t d = 0;
  float* state = nullptr;    // [d, d], keys by values, updated
  const float* q = nullptr;  // [d], unit and scaled; null: the update alone
  float* out = nullptr;      // [d], with q
};
void delta_step(const DeltaStep& a);

float sigmoid_of(float x);

}  // namespace levin::kernels
