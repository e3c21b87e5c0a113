// graph_condition.h: one thread.
#include "kernels/cuda/plain/graph_condition.h"
#include "kernels/cuda/plain/launch.cuh"

namespace levin::cuda::plain {
namespace {

__global__ void condition_kernel(cudaGraphConditionalHandle handle, const int32_t* value) {
  cudaGraphSetConditional(handle, *value != 0 ? 1 : 0);
}

}  // namespace

void set_condition(uint64_t handle, const int32_t* value, StreamHandle stream) {
  start(condition_kernel, {.threads = 1}, stream, static_cast<cudaGraphConditionalHandle>(handle), value);
}

}  // namespace levin::cuda::plain
