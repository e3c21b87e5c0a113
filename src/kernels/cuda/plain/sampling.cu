// sampling.h. argmax: a block a row. choose_tokens: a block a part of a row, whose logits it reads once, or twice for a choice with
// noise; then a thread a row, which merges its parts.
#include "base/math_formulas.h"
#include "base/philox.h"
#include "kernels/cuda/plain/block_pieces.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/sampling.h"

namespace levin::cuda::plain {
namespace {

constexpr int kRowThreads = 1024;
constexpr int kAtOnce = 16;  // logits that a thread has under way: a row, or part, is read by one SM, as fast as it can
constexpr float kLog2E = 1.4426950408889634f;

// use(logits, first, n): so many of this thread's logits of a row, of ids first, first + kRowThreads, ...
template <class Use>
__device__ void for_some_logits(const float* x, int64_t n_vocab, const Use& use) {
  for (int64_t first = threadIdx.x; first < n_vocab; first += kAtOnce * kRowThreads) {
    const int64_t left = (n_vocab - first + kRowThreads - 1) / kRowThreads;
    const int n = static_cast<int>(left < kAtOnce ? left : kAtOnce);
    float some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) some[i] = i < n ? x[first + i * kRowThreads] : 0.0f;
    use(some, first, n);
  }
}

// use(logit, id) for each of this thread's.
template <class Use>
__device__ void for_each_logit(const float* x, int64_t n_vocab, const Use& use) {
  for_some_logits(x, n_vocab, [&](const float(&some)[kAtOnce], int64_t first, int n) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (i < n) use(some[i], first + i * kRowThreads);
  });
}

// Writes a row's token, or its fault.
__device__ void choose(int64_t index, bool nan, int32_t* out, int32_t* fault) {
  if (threadIdx.x != 0) return;
  if (nan && fault != nullptr) atomicOr(fault, kNanLogit);
  *out = nan ? 0 : static_cast<int32_t>(index);
}

__global__ void __launch_bounds__(kRowThreads) argmax_kernel(Argmax a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  const float* x = a.logits.x + t * a.logits.ld;
  bool nan = false;
  Ranked<float> mine{0, -1};
  for_each_logit(x, a.logits.n_vocab, [&](float logit, int64_t v) {
    nan = nan || logit != logit;
    mine = better(mine, Ranked<float>{logit, v});
  });
  nan = __syncthreads_or(nan) != 0;
  const Ranked<float> best = best_of_block<kRowThreads>(mine);
  choose(best.index, nan, a.out + t, a.fault == nullptr ? nullptr : a.fault + t);
}

__device__ double noise(const ChoiceRule& rule, int64_t v) {
  const PhiloxBlock bits = philox4x32_10({static_cast<uint32_t>(v / 4), rule.position, rule.choice, 0},
                                         {static_cast<uint32_t>(rule.seed), static_cast<uint32_t>(rule.seed >> 32)});
  const double u = (static_cast<double>(bits[v % 4]) + 0.5) * 0x1p-32;
  return -log_of(-log_of(u));
}

// No noise is larger: decode/noise.h.
constexpr double kMaxGumbelNoise = 22.8739;

// A block's part of a row.
struct RowPart {
  const float* x;
  int64_t first_id, n;

  __device__ RowPart(const Logits& logits, int64_t row, int part) {
    const int64_t most = (logits.n_vocab + kChoiceParts - 1) / kChoiceParts, left = logits.n_vocab - part * most;
    first_id = part * most;
    n = left < 0 ? 0 : left < most ? left : most;
    x = logits.x + row * logits.ld + first_id;
  }
};

// Only what can come up to the largest logit with its noise is given its own, which takes two logarithms.
__device__ Ranked<double> choice_of(const RowPart& part, const ChoiceRule& rule, const Ranked<float>& largest) {
  if (rule.temperature < kGreedyTemperature) return {largest.value, largest.index};
  const double bound = largest.value / rule.temperature + noise(rule, largest.index);
  Ranked<double> best{0, -1};
  for_each_logit(part.x, part.n, [&](float logit, int64_t i) {
    const double scaled = logit / rule.temperature;
    const int64_t id = part.first_id + i;
    if (scaled + kMaxGumbelNoise >= bound) best = better(best, Ranked<double>{scaled + noise(rule, id), id});
  });
  return best_of_block<kRowThreads>(best);
}

