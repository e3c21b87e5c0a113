// graph_condition.h: one block.
#include "kernels/cuda/plain/graph_condition.h"
#include "kernels/cuda/plain/launch.cuh"

namespace levin::cuda::plain {
namespace {

__global__ void has_rows_kernel(HasRows a) {
  follow_earlier_kernels();
  bool found = false;
  for (int64_t t = threadIdx.x; t < a.n; t += blockDim.x) found |= a.seq[t] >= 0;
  found = __syncthreads_or(found) != 0;
  if (threadIdx.x == 0) cudaGraphSetConditional(a.condition, found ? 1 : 0);
}

}  // namespace

void set_if_has_rows(const HasRows& a, StreamHandle stream) { start(has_rows_kernel, {}, stream, a); }

}  // namespace levin::cuda::plain
