// linear_attention.h
//
//   short_conv  a thread a channel of a token, then a thread a channel of a token that the rings keep
//   delta_rule  a warp has some value columns of one head of one sequence, a lane one of them: their part of the state stays
//               in shared memory from the sequence's first token to its last. Then a block a head of a token that the rings
//               keep, which computes its update once more: written earlier, it could take the place of one that another warp
//               of the head has yet to apply
#include <algorithm>
#include <cmath>

#include "kernels/cuda/plain/f32_formulas.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/linear_attention.h"

namespace levin::cuda::plain {
namespace {

// ---- the rings ----

// One sequence's, with the places of RecurrentRings (tensor/formats.h).
struct Ring {
  const RecurrentRings& rings;
  float* base;

  __device__ Ring(const RecurrentRings& r, int64_t seq)
      : rings(r), base(reinterpret_cast<float*>(r.rings + r.ids[seq] * r.format.ring_bytes(r.n_undone, r.n_ends))) {}

  __device__ const RecurrentFormat& format() const { return rings.format; }
  __device__ int64_t n_rows() const { return format().ring_rows(rings.n_undone); }
  __device__ int64_t n_states() const { return format().ring_states(rings.n_undone); }

  __device__ float* conv_row(int64_t position) const { return base + position % n_rows() * format().conv_values(); }
  __device__ float* update_row(int64_t position) const {
    return updates() + position % n_rows() * format().update_values();
  }
  __device__ float* state(int64_t n_tokens) const {
    return states() + n_tokens / kStateTokens % n_states() * format().state_values();
  }
  // Null for a row that the next block does not look back at, and for a state that ends no block.
  __device__ float* end_conv_row(int64_t position) const {
    const int64_t row = position % rings.n_block_tokens - (rings.n_block_tokens - (format().n_taps - 1));
    return row < 0 ? nullptr : end(position / rings.n_block_tokens) + row * format().conv_values();
  }
  __device__ float* end_state(int64_t n_tokens) const {
    if (n_tokens % rings.n_block_tokens != 0) return nullptr;
    return end(n_tokens / rings.n_block_tokens - 1) + (format().n_taps - 1) * format().conv_values();
  }

 private:
  __device__ float* updates() const { return base + n_rows() * format().conv_values(); }
  __device__ float* states() const { return updates() + n_rows() * format().update_values(); }
  __device__ float* end(int64_t block) const {
    return states() + n_states() * format().state_values() + block % rings.n_ends * format().end_values();
  }
};

// Of row t of the step: its sequence, -1 for padding; its position; and how many rows of the sequence there are from it on.
struct Token {
  int64_t seq, position, n_after;
};

__device__ Token token_of(const RecurrentTokens& a, int64_t t) {
  for (int64_t seq = 0; seq < a.n_seqs; ++seq) {
    if (t < a.first_row[seq] || t >= a.end_row[seq]) continue;
    return {seq, a.first_position[seq] + t - a.first_row[seq], a.end_row[seq] - t};
  }
  return {-1, 0, 0};
}

// ---- the convolution ----

__device__ int64_t channel_of_thread() { return int64_t{blockIdx.y} * blockDim.x + threadIdx.x; }

__global__ void convolve_kernel(ShortConv a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, c = channel_of_thread();
  if (c >= a.n_channels) return;
  const Token token = token_of(a.tokens, t);
  float& out = a.out[t * a.out_ld + c];
  if (token.seq < 0) {
    out = 0;
    return;
  }
  const int64_t n_taps = a.tokens.rings.format.n_taps, first = a.tokens.first_position[token.seq];
  const Ring ring(a.tokens.rings, token.seq);
  float sum = 0;
  for (int64_t i = 0; i < n_taps; ++i) {
    const int64_t back = n_taps - 1 - i, position = token.position - back;
    const float x = position >= first ? a.x[(t - back) * a.x_ld + c]
                    : position >= 0   ? ring.conv_row(position)[a.first_channel + c]
                                      : 0.0f;
    sum += a.weight[c * n_taps + i] * x;
  }
  out = silu_f32(sum);
}

// A token that a later one of the step takes the row from is not kept.
__global__ void keep_inputs_kernel(ShortConv a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, c = channel_of_thread();
  const Token token = token_of(a.tokens, t);
  if (c >= a.n_channels || token.seq < 0) return;
  const Ring ring(a.tokens.rings, token.seq);
  const float x = a.x[t * a.x_ld + c];
  if (token.n_after <= ring.n_rows()) ring.conv_row(token.position)[a.first_channel + c] = x;
  if (token.n_after > a.tokens.rings.n_ends * a.tokens.rings.n_block_tokens) return;
  if (float* end = ring.end_conv_row(token.position)) end[a.first_channel + c] = x;
}

// ---- the delta rule ----

constexpr int kLanes = 32;                 // of a block
constexpr int64_t kStateValues = 1 << 13;  // of it in shared memory

// What one head's state is updated with.
struct Update {
  float *k, *v, *decay, *beta;
};

// Its share of a ring's row: k, v and decay of all heads, then every head's beta.
__device__ Update share_of(float* row, const RecurrentFormat& f, int64_t head) {
  float* k = row + head * f.d_head;
  return {k, k + f.d_heads(), k + 2 * f.d_heads(), row + 3 * f.d_heads() + head};
}

// sqrt(sum of squares + 1e-6)
__device__ float norm_of(const float* x, int64_t d) {
  float sum = 0;
#pragma unroll 8
  for (int64_t c = 0; c < d; ++c) sum += x[c] * x[c];
  return sqrtf(sum + 1e-6f);
}

__device__ float decay_of(const DeltaRule& a, int64_t t, int64_t head, int64_t i) {
  const int64_t column = head * a.tokens.rings.format.d_head + i;
  const float rate = exp_f32(a.log_rate[head]);
  return exp_f32(a.lower * sigmoid_f32(rate * (a.decay[t * a.decay_ld + column] + a.decay_bias[column])));
}

__device__ float beta_of(const DeltaRule& a, int64_t t, int64_t head) {
  return sigmoid_f32(a.beta[t * a.beta_ld + head]);
}

// A warp's value columns of one head: first .. first + n - 1, a lane has one of the n.
struct Columns {
  int64_t head, first, n;
  int64_t d;     // of the head
  float* state;  // [d, n] in shared memory
  float* keys;   // [d] in shared memory: k of unit length
  float* decay;  // [d] in shared memory
  float* query;  // [d] in shared memory: q of unit length, scaled