// A thread's logits, read once. Few instructions for each: a row is one SM's.
struct LogitSums {
  float maximum = -INFINITY;  // of all but NaN
  int64_t first = -1;         // the first of those that were read together with the first such one
  float sum = 0;              // of exp(logit - maximum), NaN if a logit is

  __device__ void add(const float (&some)[kAtOnce], int64_t first_id, int n) {
    float largest = maximum;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (i < n) largest = fmaxf(largest, some[i]);
    if (largest > maximum) {
      sum *= exp2f((maximum - largest) * kLog2E);
      maximum = largest;
      first = first_id;
    }
    const float shift = maximum == -INFINITY ? 0.0f : maximum * kLog2E;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (i < n) sum += exp2f(__fmaf_rn(some[i], kLog2E, -shift));
  }
};

// The largest of all threads' in all threads.
__device__ float largest_of_block(float mine) {
  __shared__ float of_warp[kRowThreads / 32];
  for (int step = 16; step > 0; step /= 2) mine = fmaxf(mine, __shfl_xor_sync(0xffffffff, mine, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  float largest = of_warp[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  return largest;
}

// The lowest id of the part's largest logit, in all threads.
__device__ int64_t id_of(float largest, const LogitSums& mine, const RowPart& part) {
  int64_t at = mine.maximum == largest ? mine.first : -1;
  while (at >= 0 && at < part.n && part.x[at] != largest) at += kRowThreads;
  const Ranked<float> own{largest, at};
  return part.first_id + best_of_block<kRowThreads>(own).index;
}

// A sum of exp(logit - of) as one of exp(logit - maximum).
__device__ float sum_from(float sum, float of, float maximum) {
  return of == -INFINITY ? sum : sum * exp2f((of - maximum) * kLog2E);
}

// The sum of all threads, relative to the largest of all; NaN if a logit is. In all threads.
__device__ float sum_of_block(const LogitSums& mine, float largest) {
  __shared__ float sum[kRowThreads];
  sum[threadIdx.x] = sum_from(mine.sum, mine.maximum, largest);
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sum[threadIdx.x] += sum[threadIdx.x + half];
  }
  __syncthreads();
  return sum[0];
}

__global__ void __launch_bounds__(kRowThreads) choose_in_parts_kernel(ChooseTokens a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.y;
  const RowPart part(a.logits, t, static_cast<int>(blockIdx.x));
  LogitSums mine;
  for_some_logits(part.x, part.n,
                  [&](const float(&some)[kAtOnce], int64_t first, int count) { mine.add(some, first, count); });
  const float maximum = largest_of_block(mine.maximum), sum = sum_of_block(mine, maximum);
  Ranked<double> best{0, -1};
  if (maximum != INFINITY && maximum != -INFINITY)
    best = choice_of(part, a.rules[t], {maximum, id_of(maximum, mine, part)});
  if (threadIdx.x == 0) a.parts[t * kChoiceParts + blockIdx.x] = {best.value, best.index, maximum, sum};
}

__global__ void merge_choices_kernel(ChooseTokens a) {
  follow_earlier_kernels();
  const int64_t t = flat_index();
  if (t >= a.logits.n_rows) return;
  ChoicePart parts[kChoiceParts];
#pragma unroll
  for (int i = 0; i < kChoiceParts; ++i) parts[i] = a.parts[t * kChoiceParts + i];
  float maximum = -INFINITY, sum = 0;
  Ranked<double> best{0, -1};
#pragma unroll
  for (const ChoicePart& part : parts) {
    maximum = fmaxf(maximum, part.maximum);
    best = better(best, Ranked<double>{part.value, part.id});
  }
#pragma unroll
  for (const ChoicePart& part : parts) sum += sum_from(part.sum, part.maximum, maximum);
  if (maximum == INFINITY || maximum == -INFINITY || sum != sum)
    a.out[t] = {};
  else
    a.out[t] = {static_cast<int32_t>(best.index), 1, fminf(1 / sum, kMostProbability), 0};
}

}  // namespace

void argmax(const Argmax& a, StreamHandle stream) {
  start(argmax_kernel, {.x = a.logits.n_rows, .threads = kRowThreads}, stream, a);
}
void choose_tokens(const ChooseTokens& a, StreamHandle stream) {
  start(choose_in_parts_kernel, {.x = kChoiceParts, .y = a.logits.n_rows, .threads = kRowThreads}, stream, a);
  start(merge_choices_kernel, {.x = div_up(a.logits.n_rows, kThreads)}, stream, a);
}

}  // namespace levin::cuda::plain
