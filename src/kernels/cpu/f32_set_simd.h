// The kernels of matmul.h for a set that takes every product in f32.
#pragma once

#include "kernels/cpu/matmul_simd.h"
#include "kernels/cpu/round_simd.h"

namespace levin::kernels {
namespace {

template <class V>
MatmulKernels f32_kernels() {
  MatmulKernels kernels = round_kernels<V>();
  kernels.operand_dtype = [](DType, DType) { return DType::kF32; };
  kernels.prepare = prepare_f32<V>;
  kernels.product = product_f32<V>;
  return kernels;
}

}  // namespace
}  // namespace levin::kernels