  __device__ bool has_lane() const { return threadIdx.x < n; }
  __device__ int64_t column() const { return first + threadIdx.x; }
};

// One token's update of a lane's column of the state, whose k and decay are in shared memory.
__device__ void update_column(const Columns& c, float v, float beta) {
  if (!c.has_lane()) return;
  float* const state = c.state + threadIdx.x;
  float delta = 0;
  for (int64_t k = 0; k < c.d; ++k) {
    const float decayed = state[k * c.n] * c.decay[k];
    state[k * c.n] = decayed;
    delta += decayed * c.keys[k];
  }
  delta = beta * (v - delta);
  for (int64_t k = 0; k < c.d; ++k) state[k * c.n] += c.keys[k] * delta;
}

// What the query reads of a lane's column.
__device__ float read_column(const Columns& c) {
  float out = 0;
  for (int64_t k = 0; k < c.d; ++k) out += c.state[k * c.n + threadIdx.x] * c.query[k];
  return out;
}

__device__ void load_state(const Columns& c, const float* from) {  // [d, d], null: zeros
  for (int64_t k = 0; k < c.d && c.has_lane(); ++k) {
    c.state[k * c.n + threadIdx.x] = from == nullptr ? 0.0f : from[k * c.d + c.column()];
  }
}

__device__ void store_state(const Columns& c, float* to) {
  for (int64_t k = 0; k < c.d && c.has_lane(); ++k) to[k * c.d + c.column()] = c.state[k * c.n + threadIdx.x];
}

// The state before the step's first token: the last one kept, and the updates since.
__device__ void go_back_to_state(const Columns& c, const Ring& ring, int64_t first_position) {
  const int64_t kept = first_position / kStateTokens * kStateTokens, offset = c.head * c.d * c.d;
  load_state(c, kept > 0 ? ring.state(kept) + offset : nullptr);
  for (int64_t p = kept; p < first_position; ++p) {
    const Update update = share_of(ring.update_row(p), ring.format(), c.head);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < c.d; i += kLanes) c.keys[i] = update.k[i], c.decay[i] = update.decay[i];
    __syncthreads();
    update_column(c, c.has_lane() ? update.v[c.column()] : 0.0f, *update.beta);
  }
}

// k, decay and q of row t.
__device__ void prepare(const DeltaRule& a, const Columns& c, int64_t t) {
  const float* k = a.k + t * a.k_ld + c.head * c.d;
  const float* q = a.q + t * a.q_ld + c.head * c.d;
  __shared__ float norm[2];
  __syncthreads();
  if (threadIdx.x < 2) norm[threadIdx.x] = norm_of(threadIdx.x == 0 ? k : q, c.d);
  __syncthreads();
  const float factor = 1.0f / sqrtf(static_cast<float>(c.d));
  for (int64_t i = threadIdx.x; i < c.d; i += kLanes) {
    c.keys[i] = k[i] / norm[0];
    c.query[i] = q[i] / norm[1] * factor;
    c.decay[i] = decay_of(a, t, c.head, i);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kLanes) delta_kernel(DeltaRule a, int64_t n_columns) {
  follow_earlier_kernels();
  extern __shared__ float shared[];
  const int64_t seq = blockIdx.z, head = blockIdx.y, first = int64_t{blockIdx.x} * n_columns;
  const int64_t d = a.tokens.rings.format.d_head, begin = a.tokens.first_row[seq], end = a.tokens.end_row[seq];
  if (begin >= end) return;
  const int64_t n = d - first < n_columns ? d - first : n_columns, first_position = a.tokens.first_position[seq];
  float* const rows = shared + d * n_columns;
  const Columns c{head, first, n, d, shared, rows, rows + d, rows + 2 * d};
  const Ring ring(a.tokens.rings, seq);
  go_back_to_state(c, ring, first_position);
  for (int64_t t = begin; t < end; ++t) {
    prepare(a, c, t);
    const int64_t column = head * d + c.column(), n_tokens = first_position + t - begin + 1;
    update_column(c, c.has_lane() ? a.v[t * a.v_ld + column] : 0.0f, beta_of(a, t, head));
    if (c.has_lane()) a.out[t * a.out_ld + column] = read_column(c);
    if (n_tokens % kStateTokens != 0) continue;
    store_state(c, ring.state(n_tokens) + head * d * d);
    if (float* at_end = ring.end_state(n_tokens)) store_state(c, at_end + head * d * d);
  }
}

// The updates that later steps may apply again; a token that a later one of the step takes the row from is not kept.
__global__ void __launch_bounds__(kLanes) keep_updates_kernel(DeltaRule a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, head = blockIdx.y, d = a.tokens.rings.format.d_head;
  const Token token = token_of(a.tokens, t);
  if (token.seq < 0) {
    for (int64_t i = threadIdx.x; i < d; i += kLanes) a.out[t * a.out_ld + head * d + i] = 0;
    return;
  }
  const Ring ring(a.tokens.rings, token.seq);
  if (token.n_after > ring.n_rows()) return;
  const Update kept = share_of(ring.update_row(token.position), ring.format(), head);
  const float *k = a.k + t * a.k_ld + head * d, *v = a.v + t * a.v_ld + head * d;
  const float norm = norm_of(k, d);
  for (int64_t i = threadIdx.x; i < d; i += kLanes) {
    kept.k[i] = k[i] / norm;
    kept.v[i] = v[i];
    kept.decay[i] = decay_of(a, t, head, i);
  }
  if (threadIdx.x == 0) *kept.beta = beta_of(a, t, head);
}

__global__ void sigmoid_mul_kernel(SigmoidMul a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < a.d; c += blockDim.x) {
    a.out[t * a.out_ld + c] = a.x[t * a.x_ld + c] * sigmoid_f32(a.gate[t * a.gate_ld + c]);
  }
}

}  // namespace

void short_conv(const ShortConv& a, StreamHandle stream) {
  const Grid grid{.x = a.n_rows, .y = div_up(a.n_channels, kThreads)};  // of a chunk more rows than y may have
  start(convolve_kernel, grid, stream, a);
  start(keep_inputs_kernel, grid, stream, a);
}

void delta_rule(const DeltaRule& a, StreamHandle stream) {
  const RecurrentFormat& f = a.tokens.rings.format;
  const int64_t n_columns = std::clamp<int64_t>(kStateValues / f.d_head, 1, kLanes);
  const auto shared_bytes = (f.d_head * n_columns + 3 * f.d_head) * static_cast<int64_t>(sizeof(float));
  start(delta_kernel,
        {.x = div_up(f.d_head, n_columns),
         .y = f.n_heads,
         .z = a.tokens.n_seqs,
         .threads = kLanes,
         .shared_bytes = shared_bytes},
        stream, a, n_columns);
  start(keep_updates_kernel, {.x = a.n_rows, .y = f.n_heads, .threads = kLanes}, stream, a);
}

void sigmoid_mul(const SigmoidMul& a, StreamHandle stream) { start(sigmoid_mul_kernel, {.x = a.n_rows}, stream, a); }

}  // namespace levin::cuda::plain
