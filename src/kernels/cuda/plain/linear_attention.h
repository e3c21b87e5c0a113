// Linear attention with a recurrent state, and the short convolution before it. Contracts and trees: ops/linear_attention.h.
//
// Padding   a row of no sequence gets zeros and leaves the rings as they are
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// One layer's rings of a recurrent state; the layout is that of levin::RecurrentRings (tensor/formats.h).
struct RecurrentRings {
  std::byte* rings = nullptr;
  int64_t n_undone = 0;
  int64_t n_ends = 0;
  int64_t n_block_tokens = 1;
  RecurrentFormat format;
  const int32_t* ids = nullptr;  // [B]: ring of each sequence
};

struct RecurrentTokens {
  const int32_t* first_row = nullptr;       // [B], of each sequence in this step; its rows are consecutive
  const int32_t* end_row = nullptr;         // [B], the row after its last one
  const int32_t* first_position = nullptr;  // [B], of its first row
  int64_t n_seqs = 0;                       // B, capacity
  RecurrentRings rings;
};

struct ShortConv {
  const float* x = nullptr;  // [T, C], rows x_ld apart
  int64_t x_ld = 0;
  const float* weight = nullptr;  // [C, n_taps], dense
  RecurrentTokens tokens;
  int64_t first_channel = 0;  // of the rings' rows, where those of x begin
  float* out = nullptr;       // [T, C], rows out_ld apart; not x
  int64_t out_ld = 0;
  int64_t n_rows = 0;  // T
  int64_t n_channels = 0;
};
void short_conv(const ShortConv& a, StreamHandle stream);

struct DeltaRule {
  const float *q = nullptr, *k = nullptr, *v = nullptr, *decay = nullptr;  // [T, Hl * Dl], rows *_ld apart
  int64_t q_ld = 0, k_ld = 0, v_ld = 0, decay_ld = 0;
  const float* decay_bias = nullptr;  // [Hl * Dl]
  const float* log_rate = nullptr;    // [Hl]
  float lower = 0;
  const float* beta = nullptr;  // [T, Hl], rows beta_ld apart
  int64_t beta_ld = 0;
  RecurrentTokens tokens;
  float* out = nullptr;  // [T, Hl * Dl], rows out_ld apart; none of the inputs
  int64_t out_ld = 0;
  int64_t n_rows = 0;  // T
};
void delta_rule(const DeltaRule& a, StreamHandle stream);

struct SigmoidMul {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  const float* gate = nullptr;  // [T, D], rows gate_ld apart
  int64_t gate_ld = 0;
  float* out = nullptr;  // [T, D], rows out_ld apart; may be x or gate
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};
void sigmoid_mul(const SigmoidMul& a, StreamHandle stream);

}  // namespace levin::cuda::plain
