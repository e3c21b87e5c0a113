// Sparse attention in plain C++: the oracle of the other sets.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cache_values.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

constexpr int64_t kBlock = 128;  // columns per block of a dot

int64_t scratch_bytes(const LatentFormat& /*format*/, int64_t /*n_lines*/) { return 0; }

// q . row over the concatenated row, in blocks of 128.
float dot(const AttentionJob& a, int64_t line, const std::byte* row) {
  const int64_t d_latent = a.format.d_latent, d = d_latent + a.format.d_rope;
  const int64_t latent = a.offset(line, a.q_latent_strides), rope = a.offset(line, a.q_rope_strides);
  float total = 0;
  for (int64_t begin = 0; begin < d; begin += kBlock) {
    float block = 0;
    for (int64_t i = begin; i < std::min(begin + kBlock, d); ++i) {
      const float q = i < d_latent ? query_value(a.q_latent, a.q_dtype, latent + i)
                                   : query_value(a.q_rope, a.q_dtype, rope + i - d_latent);
      block = std::fma(q, latent_value(a.format, row, i), block);
    }
    total += block;
  }
  return total;
}

struct Softmax {
  float m = -std::numeric_limits<float>::infinity();  // an integer
  float sum = 0;

  // Turns the tile's scores u[0 .. n-1] into weights and returns the factor for what was summed before.
  float step(float* u, int64_t n) {
    float largest = m;
    for (int64_t j = 0; j < n; ++j) largest = std::max(largest, std::ceil(u[j]));
    const float factor = exp2_or_zero<OneLane>(m - largest);
    float partial[16] = {};
    for (int64_t j = 0; j < n; ++j) {
      const float whole = std::ceil(u[j]);
      const float p = exp2_fraction<OneLane>(u[j] - whole) * exp2_or_zero<OneLane>(whole - largest);
      u[j] = p < 0x1p-126f ? 0.0f : p;
      partial[j % 16] += u[j];
    }
    for (int half = 8; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) partial[j] += partial[j + half];
    }
    sum = sum * factor + partial[0];
    m = largest;
    return factor;
  }
};

void attend_line(const AttentionJob& a, int64_t line) {
  const int64_t d_value = a.format.d_value(), n_seen = a.n_seen[line / a.n_heads];
  float* out = a.out + a.offset(line, a.out_strides);
  std::fill(out, out + d_value, 0.0f);
  Softmax softmax;
  for (int64_t begin = 0; begin < n_seen; begin += kCandidateTile) {
    const int64_t n = std::min(kCandidateTile, n_seen - begin);
    float p[kCandidateTile];
    for (int64_t j = 0; j < n; ++j) p[j] = dot(a, line, a.row(begin + j)) * a.scale_log2;
    const float factor = softmax.step(p, n);
    for (int64_t v = 0; v < d_value; ++v) {
      float sum = out[v] * factor;
      for (int64_t j = 0; j < n; ++j) sum = std::fma(p[j], latent_value(a.format, a.row(begin + j), v), sum);
      out[v] = sum;
    }
  }
  if (n_seen == 0) return;
  float factor = 1;
  if (a.sink != nullptr) {
    float u = a.sink[line % a.n_heads] * kLog2E;
    factor = softmax.step(&u, 1);
  }
  for (int64_t v = 0; v < d_value; ++v) out[v] = out[v] * factor / softmax.sum;
}

void attend(const AttentionJob& a) {
  for (int64_t line = 0; line < a.n_lines(); ++line) attend_line(a, line);
}

}  // namespace

AttentionKernels attention_kernels_plain() { return {.scratch_bytes = scratch_bytes, .attend = attend}; }

}  // namespace levin::kernels
