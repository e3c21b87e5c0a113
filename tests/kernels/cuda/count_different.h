// How two arrays on the device differ, found there: outputs of hundreds of megabytes need not come to the host.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace levin::cuda {

// Adds the number of 32-bit words in which a and b, of n words, differ to *n_different. All of the device.
void count_different(const void* a, const void* b, int64_t n, unsigned long long* n_different, CUstream_st* stream);

}  // namespace levin::cuda
