// Row work on the CPU: norms, rotation, activation, expert choice, argmax, residual streams, pooling. One row is one
// unit; rows never meet.
//
// Contracts, trees and formulas are in ops/{norm,rope,moe,logits,streams,pool_windows}.h. Pointers name a first row;
// strides are in elements.
#pragma once

#include <cstdint>

namespace levin::kernels {

constexpr int kNormPartials = 128;  // partial sums of a norm, ops/norm.h

struct NormRows {
  const float* x = nullptr;  // [n_rows, d]
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [d]; null in rms_norm: ones
  const float* bias = nullptr;    // [d], layer_norm only
  float eps = 0;
  float* out = nullptr;  // [n_rows, d], may be x
  int64_t out_stride = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};

struct AddRows {
  float* x = nullptr;  // [n_rows, d], updated
  int64_t x_stride = 0;
  const float* y = nullptr;  // [n_rows, d]
  int64_t y_stride = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};

struct RopeRows {
  float* x = nullptr;  // [n_rows, n_heads, d], rotated in place
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  const float* cos = nullptr;  // [n_rows, d / 2]
  int64_t cos_stride = 0;
  const float* sin = nullptr;  // [n_rows, d / 2]
  int64_t sin_stride = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t d = 0;  // even
};

struct SiluRows {
  const float* gate = nullptr;  // [n_rows, d]
  int64_t gate_stride = 0;
  const float* up = nullptr;  // [n_rows, d]
  int64_t up_stride = 0;
  float limit = 0;       // gate at most, up within +-limit; infinity: neither
  float* out = nullptr;  // [n_rows, d], may be gate or up
  int64_t out_stride = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};

enum class ExpertScore : uint8_t { kSigmoid, kSqrtSoftplus };

struct RouteRows {
  const float* logits = nullptr;  // [n_rows, n_experts]
  int64_t logits_stride = 0;
  bool softplus = false;            // scores are sqrt(softplus(logit)), not sigmoid(logit)
  const float* bias = nullptr;      // [n_experts]
  const int32_t* chosen = nullptr;  // [n_rows, n_active], ascending; null: the best by score and bias
  int64_t chosen_stride = 0;
  int64_t n_rows = 0;
  int64_t n_experts = 0;  // a multiple of n_groups
  int64_t n_groups = 1;
  int64_t n_groups_kept = 1;
  int64_t n_active = 0;
  bool normalize = true;
  float factor = 1;
  int32_t* topk = nullptr;  // [n_rows, n_active]
  int64_t topk_stride = 0;
  float* weights = nullptr;  // [n_rows, n_active]
  int64_t weights_stride = 0;
  float* scratch = nullptr;  // [3, n_experts]
};

// x[t,:] = sum_i read[t,i] * streams[t,i,:]
struct ReadStreamsRows {
  const float* streams = nullptr;  // [n_rows, n_streams, d]
  int64_t streams_stride = 0;
  const float* read = nullptr;  // [n_rows, n_streams]
  int64_t read_stride = 0;
  float* out = nullptr;  // [n_rows, d]
  int64_t out_stride = 0;
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t d = 0;
};

// streams[t,k,:] <- write[t,k] * y[t,:] + sum_j mix[t,j,k] * streams[t,j,:]
struct WriteStreamsRows {
  float* streams = nullptr;  // [n_rows, n_streams, d], updated
  int64_t streams_stride = 0;
  const float* y = nullptr;  // [n_rows, d]
  int64_t y_stride = 0;
  const float* write = nullptr;  // [n_rows, n_streams]
  int64_t write_stride = 0;
  const float* mix = nullptr;  // [n_rows, n_streams, n_streams]
  int64_t mix_stride = 0;
  int64_t n_rows = 0;
  int64_t n_streams = 0;  // at most kMaxStreams
  int64_t d = 0;
};

constexpr int64_t kMaxStreams = 16;

// One entry: out[c] = sum_i softmax_i(gate_i[c] + bias_i[c]) * value_i[c].
struct PoolJob {
  const float* const* values = nullptr;  // [n_slots] rows of d
  const float* const* gates = nullptr;   // [n_slots] rows of d
  const float* const* biases = nullptr;  // [n_slots] rows of d
  int64_t n_slots = 0;                   // at least one
  int64_t d = 0;
  float* out = nullptr;  // [d]
};

struct ArgmaxResult {
  float value = 0;
  int64_t index = 0;
  bool has_nan = false;  // then value and index mean nothing
};

constexpr int64_t kNoRow = -1;  // what route_experts() returns when all is well

struct RowKernels {
  void (*rms_norm)(const NormRows&) = nullptr;
  void (*layer_norm)(const NormRows&) = nullptr;
  void (*add_into)(const AddRows&) = nullptr;
  void (*rope_interleaved)(const RopeRows&) = nullptr;
  void (*rope_half_split)(const RopeRows&) = nullptr;
  void (*silu_mul)(const SiluRows&) = nullptr;
  int64_t (*route_experts)(const RouteRows&) = nullptr;  // the first row with a score that is NaN, or kNoRow
  ArgmaxResult (*argmax)(const float* x, int64_t n) = nullptr;
  void (*widen_bf16)(const uint16_t* x, float* out, int64_t n) = nullptr;
  void (*read_streams)(const ReadStreamsRows&) = nullptr;
  void (*write_streams)(const WriteStreamsRows&) = nullptr;
  void (*pool)(const PoolJob&) = nullptr;
};

RowKernels row_kernels_plain();
RowKernels row_kernels_avx2();
RowKernels row_kernels_avx512();

}  // namespace levin::kernels
