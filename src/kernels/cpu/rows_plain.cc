// Rows in plain C++: the oracle of the other sets.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

// kNormPartials sums, element i into sum i mod kNormPartials, folded 64, 32, ..., 1.
struct Partials {
  float sum[kNormPartials] = {};

  float& of(int64_t i) { return sum[i % kNormPartials]; }
  float fold() {
    for (int half = kNormPartials / 2; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
    }
    return sum[0];
  }
};

void rms_norm(const NormRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    const float* x = a.x + t * a.x_stride;
    float* out = a.out + t * a.out_stride;
    Partials squares;
    for (int64_t i = 0; i < a.d; ++i) squares.of(i) = std::fma(x[i], x[i], squares.of(i));
    const float inverse = 1.0f / std::sqrt(squares.fold() / static_cast<float>(a.d) + a.eps);
    for (int64_t i = 0; i < a.d; ++i) {
      const float normed = x[i] * inverse;
      out[i] = a.weight != nullptr ? a.weight[i] * normed : normed;
    }
  }
}

void layer_norm(const NormRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    const float* x = a.x + t * a.x_stride;
    float* out = a.out + t * a.out_stride;
    Partials values, squares;
    for (int64_t i = 0; i < a.d; ++i) values.of(i) += x[i];
    const float mean = values.fold() / static_cast<float>(a.d);
    for (int64_t i = 0; i < a.d; ++i) {
      const float centred = x[i] - mean;
      squares.of(i) = std::fma(centred, centred, squares.of(i));
    }
    const float inverse = 1.0f / std::sqrt(squares.fold() / static_cast<float>(a.d) + a.eps);
    for (int64_t i = 0; i < a.d; ++i) out[i] = std::fma(a.weight[i], (x[i] - mean) * inverse, a.bias[i]);
  }
}

void add_into(const AddRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    for (int64_t i = 0; i < a.d; ++i) a.x[t * a.x_stride + i] += a.y[t * a.y_stride + i];
  }
}

// Rotates the pairs (first + j * step, second + j * step) of every head.
void rope_pairs(const RopeRows& a, int64_t step, int64_t second) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    for (int64_t h = 0; h < a.n_heads; ++h) {
      float* x = a.x + t * a.row_stride + h * a.head_stride;
      for (int64_t j = 0; j < a.d / 2; ++j) {
        const float cos = a.cos[t * a.cos_stride + j], sin = a.sin[t * a.sin_stride + j];
        float& left = x[j * step];
        float& right = x[j * step + second];
        const float u = left, v = right;
        left = std::fma(u, cos, -(v * sin));
        right = std::fma(v, cos, u * sin);
      }
    }
  }
}
void rope_interleaved(const RopeRows& a) { rope_pairs(a, 2, 1); }
void rope_half_split(const RopeRows& a) { rope_pairs(a, 1, a.d / 2); }

void silu_mul(const SiluRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    for (int64_t i = 0; i < a.d; ++i) {
      const float gate = a.gate[t * a.gate_stride + i], up = a.up[t * a.up_stride + i];
      a.out[t * a.out_stride + i] = limited_silu_mul<OneLane>(gate, up, a.limit);
    }
  }
}

int64_t route_experts(const RouteRows& a) {
  return route_rows(a, [&](const float* logits, float* score) {
    for (int64_t e = 0; e < a.n_experts; ++e) {
      score[e] = a.softplus ? sqrt_softplus<OneLane>(logits[e]) : sigmoid<OneLane>(logits[e]);
    }
  });
}

ArgmaxResult argmax(const float* x, int64_t n) {
  ArgmaxResult best{.value = x[0], .index = 0, .has_nan = x[0] != x[0]};
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > best.value) best = {x[i], i, best.has_nan};
    if (x[i] != x[i]) best.has_nan = true;
  }
  return best;
}

void widen_bf16(const uint16_t* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(x[i]);
}

void read_streams(const ReadStreamsRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    const float* streams = a.streams + t * a.streams_stride;
    for (int64_t i = 0; i < a.d; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < a.n_streams; ++j) {
        sum = std::fma(a.read[t * a.read_stride + j], streams[j * a.d + i], sum);
      }
      a.out[t * a.out_stride + i] = sum;
    }
  }
}

void write_streams(const WriteStreamsRows& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    float* streams = a.streams + t * a.streams_stride;
    const float* write = a.write + t * a.write_stride;
    const float* mix = a.mix + t * a.mix_stride;
    for (int64_t i = 0; i < a.d; ++i) {
      float before[kMaxStreams];
      for (int64_t j = 0; j < a.n_streams; ++j) before[j] = streams[j * a.d + i];
      for (int64_t k = 0; k < a.n_streams; ++k) {
        float sum = 0;
        for (int64_t j = 0; j < a.n_streams; ++j) sum = std::fma(mix[j * a.n_streams + k], before[j], sum);
        streams[k * a.d + i] = std::fma(write[k], a.y[t * a.y_stride + i], sum);
      }
    }
  }
}

void pool(const PoolJob& a) {
  for (int64_t c = 0; c < a.d; ++c) {
    const auto logit = [&](int64_t i) { return a.gates[i][c] + a.biases[i][c]; };
    float largest = logit(0);
    for (int64_t i = 1; i < a.n_slots; ++i) largest = std::max(largest, logit(i));
    float weights = 0, sum = 0;
    for (int64_t i = 0; i < a.n_slots; ++i) {
      const float weight = exp<OneLane>(logit(i) - largest);
      weights += weight;
      sum = std::fma(weight, a.values[i][c], sum);
    }
    a.out[c] = sum / weights;
  }
}

}  // namespace

RowKernels row_kernels_plain() {
  return {.rms_norm = rms_norm,
          .layer_norm = layer_norm,
          .add_into = add_into,
          .rope_interleaved = rope_interleaved,
          .rope_half_split = rope_half_split,
          .silu_mul = silu_mul,
          .route_experts = route_experts,
          .argmax = argmax,
          .widen_bf16 = widen_bf16,
          .read_streams = read_streams,
          .write_streams = write_streams,
          .pool = pool};
}

}  // namespace levin::kernels
