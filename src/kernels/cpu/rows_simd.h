// Rows over the vector types of simd.h; the same bits as rows_plain.cc.
#pragma once

#include "kernels/cpu/route.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

template <class V>
struct Rows {
  using F32 = typename V::F32;

  // How many of a run's 16 columns are there. All of them is a type of its own, so that the common path has no test.
  struct All {
    operator int() const { return 16; }  // NOLINT: implicit on purpose
  };

  // Calls body(i, n) for each run of 16 columns from i, then once for what is left.
  template <class Body>
  [[gnu::always_inline]] static void columns(int64_t d, const Body& body) {
    int64_t i = 0;
    for (; i + 16 <= d; i += 16) body(i, All{});
    if (i < d) body(i, static_cast<int>(d - i));
  }
  [[gnu::always_inline]] static F32 load(const float* p, All) { return V::load(p); }
  [[gnu::always_inline]] static F32 load(const float* p, int n) { return V::load_n(p, n); }
  // Lanes 2j and 2j + 1 = value j, for the first n lanes.
  [[gnu::always_inline]] static F32 load_twice(const float* p, All) { return V::load_twice(p); }
  [[gnu::always_inline]] static F32 load_twice(const float* p, int n) {
    float some[8] = {};
    for (int j = 0; j < n / 2; ++j) some[j] = p[j];
    return V::load_twice(some);
  }
  [[gnu::always_inline]] static void store(float* p, F32 x, All) { V::store(p, x); }
  [[gnu::always_inline]] static void store(float* p, F32 x, int n) { V::store_n(p, x, n); }

  // The sum of ops/norm.h over a row: body(sum, i, n) is `sum` with the n columns from i joined to its lanes. The partial
  // sums are eight vectors, so that no addition waits for the one before.
  template <class Body>
  [[gnu::always_inline]] static float sum_row(int64_t d, const Body& body) {
    constexpr int kVectors = kNormPartials / 16;
    F32 sum[kVectors];
    for (F32& s : sum) s = V::zero();
    int64_t i = 0;
    for (; i + kNormPartials <= d; i += kNormPartials) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sum[j] = body(sum[j], i + 16 * j, All{});
    }
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const int64_t n = d - i - 16 * j;
      if (n > 0) sum[j] = body(sum[j], i + 16 * j, static_cast<int>(n < 16 ? n : 16));
    }
