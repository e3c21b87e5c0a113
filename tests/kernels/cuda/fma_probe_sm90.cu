#include "fma_probe.h"

namespace levin::cuda {
namespace {

__global__ void probe_kernel(const FmaTerms* terms, FmaResults* results) {
  const FmaTerms t = *terms;
  results->apart = t.a * t.b + t.c;
  results->fused = fmaf(t.a, t.b, t.c);
}

}  // namespace

void probe_fma(const FmaTerms* terms, FmaResults* results, CUstream_st* stream) {
  probe_kernel<<<1, 1, 0, stream>>>(terms, results);
}

}  // namespace levin::cuda
