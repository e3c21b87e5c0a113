#include "ops/kernel_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace levin {
namespace {

// ---- what kernels take ----

bool has_fp8_keys(const OpForm& f) { return f.keys && f.keys->dtype == CacheDType::kFp8; }

// Heads of an indexer on their way to its keys' type, on the CPU and in plain CUDA alike.
std::string index_heads(const OpForm& f) {
  if (!f.keys) return {};
  if (has_fp8_keys(f) && f.keys->d_index > kQuantBlock) {
    return fmt::format("fp8 keys have one scale, which {} columns share at most", kQuantBlock);
  }
  if (f.hadamard && !std::has_single_bit(static_cast<uint64_t>(f.keys->d_index))) {
    return fmt::format("the Hadamard rotation takes a power of two, not {} columns", f.keys->d_index);
  }
  return {};
}

constexpr int64_t kMostStreams = 16;  // that kernels keep in registers (kernels/cpu/rows.h)
std::string streams(const OpForm& f) {
  if (f.n_streams <= kMostStreams) return {};
  return fmt::format("{} residual streams at most, not {}", kMostStreams, f.n_streams);
}

// ---- what there is ----

// The parts of the CPU's kernel sets (kernels/cpu/kernels.h), by what a set's part is called.
struct CpuParts {
  std::string products, rows, index, attention;
};

CpuParts parts_of(Isa isa) {
  const std::string set(isa_name(isa));
  CpuParts parts{.products = set, .rows = set, .index = set, .attention = set};
  if (isa == Isa::kAvx512 && cpu_info().avx512_vbmi) parts.products = "avx512-vbmi";
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAmxBf16) parts.rows = std::string(isa_name(Isa::kAvx512));
  return parts;
}

KernelSet set_of(std::string name, const CpuParts& parts) {
  return {.name = std::move(name),
          .rows = {{"norm_rows", parts.rows},
                   {"rotate_queries", parts.rows},
                   {"write_latent", parts.rows},
                   {"index_queries", parts.rows, index_heads},
                   {"write_index_keys", parts.rows, index_heads},
                   {"index_topk", parts.index, index_heads},
                   {"expand_topk", parts.index},
                   {"sparse_attention", parts.attention},
                   {"matmul", parts.products},
                   {"matmul_per_head", parts.products},
                   {"route_experts", parts.rows},
                   {"ffn", parts.products},
                   {"expert_ffn", parts.products},
                   {"stream_weights", parts.rows, streams},
                   {"read_streams", parts.rows, streams},
                   {"mean_streams", parts.rows, streams},
                   {"write_streams", parts.rows, streams},
                   {"pool_windows", parts.rows},
                   {"short_conv", parts.rows},
                   {"delta_rule", parts.rows},
                   {"sigmoid_mul", parts.rows}}};
}

}  // namespace

std::string OpForm::describe() const {
  std::vector<std::string> parts;
  if (n_heads > 0) parts.push_back(fmt::format("{} heads", n_heads));
  if (rows)
    parts.push_back(fmt::format("{} rows of {} + {}", cache_dtype_name(rows->dtype), rows->d_latent, rows->d_rope));
  if (keys) parts.push_back(fmt::format("{} keys of {}", cache_dtype_name(keys->dtype), keys->d_index));
  if (n_topk > 0) parts.push_back(fmt::format("top-k {}", n_topk));
  if (n_experts > 0) {
    const std::string groups = n_groups > 1 ? fmt::format(" in {} groups", n_groups) : "";
    parts.push_back(fmt::format("{} of {} experts{}", n_active, n_experts, groups));
  }
  if (n_streams > 0) parts.push_back(fmt::format("{} streams", n_streams));
  return parts.empty() ? std::string(op) : fmt::format("{} of {}", op, fmt::join(parts, ", "));
}

KernelSet cpu_kernel_set(Isa isa) { return set_of(std::string(isa_name(isa)), parts_of(isa)); }

KernelSet cuda_kernel_set() {
  const std::string name(cuda::kernel_set_name(cuda::KernelSet::kPlain));
  return set_of(name, {.products = name, .rows = name, .index = name, .attention = name});
}

Result<std::vector<ChosenKernel>> choose_kernels(const KernelSet& set, std::span<const OpForm> forms) {
  std::vector<ChosenKernel> chosen;
  for (const OpForm& form : forms) {
    std::string reasons;
    const auto takes = [&](const KernelRow& row) {
      if (row.op != form.op) return false;
      const std::string reason = row.why_not == nullptr ? "" : row.why_not(form);
      if (!reason.empty()) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", row.name, reason);
      return reason.empty();
    };
    const auto row = std::ranges::find_if(set.rows, takes);
    if (row == set.rows.end()) {
      return Error{
          ErrorKind::kModelInvalid,
          fmt::format("no kernel of the set {} runs {} ({}); other --numerics or --kv-cache-dtype have other forms",
                      set.name, form.describe(), reasons.empty() ? "it has none for this op" : reasons)};
    }
    chosen.push_back({.form = form, .kernel = row->name});
  }
  return chosen;
}

}  // namespace levin
