#include "kernels/cpu/kernels.h"

#include <array>

namespace levin::kernels {

const CpuKernels& cpu_kernels(Isa isa) {
  static const std::array<CpuKernels, 4> kSets = {{
      {
          .isa = Isa::kPlain,
      },
      {
          .isa = Isa::kAvx2,
      },
      {
          .isa = Isa::kAvx512,
      },
      {
          .isa = Isa::kAvx512Bf16,
      },
  }};
  return kSets[static_cast<size_t>(isa)];
}

}  // namespace levin::kernels
