#include "kernels/cpu/kernels.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace levin::kernels {
namespace {

// LEVIN_ISA_<SET> is defined for each set of this build but the plain one (CMakeLists.txt).
CpuKernels make_set(Isa isa) {
  switch (isa) {
#ifdef LEVIN_ISA_AVX2
    case Isa::kAvx2:
      return {
          .isa = isa,
          .matmul = matmul_kernels_avx2(),
          .rows = row_kernels_avx2(),
          .index = index_kernels_avx2(),
          .attention = attention_kernels_avx2(),
      };
#endif
#ifdef LEVIN_ISA_AVX512
    case Isa::kAvx512:
      return {
          .isa = isa,
          .matmul = cpu_info().avx512_vbmi ? matmul_kernels_avx512_vbmi() : matmul_kernels_avx512(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_avx512(),
          .attention = attention_kernels_avx512(),
      };
#endif
#ifdef LEVIN_ISA_AVX512_BF16
    case Isa::kAvx512Bf16:
      return {
          .isa = isa,
          .matmul = matmul_kernels_avx512_bf16(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_avx512_bf16(),
          .attention = attention_kernels_avx512_bf16(),
      };
#endif
#ifdef LEVIN_ISA_AMX_BF16
    case Isa::kAmxBf16:
      return {
          .isa = isa,
          .matmul = matmul_kernels_amx_bf16(),
          .rows = row_kernels_avx512(),
          .index = index_kernels_amx_bf16(),
          .attention = attention_kernels_amx_bf16(),
      };
#endif
    default:
      LEVIN_CHECK(isa == Isa::kPlain, "cpu_kernels: kernel set {} is none of this build", isa_name(isa));
      return {
          .isa = isa,
          .matmul = matmul_kernels_plain(),
          .rows = row_kernels_plain(),
          .index = index_kernels_plain(),
          .attention = attention_kernels_plain(),
      };
  }
}

}  // namespace

// Sets of newer processors are not even listed: the functions that list them are compiled for those processors too.
const CpuKernels& cpu_kernels(Isa isa) {
  static const std::vector<CpuKernels> kSets = [] {
    std::vector<CpuKernels> sets;
    for (const Isa usable : usable_isas()) sets.push_back(make_set(usable));
    return sets;
  }();
  const auto set = std::ranges::find(kSets, isa, &CpuKernels::isa);
  LEVIN_CHECK(set != kSets.end(), "cpu_kernels: kernel set {} is none of those that can run here", isa_name(isa));
  return *set;
}

}  // namespace levin::kernels
