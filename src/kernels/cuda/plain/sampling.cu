// sampling.h: a block a row.
#include "base/math_formulas.h"
#include "base/philox.h"
#include "kernels/cuda/plain/block_pieces.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/sampling.h"

namespace levin::cuda::plain {
namespace {

constexpr int kRowThreads = 512;
constexpr int kLogSumPartials = 16;
constexpr double kGreedyTemperature = 1e-5;

// The best of value(0 .. n-1), in all threads.
template <class T, class Value>
__device__ Ranked<T> best_of_row(int64_t n, const Value& value) {
  Ranked<T> best{0, -1};
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) best = better(best, Ranked<T>{value(v), v});
  return best_of_block<kRowThreads>(best);
}

__device__ bool has_nan(const float* x, int64_t n) {
  bool nan = false;
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) nan = nan || x[v] != x[v];
  return __syncthreads_or(nan) != 0;
}

// Writes a row's token, or its fault.
__device__ void choose(int64_t index, bool nan, int32_t* out, int32_t* fault) {
  if (threadIdx.x != 0) return;
  if (nan && fault != nullptr) atomicOr(fault, kNanLogit);
  *out = nan ? 0 : static_cast<int32_t>(index);
}

__global__ void argmax_kernel(Argmax a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  const float* x = a.logits.x + t * a.logits.ld;
  const bool nan = has_nan(x, a.logits.n_vocab);
  const Ranked<float> best = best_of_row<float>(a.logits.n_vocab, [&](int64_t v) { return x[v]; });
  choose(best.index, nan, a.out + t, a.fault == nullptr ? nullptr : a.fault + t);
}

__global__ void log_sum_exp_kernel(LogSumExp a) {
  follow_earlier_kernels();
  __shared__ double term[kRowThreads], partial[kLogSumPartials];
  const int64_t t = blockIdx.x, n = a.logits.n_vocab;
  const float* x = a.logits.x + t * a.logits.ld;
  const double largest = best_of_row<float>(n, [&](int64_t v) { return x[v]; }).value;
  const int p = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t first = 0; first < n; first += kRowThreads) {
    __syncthreads();
    if (first + p < n) term[p] = exp_of(x[first + p] - largest);
    __syncthreads();
    const int n_terms = static_cast<int>(n - first < kRowThreads ? n - first : kRowThreads);
    for (int i = p; p < kLogSumPartials && i < n_terms; i += kLogSumPartials) sum += term[i];
  }
  if (p < kLogSumPartials) partial[p] = sum;
  for (int half = kLogSumPartials / 2; half > 0; half /= 2) {
    __syncthreads();
    if (p < half) partial[p] += partial[p + half];
  }
  if (p == 0) a.out[t] = largest + log_of(partial[0]);
}
static_assert(kRowThreads % kLogSumPartials == 0, "every turn begins with sum 0");

__device__ double noise(const ChoiceRule& rule, int64_t v) {
  const PhiloxBlock bits = philox4x32_10({static_cast<uint32_t>(v / 4), rule.position, rule.choice, 0},
                                         {static_cast<uint32_t>(rule.seed), static_cast<uint32_t>(rule.seed >> 32)});
  const double u = (static_cast<double>(bits[v % 4]) + 0.5) * 0x1p-32;
  return -log_of(-log_of(u));
}

// No noise is larger: decode/noise.h.
constexpr double kMaxGumbelNoise = 22.8739;

// Only what can come up to the largest logit with its noise is given its own, which takes two logarithms.
__device__ int64_t token_of_row(const float* x, int64_t n, const ChoiceRule& rule, const Ranked<float>& largest) {
  if (rule.temperature < kGreedyTemperature) return largest.index;
  const double bound = largest.value / rule.temperature + noise(rule, largest.index);
  Ranked<double> best{0, -1};
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) {
    const double scaled = x[v] / rule.temperature;
    if (scaled + kMaxGumbelNoise >= bound) best = better(best, Ranked<double>{scaled + noise(rule, v), v});
  }
  return best_of_block<kRowThreads>(best).index;
}

// The probability of the largest logit; in thread 0.
__device__ float probability_of(const float* x, int64_t n, float largest) {
  __shared__ float sum[kRowThreads];
  float mine = 0;
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) mine += expf(x[v] - largest);
  sum[threadIdx.x] = mine;
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sum[threadIdx.x] += sum[threadIdx.x + half];
  }
  return 1 / sum[0];
}

__global__ void choose_kernel(ChooseTokens a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x, n = a.logits.n_vocab;
  const float* x = a.logits.x + t * a.logits.ld;
  bool wrong = false;  // NaN or +infinity
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) wrong = wrong || !(x[v] < INFINITY);
  const Ranked<float> largest = best_of_row<float>(n, [&](int64_t v) { return x[v]; });
  if (__syncthreads_or(wrong) != 0 || largest.value == -INFINITY) {
    if (threadIdx.x == 0) a.out[t] = {};
    return;
  }
  const int64_t token = token_of_row(x, n, a.rules[t], largest);
  const float probability = probability_of(x, n, largest.value);
  if (threadIdx.x == 0) a.out[t] = {static_cast<int32_t>(token), 1, probability, 0};
}

}  // namespace

void argmax(const Argmax& a, StreamHandle stream) {
  start(argmax_kernel, {.x = a.logits.n_rows, .threads = kRowThreads}, stream, a);
}
void log_sum_exp(const LogSumExp& a, StreamHandle stream) {
  start(log_sum_exp_kernel, {.x = a.logits.n_rows, .threads = kRowThreads}, stream, a);
}
void choose_tokens(const ChooseTokens& a, StreamHandle stream) {
  start(choose_kernel, {.x = a.logits.n_rows, .threads = kRowThreads}, stream, a);
}

}  // namespace levin::cuda::plain
