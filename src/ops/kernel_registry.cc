#include "ops/kernel_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
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
  if (n_topk > 0) parts.push_back(keys ? fmt::format("top-k {}", n_topk) : fmt::format("{} indices", n_topk));
  if (n_experts > 0) {
    const std::string groups = n_groups > 1 ? fmt::format(" in {} groups", n_groups) : "";
    parts.push_back(fmt::format("{} of {} experts{}", n_active, n_experts, groups));
  }
  if (other_scores) parts.emplace_back("other scores than sigmoid");
  if (n > 0) {
    parts.push_back(fmt::format("{} [{}, {}]{}", weights ? dtype_name(*weights) : "several types", n, k,
                                fp8_input ? " by e4m3 rows" : ""));
  }
  if (n_streams > 0) parts.push_back(fmt::format("{} streams", n_streams));
  return parts.empty() ? std::string(op) : fmt::format("{} of {}", op, fmt::join(parts, ", "));
}

KernelSet cpu_kernel_set(Isa isa) { return set_of(std::string(isa_name(isa)), parts_of(isa)); }

KernelSet cuda_kernel_set(cuda::KernelSet which) {
  const std::string plain(cuda::kernel_set_name(cuda::KernelSet::kPlain));
  KernelSet set = set_of(plain, {.products = plain, .rows = plain, .index = plain, .attention = plain});
  if (which == cuda::KernelSet::kPlain) return set;
  set.name = cuda::kernel_set_name(which);
  std::vector<KernelRow> rows;
  for (const KernelRow& row : set.rows) rows.push_back({row.op, set.name, why_not_sm90});
  rows.insert(rows.end(), set.rows.begin(), set.rows.end());
  set.rows = std::move(rows);
  return set;
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
    chosen.push_back({.form = form, .kernel = row->name, .refused = std::move(reasons)});
  }
  return chosen;
}

std::vector<std::string> kernel_lines(std::span<const ChosenKernel> chosen) {
  struct Line {
    std::string kernel, refused, ops;
  };
  std::vector<Line> lines;
  std::map<std::pair<std::string_view, std::string_view>, int> counted;  // op and refusal: forms
  std::map<std::string_view, int> n_forms;
  for (const ChosenKernel& c : chosen) ++counted[{c.form.op, c.refused}], ++n_forms[c.form.op];
  for (const ChosenKernel& c : chosen) {
    int& n = counted[{c.form.op, c.refused}];
    if (n == 0) continue;  // named already
    const bool all = n == n_forms[c.form.op];
    const std::string text =
        all ? std::string(c.form.op) : fmt::format("{} ({} of {})", c.form.op, n, n_forms[c.form.op]);
    n = 0;
    const auto same = [&](const Line& l) { return l.kernel == c.kernel && l.refused == c.refused; };
    const auto line = std::ranges::find_if(lines, same);
    if (line == lines.end()) {
      lines.push_back({c.kernel, c.refused, text});
    } else {
      line->ops += ", " + text;
    }
  }
  std::ranges::stable_sort(lines, {}, [](const Line& l) { return !l.refused.empty(); });
  std::vector<std::string> out;
  for (const Line& l : lines) {
    out.push_back(fmt::format("{}: {}{}", l.kernel, l.ops, l.refused.empty() ? "" : fmt::format(" ({})", l.refused)));
  }
  return out;
}

}  // namespace levin
