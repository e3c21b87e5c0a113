// gemm_f32 with f32 weights, sm_90a: the instances of gemm_f32_sm90.cuh.
#include "kernels/cuda/gemm/gemm_f32_sm90.cuh"

namespace levin::cuda {

void gemm_f32_f32(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  gemm_f32_kernel::launch_tile<gemm_f32_kernel::F32Weight, kF32Tiles>(a, plan, stream);
}

}  // namespace levin::cuda
