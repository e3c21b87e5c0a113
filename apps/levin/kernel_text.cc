#include "apps/levin/kernel_text.h"

#include <fmt/core.h>

namespace levin::app {

std::string kernel_text(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain: portable C++, products one fused multiply-add at a time";
    case Isa::kAvx2:
      return "avx2: all products by VFMADD231PS on 8 lanes; bf16 and fp8 values as f32";
    case Isa::kAvx512:
      return "avx512: all products by VFMADD231PS on 16 lanes; bf16 and fp8 values as f32";
    case Isa::kAvx512Bf16:
      return "avx512-bf16: bf16 and fp8 products by VDPBF16PS on 16 lanes, f32 products by VFMADD231PS";
    case Isa::kAmxBf16:
      return "amx-bf16: bf16 and fp8 products by TDPBF16PS on tiles of 16 x 16, f32 products by VFMADD231PS";
  }
  return "unknown";
}

}  // namespace levin::app
