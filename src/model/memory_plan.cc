#include "model/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/architecture.h"
#include "model/cache_layout.h"
#include "model/weight_table.h"
#include "ops/index_topk.h"
#include "ops/moe.h"
#include "tensor/formats.h"
#include "tensor/matrix.h"

namespace levin {
namespace {

using io::StoredDtype;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Whether BF16 holds FP8 values times these scales exactly: codes have four bits, and so may scales. Those of releases
// are taken to be powers of two.
bool scaled_values_fit_bf16(const io::StoredTensor* scales) {
  if (scales == nullptr || scales->dtype != StoredDtype::kF32) return true;
  uint32_t lower = 0;
  for (size_t i = 0; i + sizeof(uint32_t) <= scales->bytes.size(); i += sizeof(uint32_t)) {
    uint32_t bits;
    std::memcpy(&bits, scales->bytes.data() + i, sizeof(bits));
    lower |= bits & 0xFFFFFu;
  }
  return lower == 0;
}

int64_t parts_bytes(const WeightRow& row, std::span<const MatrixParts> parts, StoredDtype stored,
                    const io::Checkpoint* checkpoint) {
  const bool fp8 = stored == StoredDtype::kF8_E4M3;
  const io::StoredTensor* scales = fp8 && checkpoint != nullptr ? checkpoint->find(row.scale_name) : nullptr;
  const bool fit_bf16 = fp8 ? scaled_values_fit_bf16(scales) : stored == StoredDtype::kBF16;
  const DType dequantised = fit_bf16 ? DType::kBF16 : DType::kF32;
  int64_t bytes = 0;
  for (const MatrixParts& p : parts) {
    const bool keeps_blocks = fp8 && p.between_blocks && row.block == kWeightBlock;
    bytes += p.count * packed_matrix_bytes(keeps_blocks ? DType::kF8E4M3 : dequantised, p.n, p.k, keeps_blocks);
  }
  return bytes;
}

int64_t packed_bytes(const WeightRow& row, const ModelConfig& config, const io::Checkpoint* checkpoint) {
  if (row.storage == Storage::kMappedTable) return 0;
  if (row.storage == Storage::kVector || row.storage == Storage::kExpertIds) return n_elements(row) * 4;
  const StoredDtype stored = stored_dtype(row, config, checkpoint);
  if (row.storage == Storage::kTable) return n_elements(row) * (stored == StoredDtype::kBF16 ? 2 : 4);
  if (!row.parts.empty()) return parts_bytes(row, row.parts, stored, checkpoint);
  if (stored == StoredDtype::kF8_E4M3 && row.block != kWeightBlock) {
    const MatrixParts whole{.count = 1, .n = row.shape[0], .k = row.shape[1]};
    return parts_bytes(row, {&whole, 1}, stored, checkpoint);
  }
  const DType dtype = kept_dtype(stored);
  const bool has_scales = dtype == DType::kF8E4M3 || dtype == DType::kNvfp4;
  return packed_matrix_bytes(dtype, row.shape[0], row.shape[1], has_scales);
}

// Of codes and scales.
int64_t mapped_bytes(const WeightRow& row) {
  const std::vector<int64_t> scales = scale_shape(row, StoredDtype::kF8_E4M3);
  return n_elements(row) + scales[0] * scales[1];
}

// The widest rows of a layer live at once, all f32: the residual streams, attention's queries in both forms with their
// outputs, what is the family's own, the indexer's queries as they come, rotated and rounded, and the feed-forward rows of
// a token's experts. Logits are for a few rows only.
//
// In addition, the index scores of the rows that are scored together (ops/index_topk.h), each over the longest context; what
// a context shorter than the model's leaves of that is not counted back, since the limit on them is small.
int64_t index_score_bytes(const ModelConfig& c, int64_t n_step_tokens) {
  if (c.n_index_heads == 0) return 0;
  const int64_t row_bytes = c.max_position * static_cast<int64_t>(sizeof(float));
  return std::min(n_step_tokens * row_bytes, std::max(ops::kIndexScoreBytes, row_bytes));
}

int64_t workspace_bytes(const ModelConfig& c, int64_t n_step_tokens) {
  const int64_t attention = c.n_heads * (2 * c.d_head() + 3 * c.d_latent + c.d_rope + 2 * c.d_value) + 2 * c.d_q_lora;
  const int64_t own = c.family->own_workspace != nullptr ? c.family->own_workspace(c) : 0;
  const int64_t indexer = c.n_index_heads * (3 * c.d_index + 1) + c.n_topk;
  const int64_t ffn =
      std::max(3 * c.d_dense, 3 * c.d_expert * (c.n_active + c.n_shared_experts) + c.d_model * c.n_active);
  const int64_t per_token = (6 + 2 * c.n_streams) * c.d_model + attention + own + indexer + ffn;
  return n_step_tokens * per_token * 4 + index_score_bytes(c, n_step_tokens) + 16 * c.n_vocab * 4;
}

int64_t draft_state(const ModelConfig& c) {
  return c.family->draft_state != nullptr ? c.family->draft_state(c) : c.n_streams * c.d_model;
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint* checkpoint,
                       const CacheLimits& limits, int64_t n_step_rows) {
  MemoryPlan plan;
  bool has_mtp = false;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    // A checkpoint without the MTP layer is a smaller model.
    if (row.mtp && checkpoint != nullptr && !has_weight(row, *checkpoint)) continue;
    const int64_t bytes = packed_bytes(row, config, checkpoint);
    plan.weights_bytes += bytes;
    if (row.storage == Storage::kMappedTable) plan.mapped_bytes += mapped_bytes(row);
    const int64_t n_parameters = row.storage == Storage::kExpertIds ? 0 : n_elements(row);
    plan.n_parameters += n_parameters;
    if (!row.mtp) continue;
    has_mtp = true;
    plan.mtp_weights_bytes += bytes;
    plan.n_mtp_parameters += n_parameters;
  }
  if (has_mtp && numerics.fp8_draft_head && limits.n_undone > 0) {  // drafts are what a step may undo
    plan.weights_bytes += packed_matrix_bytes(DType::kF8E4M3, config.n_vocab, config.d_model, true);
  }
  const CacheLayout layout = cache_layout(config, numerics, has_mtp);
  plan.latent_bytes_per_token = layout.latent_bytes_per_token();
  plan.index_bytes_per_token = layout.index_bytes_per_token();
  plan.sequence_bytes = limits.n_sequences * layout.bytes_per_sequence(limits) + layout.spare_bytes(limits);
  const int64_t n_rows = n_step_rows > 0 ? n_step_rows : limits.n_step_tokens;
  plan.workspace_bytes = workspace_bytes(config, n_rows);
  plan.step_rows_bytes = step_rows_bytes(config, n_rows);
  if (!layout.keeps_all_rows()) {
    plan.block_tokens = layout.block_tokens();
    const bool keeps_state = has_mtp && config.n_draft_block == 0 && limits.n_undone > 0;
    plan.block_bytes = layout.block_bytes() + (keeps_state ? 4 * draft_state(config) : 0);
  }
  return plan;
}

int64_t step_rows_bytes(const ModelConfig& config, int64_t n_step_tokens) {
  constexpr int64_t kPasses = 2, kStatusWords = 1;
  const int64_t words = config.d_model + draft_state(config) + config.n_topk + kStatusWords;
  return kPasses * n_step_tokens * words * 4;
}

// A quarter more than the estimate, what expert_ffn and index_topk take at a time, and logits.
int64_t device_workspace_bytes(const MemoryPlan& plan) {
  constexpr int64_t kOfOps = int64_t{768} << 20;
  return plan.workspace_bytes / 4 * 5 + kOfOps;
}

// A half is for the rows that experts work on, a quarter for queries as bf16.
int64_t tuned_scratch_bytes(const ModelConfig& c, int64_t n_step_tokens) {
  constexpr int64_t kLeast = int64_t{1} << 30, kMost = int64_t{4} << 30;
  const int64_t experts = ops::tuned_token_bytes({.d_model = c.d_model,
                                                  .d_hidden = c.d_expert,
                                                  .d_shared = c.d_expert * c.n_shared_experts,
                                                  .n_active = c.n_active});
  const int64_t queries = c.n_heads * (c.d_latent + c.d_rope) * 2;
  return std::clamp(n_step_tokens * std::max(2 * experts, 4 * queries), kLeast, kMost);
}

int64_t longest_context(const MemoryPlan& plan, int64_t available_bytes) {
  const int64_t left = available_bytes - plan.fixed_bytes();
  const int64_t per_page = plan.cache_bytes(kPageTokens);
  if (left <= 0) return 0;
  // DeepSeek-V4 with windows alone: nothing grows
  return per_page == 0 ? std::numeric_limits<int64_t>::max() : left / per_page * kPageTokens;
}

int64_t choose_prefix_bytes(const MemoryPlan& plan, const ContextRequest& request) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  if (plan.block_bytes == 0) return 0;
  return std::clamp((request.available_bytes - plan.total_bytes(request.asked_tokens)) / 4, int64_t{0}, kMostBytes);
}