#pragma GCC unroll 3
    for (int half = kVectors / 2; half >= 1; half /= 2) {
#pragma GCC unroll 4
      for (int j = 0; j < half; ++j) sum[j] = V::add(sum[j], sum[j + half]);
    }
    return V::reduce_add(sum[0]);
  }

  static float inverse_root(float sum, int64_t d, float eps) {
    return 1.0f / __builtin_sqrtf(sum / static_cast<float>(d) + eps);
  }

  static void rms_norm(const NormRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      const float* x = a.x + t * a.x_stride;
      float* out = a.out + t * a.out_stride;
      const float squares = sum_row(a.d, [&](F32 sum, int64_t i, auto n) {
        const F32 v = load(x + i, n);
        return V::fma(v, v, sum);
      });
      const F32 inverse = V::broadcast(inverse_root(squares, a.d, a.eps));
      columns(a.d, [&](int64_t i, auto n) {
        const F32 normed = V::mul(load(x + i, n), inverse);
        store(out + i, a.weight != nullptr ? V::mul(load(a.weight + i, n), normed) : normed, n);
      });
    }
  }

  static void layer_norm(const NormRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      const float* x = a.x + t * a.x_stride;
      float* out = a.out + t * a.out_stride;
      const float values = sum_row(a.d, [&](F32 sum, int64_t i, auto n) { return V::add(sum, load(x + i, n)); });
      const F32 mean = V::broadcast(values / static_cast<float>(a.d));
      const float squares = sum_row(a.d, [&](F32 sum, int64_t i, auto n) {
        const F32 centred = V::select(V::first_n(n), V::sub(load(x + i, n), mean), V::zero());
        return V::fma(centred, centred, sum);
      });
      const F32 inverse = V::broadcast(inverse_root(squares, a.d, a.eps));
      columns(a.d, [&](int64_t i, auto n) {
        const F32 normed = V::mul(V::sub(load(x + i, n), mean), inverse);
        store(out + i, V::fma(load(a.weight + i, n), normed, load(a.bias + i, n)), n);
      });
    }
  }

  static void add_into(const AddRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      float* x = a.x + t * a.x_stride;
      const float* y = a.y + t * a.y_stride;
      columns(a.d, [&](int64_t i, auto n) { store(x + i, V::add(load(x + i, n), load(y + i, n)), n); });
    }
  }

  static void rope_half_split(const RopeRows& a) {
    const int64_t half = a.d / 2;
    for (int64_t t = 0; t < a.n_rows; ++t) {
      columns(half, [&](int64_t j, auto n) {
        const F32 cos = load(a.cos + t * a.cos_stride + j, n), sin = load(a.sin + t * a.sin_stride + j, n);
        const F32 minus_sin = V::mul(sin, V::broadcast(-1.0f));
        for (int64_t h = 0; h < a.n_heads; ++h) {
          float* x = a.x + t * a.row_stride + h * a.head_stride + j;
          const F32 u = load(x, n), v = load(x + half, n);
          store(x, V::fma(u, cos, V::mul(v, minus_sin)), n);
          store(x + half, V::fma(v, cos, V::mul(u, sin)), n);
        }
      });
    }
  }

  alignas(64) static constexpr float kSigns[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};

  // Eight pairs in 16 lanes: the table's entries are doubled, u and v swapped by lane, and even lanes take the negated
  // product.
  static void rope_interleaved(const RopeRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      columns(a.d, [&](int64_t i, auto n) {
        const F32 c = load_twice(a.cos + t * a.cos_stride + i / 2, n);
        const F32 s = V::mul(load_twice(a.sin + t * a.sin_stride + i / 2, n), V::load(kSigns));
        for (int64_t h = 0; h < a.n_heads; ++h) {
          float* x = a.x + t * a.row_stride + h * a.head_stride + i;
          const F32 u = load(x, n);
          store(x, V::fma(u, c, V::mul(V::swap_pairs(u), s)), n);
        }
      });
    }
  }

  static void silu_mul(const SiluRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      const float* gate = a.gate + t * a.gate_stride;
      const float* up = a.up + t * a.up_stride;
      float* out = a.out + t * a.out_stride;
      columns(a.d, [&](int64_t i, auto n) {
        store(out + i, limited_silu_mul<V>(load(gate + i, n), load(up + i, n), a.limit), n);
      });
    }
  }

  static int64_t route_experts(const RouteRows& a) {
    return route_rows(a, [&](const float* logits, float* score) {
      columns(a.n_experts, [&](int64_t e, auto n) {
        const F32 x = load(logits + e, n);
        store(score + e, a.softplus ? sqrt_softplus<V>(x) : sigmoid<V>(x), n);
      });
    });
  }

  // The largest value first, then where it first stands.
  static ArgmaxResult argmax(const float* x, int64_t n) {
    F32 best = V::broadcast(x[0]);
    uint32_t nan_bits = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const F32 v = V::load(x + i);
      best = V::max(best, v);
      nan_bits |= ~V::mask_bits(V::equal(v, v)) & 0xFFFFu;
    }
    float value = V::reduce_max(best);
    for (; i < n; ++i) {
      value = value > x[i] ? value : x[i];
      nan_bits |= x[i] != x[i];
    }
    if (nan_bits != 0) return {.value = value, .index = 0, .has_nan = true};
    const F32 wanted = V::broadcast(value);
    for (i = 0; i + 16 <= n; i += 16) {
      const uint32_t found = V::mask_bits(V::equal(V::load(x + i), wanted));
      if (found != 0) return {.value = value, .index = i + __builtin_ctz(found)};
    }
    for (; x[i] != value; ++i) {
    }
    return {.value = value, .index = i};
  }

  static void widen_bf16(const uint16_t* x, float* out, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) V::store(out + i, V::load_bf16(x + i));
    if (i == n) return;
    uint16_t rest[16] = {};
    for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
    V::store_n(out + i, V::load_bf16(rest), static_cast<int>(n - i));
  }

  static void read_streams(const ReadStreamsRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      const float* streams = a.streams + t * a.streams_stride;
      const float* read = a.read + t * a.read_stride;
      columns(a.d, [&](int64_t i, auto n) {
        F32 sum = V::zero();
        for (int64_t j = 0; j < a.n_streams; ++j) {
          sum = V::fma(V::broadcast(read[j]), load(streams + j * a.d + i, n), sum);
        }
        store(a.out + t * a.out_stride + i, sum, n);
      });
    }
  }

  static void write_streams(const WriteStreamsRows& a) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      float* streams = a.streams + t * a.streams_stride;
      const float* write = a.write + t * a.write_stride;
      const float* mix = a.mix + t * a.mix_stride;
      columns(a.d, [&](int64_t i, auto n) {
        const F32 y = load(a.y + t * a.y_stride + i, n);
        F32 before[kMaxStreams];
        for (int64_t j = 0; j < a.n_streams; ++j) before[j] = load(streams + j * a.d + i, n);
        for (int64_t k = 0; k < a.n_streams; ++k) {
          F32 sum = V::zero();
          for (int64_t j = 0; j < a.n_streams; ++j) {
            sum = V::fma(V::broadcast(mix[j * a.n_streams + k]), before[j], sum);
          }
          store(streams + k * a.d + i, V::fma(V::broadcast(write[k]), y, sum), n);
        }
      });
    }
  }

  static void pool(const PoolJob& a) {
    columns(a.d, [&](int64_t c, auto n) {
      const auto logit = [&](int64_t i) { return V::add(load(a.gates[i] + c, n), load(a.biases[i] + c, n)); };
      F32 largest = logit(0);
      for (int64_t i = 1; i < a.n_slots; ++i) largest = V::max(logit(i), largest);
      F32 weights = V::zero(), sum = V::zero();
      for (int64_t i = 0; i < a.n_slots; ++i) {
        const F32 weight = exp<V>(V::sub(logit(i), largest));
        weights = V::add(weights, weight);
        sum = V::fma(weight, load(a.values[i] + c, n), sum);
      }
      store(a.out + c, V::div(sum, weights), n);
    });
  }

  static RowKernels table() {
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
};

}  // namespace
}  // namespace levin::kernels
