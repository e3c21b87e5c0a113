// Which kernels run, in words.
#pragma once

#include <string>

#include "base/cpu.h"
#include "ops/kernel_registry.h"

namespace levin::app {

// "avx512-bf16: f32 products by VFMADD231PS, ..., bf16 and fp8 products by VDPBF16PS"
std::string kernel_text(Isa isa);

// "avx512: norm_rows, ...; avx512-vbmi: matmul, ...", of the kernels that are asked first.
std::string kernels_by_op_text(const KernelSet& set);

}  // namespace levin::app