Result<int64_t> choose_context(const MemoryPlan& plan, const ContextRequest& request) {
  if (request.asked_tokens > request.max_position) {
    return Error{ErrorKind::kUsage,
                 fmt::format("--max-model-len {} is more than the model's {} positions; give at most that",
                             request.asked_tokens, request.max_position)};
  }
  const int64_t longest = std::min(longest_context(plan, request.available_bytes), request.max_position);
  const int64_t n_tokens = request.asked_tokens > 0 ? request.asked_tokens : longest;
  if (longest > 0 && n_tokens <= longest) return n_tokens;

  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  std::string message = fmt::format("weights of {:.2f} GiB and a workspace of {:.2f} GiB", gib(plan.weights_bytes),
                                    gib(plan.workspace_bytes));
  if (plan.sequence_bytes > 0)
    message += fmt::format(", {:.2f} GiB of windows and state of running requests", gib(plan.sequence_bytes));
  if (plan.graphs_bytes > 0) message += fmt::format(", {:.2f} GiB of graphs (--graphs off)", gib(plan.graphs_bytes));
  if (plan.prefix_bytes > 0)
    message += fmt::format(", {:.2f} GiB for cached prefixes (--prefix-memory)", gib(plan.prefix_bytes));
  if (n_tokens > 0)
    message += fmt::format(", and caches of {:.2f} GiB for {} tokens,", gib(plan.cache_bytes(n_tokens)), n_tokens);
  message += fmt::format(" do not fit into the {:.2f} GiB available{}", gib(request.available_bytes), request.where);
  message += longest > 0 ? fmt::format("; the longest context that fits is --max-model-len {}", longest)
                         : ", whatever the context";
  return Error{ErrorKind::kOutOfMemory, std::move(message)};
}

Status check_cache_tokens(const MemoryPlan& plan, const ContextRequest& request, int64_t n_tokens) {
  const int64_t most = longest_context(plan, request.available_bytes);
  if (n_tokens <= most) return {};
  return Error{ErrorKind::kOutOfMemory,
               fmt::format("a cache of {} tokens takes {:.2f} GiB, which do not fit into the {:.2f} GiB available{} in "
                           "addition to weights and "
                           "workspace; the largest that fits is of {} tokens (--cache-tokens)",
                           n_tokens, static_cast<double>(plan.cache_bytes(n_tokens)) / kGiB,
                           static_cast<double>(request.available_bytes) / kGiB, request.where, most)};
}

}  // namespace levin
