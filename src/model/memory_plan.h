// The memory that a model needs, computed before anything is read or allocated.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/safetensors.h"
#include "kv/sequence_pages.h"
#include "model/config.h"
#include "model/numerics.h"

namespace levin {

// Bytes of weights, caches and workspace, from the config and, if given, the types that the checkpoint stores.
struct MemoryPlan {
  int64_t weights_bytes = 0;  // as packed for the kernels, including MTP layer and the head for drafts
  int64_t mtp_weights_bytes = 0;
  int64_t mapped_bytes = 0;  // tables that stay in their files; no part of any sum, the page cache has what is used
  int64_t latent_bytes_per_token = 0;  // all layers, including MTP
  int64_t index_bytes_per_token = 0;   // all layers with an indexer, including MTP
  int64_t sequence_bytes = 0;          // windows, compressor state and spare pages of all sequences, for any context
  int64_t workspace_bytes = 0;         // of one step, an estimate
  int64_t step_rows_bytes = 0;         // that a step's passes leave on a device for one another (step_rows_bytes())
  int64_t graphs_bytes = 0;            // of recorded passes on a device; the caller's to set (engine/graph_plan.h)
  // Prefix cache in host memory, for models whose cache pages cannot be shared: tokens and bytes of a block's record
  // (kv/cache.h), and the memory reserved for records (choose_prefix_bytes()). 0 if pages are shared.
  int64_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t prefix_bytes = 0;
  int64_t n_parameters = 0;  // target and MTP layer, without block scales
  int64_t n_mtp_parameters = 0;

  int64_t cache_bytes(int64_t n_tokens) const { return n_tokens * (latent_bytes_per_token + index_bytes_per_token); }
  int64_t fixed_bytes() const { return weights_bytes + workspace_bytes + sequence_bytes + graphs_bytes + prefix_bytes; }
  int64_t total_bytes(int64_t n_tokens) const { return fixed_bytes() + cache_bytes(n_tokens); }
};

// `checkpoint` may be null or contain names only; matrices then have the types of a release with this config.
// limits.n_tokens is not used. n_step_rows: of a step, all sequences together; 0: limits.n_step_tokens.
MemoryPlan plan_memory(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint* checkpoint,
                       const CacheLimits& limits, int64_t n_step_rows = 0);

// Hidden rows, states, top-k indices and row status of the trunk's pass over a step, and of as many rows of drafting passes.
int64_t step_rows_bytes(const ModelConfig& config, int64_t n_step_tokens);

// The workspace of a step on a device. It is reserved at load and includes the scratch memory of ops.
int64_t device_workspace_bytes(const MemoryPlan& plan);

// The scratch of a device's tuned kernels, in addition to the workspace (ops/cuda_backend.h): what they need to take a step's
// rows together, so that experts are read once a step, within limits. With less they take some rows at a time.
int64_t tuned_scratch_bytes(const ModelConfig& config, int64_t n_step_tokens);

// The longest context, a multiple of the page size, whose caches fit in addition to weights and workspace. 0 if those
// alone do not fit; INT64_MAX if nothing grows with the context.
int64_t longest_context(const MemoryPlan& plan, int64_t available_bytes);

struct ContextRequest {
  int64_t asked_tokens = 0;     // --max-model-len; 0: as many as model and memory allow
  int64_t max_position = 0;     // of the model
  int64_t available_bytes = 0;  // for weights, caches and workspace together
  std::string where;            // appended to amounts in errors, as " on NVIDIA H100"; empty: this machine
};
// The default size of the prefix cache in host memory: a quarter of what the plan and caches for the requested context
// leave, at most 4 GiB; 0 if sequences share cache pages. `plan` has prefix_bytes 0.
int64_t choose_prefix_bytes(const MemoryPlan& plan, const ContextRequest& request);

// The context for which to allocate caches. kUsage if more is requested than the model has; kOutOfMemory if it does not
// fit, naming the bytes needed and available and the longest context that would fit.
Result<int64_t> choose_context(const MemoryPlan& plan, const ContextRequest& request);

// kOutOfMemory if the caches of all sequences together, --cache-tokens, do not fit; 0 tokens do.
Status check_cache_tokens(const MemoryPlan& plan, const ContextRequest& request, int64_t n_tokens);

}  // namespace levin
