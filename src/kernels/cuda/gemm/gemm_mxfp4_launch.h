// Between gemm_mxfp4.cc, which checks, and the kernel, which trusts.
#pragma once

#include "kernels/cuda/gemm/gemm_mxfp4.h"

namespace levin::cuda {

void launch_gemm_mxfp4(const GemmMxfp4& a, int tile_rows, CUstream_st* stream);

}  // namespace levin::cuda
