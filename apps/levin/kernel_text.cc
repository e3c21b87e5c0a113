#include "apps/levin/kernel_text.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

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

std::string kernels_by_op_text(const KernelSet& set) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> kernels;  // with their ops
  for (const KernelRow& row : set.rows) {
    const auto same = [&](const auto& kernel) { return kernel.first == row.name; };
    auto kernel = std::ranges::find_if(kernels, same);
    if (kernel == kernels.end()) kernel = kernels.insert(kernels.end(), {row.name, {}});
    kernel->second.push_back(row.op);
  }
  std::string text;
  for (const auto& [name, ops] : kernels) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, fmt::join(ops, ", "));
  }
  return text;
}

}  // namespace levin::app
