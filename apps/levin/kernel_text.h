// Which kernels run, in words.
#pragma once

#include <string>

#include "base/cpu.h"

namespace levin::app {

// "avx512-bf16: f32 products by VFMADD231PS, ..., bf16 and fp8 products by VDPBF16PS"
std::string kernel_text(Isa isa);

}  // namespace levin::app
