#include "kernels/cpu/kernels.h"

#include <array>

namespace levin::kernels {

const CpuKernels& cpu_kernels(Isa isa) {
  static const std::array<CpuKernels, 5> kSets = {{
      {
          .isa = Isa::kPlain,
          .matmul = matmul_kernels_plain(),
          .rows = row_kernels_plain(),
          .index = index_kernels_plain(),
          .attention = attention_kernels_plain(),
      },
      {
          .isa = Isa::kAvx2,
          .matmul = matmul_kernels_avx2(),
          .rows = row_kernels_avx2(),
          .index = index_kernels_avx2(),
          .attention = attention_kernels_avx2(),
      },
      {
          .isa = Isa::kAvx512,
          .matmul = cpu_info().avx512_vbmi ? matmul_kernels_avx512_vbmi() : matmul_kernels_avx512(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_avx512(),
          .attention = attention_kernels_avx512(),
      },
      {
          .isa = Isa::kAvx512Bf16,
          .matmul = matmul_kernels_avx512_bf16(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_avx512_bf16(),
          .attention = attention_kernels_avx512_bf16(),
      },
      {
          .isa = Isa::kAmxBf16,
          .matmul = matmul_kernels_amx_bf16(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_amx_bf16(),
          .attention = attention_kernels_amx_bf16(),
      },
  }};
  return kSets[static_cast<size_t>(isa)];
}

}  // namespace levin::kernels
