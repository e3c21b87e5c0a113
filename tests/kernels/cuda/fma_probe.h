// A product and a sum on the device, written as two operations and as one.
#pragma once

struct CUstream_st;

namespace levin::cuda {

struct FmaTerms {
  float a, b, c;
};

struct FmaResults {
  float apart;  // a * b + c as the compiler makes it of two operators
  float fused;
};

// One thread; both pointers are of the device.
void probe_fma(const FmaTerms* terms, FmaResults* results, CUstream_st* stream);

}  // namespace levin::cuda
