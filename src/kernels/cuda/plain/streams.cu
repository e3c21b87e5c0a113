// streams.h: the weights of a token by a thread, rows by a thread a column.
#include "kernels/cpu/rows.h"
#include "kernels/cuda/plain/f32_formulas.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/streams.h"

namespace levin::cuda::plain {
namespace {

using kernels::kMaxStreams;

// Row j of the mixing matrix, before it is balanced: softmax of its outputs, plus eps.
__device__ void softmax_row(const StreamWeights& a, const float* projected, int64_t j, float* mix) {
  const int64_t n = a.n_streams;
  float* row = mix + j * n;
  float largest = -INFINITY, sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t at = 2 * n + j * n + k;
    row[k] = __fmaf_rn(projected[at], a.scale[2], a.base[at]);
    largest = k == 0 || largest < row[k] ? row[k] : largest;
  }
  for (int64_t k = 0; k < n; ++k) sum += row[k] = exp_f32(row[k] - largest);
  for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + a.eps;
}

// Divides each of n lines of n elements by its sum plus eps.
__device__ void normalize_lines(float* mix, int64_t n, int64_t line_stride, int64_t element_stride, float eps) {
  for (int64_t line = 0; line < n; ++line) {
    float* x = mix + line * line_stride;
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i * element_stride];
    for (int64_t i = 0; i < n; ++i) x[i * element_stride] /= sum + eps;
  }
}

__global__ void weights_kernel(StreamWeights a) {
  follow_earlier_kernels();
  const int64_t t = flat_index(), n = a.n_streams;
  if (t >= a.n_rows) return;
  const float* projected = a.projected + t * (a.write == nullptr ? n : 2 * n + n * n);
  const auto output = [&](int64_t i, int64_t scale) { return __fmaf_rn(projected[i], a.scale[scale], a.base[i]); };
  for (int64_t i = 0; i < n; ++i) a.read[t * n + i] = sigmoid_f32(output(i, 0)) + a.eps;
  if (a.write == nullptr) return;
  for (int64_t i = 0; i < n; ++i) a.write[t * n + i] = 2 * sigmoid_f32(output(n + i, 1));
  float* mix = a.mix + t * n * n;
  for (int64_t j = 0; j < n; ++j) softmax_row(a, projected, j, mix);
  normalize_lines(mix, n, 1, n, a.eps);  // columns
  for (int step = 1; step < a.n_sinkhorn_steps; ++step) {
    normalize_lines(mix, n, n, 1, a.eps);  // rows
    normalize_lines(mix, n, 1, n, a.eps);
  }
}

__global__ void read_kernel(ReadStreams a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  const float mean = 1.0f / static_cast<float>(a.n_streams);
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    float sum = 0;
    for (int64_t j = 0; j < a.n_streams; ++j) {
      const float weight = a.read == nullptr ? mean : a.read[t * a.n_streams + j];
      sum = __fmaf_rn(weight, a.streams[(t * a.n_streams + j) * a.d + i], sum);
    }
    a.out[t * a.out_ld + i] = sum;
  }
}

__global__ void write_kernel(WriteStreams a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, n = a.n_streams;
  float* streams = a.streams + t * n * a.d;
  const float* mix = a.mix + t * n * n;
  for (int64_t i = threadIdx.x; i < a.d; i += blockDim.x) {
    float before[kMaxStreams];
    for (int64_t j = 0; j < n; ++j) before[j] = streams[j * a.d + i];
    for (int64_t k = 0; k < n; ++k) {
      float sum = 0;
      for (int64_t j = 0; j < n; ++j) sum = __fmaf_rn(mix[j * n + k], before[j], sum);
      streams[k * a.d + i] = __fmaf_rn(a.write[t * n + k], a.y[t * a.y_ld + i], sum);
    }
  }
}

}  // namespace

void stream_weights(const StreamWeights& a, StreamHandle stream) {
  start(weights_kernel, {.x = div_up(a.n_rows, 32), .threads = 32}, stream, a);
}
void read_streams(const ReadStreams& a, StreamHandle stream) { start(read_kernel, {.x = a.n_rows}, stream, a); }
void write_streams(const WriteStreams& a, StreamHandle stream) { start(write_kernel, {.x = a.n_rows}, stream, a); }

}  // namespace levin::cuda::plain
