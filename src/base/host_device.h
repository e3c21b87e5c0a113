// Marks a pure function of a header that CUDA kernels share with the CPU, so that both have the same formula.
#pragma once

#ifdef __CUDACC__
#define LEVIN_HOST_DEVICE __host__ __device__
#else
#define LEVIN_HOST_DEVICE
#endif
