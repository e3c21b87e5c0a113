// settle_nan_rows (topk.h): a block a row, which reads its scores only if the selection met a NaN in any row.
#include <algorithm>

#include "kernels/cuda/index/topk.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) settle_nan_rows_kernel(const __grid_constant__ NanRows a) {
  launch_dependents();
  grid_dependency_wait();
  if (*a.any == 0) return;
  const int64_t r = blockIdx.x, request = r / a.n_tokens, token = r % a.n_tokens;
  const int64_t begin = a.begin != nullptr ? a.begin[r] : a.first;
  const int64_t length = a.lengths.data[request * a.lengths.request_stride + token * a.lengths.token_stride];
  const int64_t end = length < a.max_length ? length : a.max_length;
  if (end - begin <= a.n_topk) return;  // takes them all, unread
  bool nan = false;
  for (int64_t s = begin + threadIdx.x; s < end; s += kThreads) {
    const float score = a.score[r * a.score_stride + s];
    nan = nan || score != score;
  }
  if (__syncthreads_or(nan) == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < a.n_topk; i += kThreads)
    a.topk[r * a.n_topk + i] = static_cast<int32_t>(begin) + i;
  if (threadIdx.x == 0 && a.fault != nullptr) a.fault[r] |= a.fault_bit;
}

}  // namespace

void settle_nan_rows(const NanRows& a, StreamHandle stream) {
  if (a.n_rows == 0) return;
  Launch l;
  l.grid = dim3(static_cast<unsigned>(a.n_rows));
  l.block = dim3(kThreads);
  l.pdl = true;
  l.stream = stream;
  launch_kernel(settle_nan_rows_kernel, l, a);
}

}  // namespace levin::cuda
