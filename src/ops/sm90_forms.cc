// The forms that the tuned kernels for Hopper (kernels/cuda) take. What an op's arguments must look like beyond its form,
// its backend arranges by copies, so that nothing else decides; tests hold these limits to those of the kernels.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "ops/kernel_registry.h"

namespace levin {
namespace {

constexpr int64_t kLatent = 512, kRope = 64, kIndex = 128;  // columns of cache rows and keys
constexpr int64_t kMaxTopk = 2048;
constexpr int64_t kMaxHeads = 128;
constexpr int64_t kMaxExperts = 512, kMaxActive = 16, kMaxGroups = 32;

std::string latent_rows(const OpForm& f) {
  const LatentFormat rows = f.rows.value_or(LatentFormat{});
  if (rows.dtype != CacheDType::kFp8) return fmt::format("cache rows are {}, it has fp8", cache_dtype_name(rows.dtype));
  if (rows.rope_in_value) return "cache rows are keys and values at once, it has latent rows";
  if (rows.d_latent == kLatent && rows.d_rope == kRope) return {};
  return fmt::format("cache rows are {} + {} wide, it has {} + {}", rows.d_latent, rows.d_rope, kLatent, kRope);
}

std::string index_keys(const OpForm& f) {
  const IndexKeyFormat keys = f.keys.value_or(IndexKeyFormat{});
  if (keys.dtype != CacheDType::kFp8) return fmt::format("keys are {}, it has fp8", cache_dtype_name(keys.dtype));
  if (f.fp4) return "keys are rounded to fp4 first";
  return keys.d_index == kIndex ? "" : fmt::format("keys are {} wide, it has {}", keys.d_index, kIndex);
}

std::string topk(const OpForm& f) {
  if (f.n_topk >= 64 && f.n_topk <= kMaxTopk && f.n_topk % 64 == 0) return {};
  return fmt::format("it selects a multiple of 64 up to {}, not {}", kMaxTopk, f.n_topk);
}

std::string index_topk(const OpForm& f) {
  if (std::string why = index_keys(f); !why.empty()) return why;
  constexpr std::array<int64_t, 3> kHeads = {16, 32, 64};
  if (std::ranges::find(kHeads, f.n_heads) == kHeads.end())
    return fmt::format("it has 16, 32 or 64 heads, not {}", f.n_heads);
  return topk(f);
}

std::string sparse_attention(const OpForm& f) {
  if (std::string why = latent_rows(f); !why.empty()) return why;
  if (f.other_rows) return "it has selected rows of one cache, and no sinks";
  if (f.n_heads < 1 || f.n_heads > kMaxHeads) return fmt::format("it has 1 to {} heads, not {}", kMaxHeads, f.n_heads);
  return topk(f);
}

std::string e4m3_weights(const OpForm& f) {
  if (!f.weights) return "matrices are stored in several types";
  if (*f.weights != DType::kF8E4M3) return fmt::format("weights are {}, it has f8_e4m3", dtype_name(*f.weights));
  return f.fp8_input ? "" : "inputs are not rounded to e4m3";
}

// Of f32 rows, dense and per head.
std::string f32_matmul(const OpForm& f) {
  if (!f.weights) return "matrices are stored in several types";
  const bool has_type = *f.weights == DType::kF32 || *f.weights == DType::kBF16 || *f.weights == DType::kF8E4M3;
  if (!has_type) return fmt::format("weights are {}, it has f8_e4m3, bf16 and f32", dtype_name(*f.weights));
  const int64_t multiple = 16 / dtype_bytes(*f.weights);
  if (f.k % multiple == 0) return {};
  return fmt::format("it has K a multiple of {} for {}, not {}", multiple, dtype_name(*f.weights), f.k);
}

std::string matmul(const OpForm& f) {
  if (!f.fp8_input) return f32_matmul(f);
  if (std::string why = e4m3_weights(f); !why.empty()) return why;
  if (f.n % 8 == 0 && f.k % 16 == 0) return {};
  return fmt::format("it has N a multiple of 8 and K of 16, not [{}, {}]", f.n, f.k);
}

std::string ffn(const OpForm& f) {
  if (std::string why = e4m3_weights(f); !why.empty()) return why;
  if (f.n % 16 == 0 && f.k % 16 == 0) return {};
  return fmt::format("widths are multiples of 16 there, not {} and {}", f.n, f.k);
}

std::string experts(const OpForm& f) {
  if (f.n_experts <= kMaxExperts && f.n_active <= kMaxActive) return {};
  return fmt::format("it has up to {} of {} experts", kMaxActive, kMaxExperts);
}

std::string expert_ffn(const OpForm& f) {
  if (std::string why = ffn(f); !why.empty()) return why;
  if (f.weigh_hidden) return "experts' weights multiply what goes into their down product";
  return experts(f);
}

std::string route_experts(const OpForm& f) {
  if (f.other_scores) return "it has sigmoid scores alone";
  if (f.n_groups > kMaxGroups) return fmt::format("it has up to {} groups of experts, not {}", kMaxGroups, f.n_groups);
  return experts(f);
}

std::string f32_rows(const OpForm&) { return "rows between ops are f32, it writes bf16 or e4m3"; }

struct Limits {
  std::string_view op;
  std::string (*why_not)(const OpForm&);
};
constexpr Limits kLimits[] = {{"norm_rows", f32_rows},
                              {"rotate_queries", f32_rows},
                              {"write_latent", latent_rows},
                              {"index_queries", index_keys},
                              {"write_index_keys", index_keys},
                              {"index_topk", index_topk},
                              {"sparse_attention", sparse_attention},
                              {"matmul", matmul},
                              {"matmul_per_head", f32_matmul},
                              {"route_experts", route_experts},
                              {"ffn", ffn},
                              {"expert_ffn", expert_ffn}};

}  // namespace

std::vector<std::string_view> sm90_ops() {
  std::vector<std::string_view> ops;
  for (const Limits& limits : kLimits) {
    if (limits.why_not != f32_rows) ops.push_back(limits.op);
  }
  return ops;
}

std::string why_not_sm90(const OpForm& form) {
  const auto limits = std::ranges::find(kLimits, form.op, &Limits::op);
  return limits == std::end(kLimits) ? "it has no kernel for this op" : limits->why_not(form);
}

}  // namespace levin
