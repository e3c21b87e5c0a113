// pool_windows.h: a thread a channel of an entry, or of a token.
#include "kernels/cuda/plain/f32_formulas.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/pool_windows.h"

namespace levin::cuda::plain {
namespace {

__device__ float* ring_row(const Rings& r, int64_t seq, int64_t row) {
  const int64_t ring = int64_t{r.ids[seq]} * (r.n_rows + r.n_ends * r.format.n_before);
  return reinterpret_cast<float*>(r.rings + (ring + row) * r.format.row_bytes());
}

// Where a token stands with the end of its block; null for one that no later block looks back at.
__device__ float* end_row(const Rings& r, int64_t seq, int64_t position) {
  const int64_t row = position % r.n_block_tokens - (r.n_block_tokens - r.format.n_before);
  if (r.n_ends == 0 || row < 0) return nullptr;
  return ring_row(r, seq, r.n_rows + position / r.n_block_tokens % r.n_ends * r.format.n_before + row);
}

struct Slot {
  float logit, value;
};

// Of the token at `position`, which an entry pools.
__device__ Slot slot_of(const PoolWindows& a, int64_t seq, int64_t position, int64_t channel) {
  const WindowTokens& tokens = a.tokens;
  const int64_t step_row = position - tokens.first_position[seq], n_channels = tokens.state.format.n_channels;
  const float bias = a.bias[(position - a.first_token) % a.ratio * n_channels + channel];
  if (step_row < 0) {
    const float* row = ring_row(tokens.state, seq, position % tokens.state.n_rows);
    return {row[n_channels + channel] + bias, row[channel]};
  }
  const int64_t row = tokens.first_row[seq] + step_row;
  return {tokens.gates[row * tokens.gates_ld + channel] + bias, tokens.values[row * tokens.values_ld + channel]};
}

__global__ void pool_kernel(PoolWindows a) {
  follow_earlier_kernels();
  const int64_t n = blockIdx.x, n_channels = a.tokens.state.format.n_channels,
                d = a.overlap ? n_channels / 2 : n_channels;
  if (a.slot[n] < 0) return;
  const int64_t seq = a.seq[n], own = a.first_token + a.slot[n] * a.ratio,
                first = a.overlap && own > 0 ? own - a.ratio : own;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    const auto slot = [&](int64_t position) {
      return slot_of(a, seq, position, a.overlap && position >= own ? d + c : c);
    };
    float largest = slot(first).logit;
    for (int64_t p = first + 1; p < own + a.ratio; ++p) {
      const float logit = slot(p).logit;
      largest = largest < logit ? logit : largest;
    }
    float weights = 0, sum = 0;
    for (int64_t p = first; p < own + a.ratio; ++p) {
      const Slot s = slot(p);
      const float weight = exp_f32(s.logit - largest);
      weights += weight;
      sum = __fmaf_rn(weight, s.value, sum);
    }
    a.out[n * a.out_ld + c] = sum / weights;
  }
}

__global__ void keep_kernel(KeepState a) {
  follow_earlier_kernels();
  const WindowTokens& tokens = a.tokens;
  const int64_t t = blockIdx.x, seq = a.seq[t], n_channels = tokens.state.format.n_channels;
  if (seq < 0) return;
  const int64_t position = tokens.first_position[seq] + t - tokens.first_row[seq];
  const auto keep = [&](float* row) {
    for (int64_t c = threadIdx.x; c < n_channels; c += blockDim.x) {
      row[c] = tokens.values[t * tokens.values_ld + c];
      row[n_channels + c] = tokens.gates[t * tokens.gates_ld + c];
    }
  };
  // A token that a later one of the step takes the row from is not kept.
  const Rings& rings = tokens.state;
  const int64_t n_after = tokens.end_row[seq] - t;
  if (n_after <= rings.n_rows) keep(ring_row(rings, seq, position % rings.n_rows));
  if (n_after > rings.n_ends * rings.n_block_tokens) return;
  if (float* row = end_row(rings, seq, position)) keep(row);
}

}  // namespace

void pool_windows(const PoolWindows& a, StreamHandle stream) { start(pool_kernel, {.x = a.n_entries}, stream, a); }
void keep_state(const KeepState& a, StreamHandle stream) { start(keep_kernel, {.x = a.n_rows}, stream, a); }

}  // namespace levin::cuda::plain
