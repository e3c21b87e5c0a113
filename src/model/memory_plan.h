// What a model will take, before anything is read or allocated.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/safetensors.h"
#include "kv/sequence_pages.h"
#include "model/config.h"
#include "model/numerics.h"

namespace levin {

// Bytes of weights, caches and workspace, from the config and, where it is given, what the checkpoint stores.
struct MemoryPlan {
  int64_t weights_bytes = 0;  // as packed for the kernels; MTP and the head for drafts included
  int64_t mtp_weights_bytes = 0;
  int64_t latent_bytes_per_token = 0;  // all layers, MTP included
  int64_t index_bytes_per_token = 0;   // all layers with an indexer, MTP included
  int64_t sequence_bytes = 0;          // windows and compressor state of all sequences, whatever the context
  int64_t workspace_bytes = 0;         // of one step, an estimate
  // Prefixes that are kept beside the caches, where sequences cannot share the caches' pages: a block of tokens with the
  // state behind it (kv/cache.h), 0 where they can; and the memory set aside for such blocks, see choose_prefix_bytes()
  int64_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t prefix_bytes = 0;
  int64_t n_parameters = 0;  // trunk and MTP, without block scales
  int64_t n_mtp_parameters = 0;

  int64_t cache_bytes(int64_t n_tokens) const { return n_tokens * (latent_bytes_per_token + index_bytes_per_token); }
  int64_t fixed_bytes() const { return weights_bytes + workspace_bytes + sequence_bytes + prefix_bytes; }
  int64_t total_bytes(int64_t n_tokens) const { return fixed_bytes() + cache_bytes(n_tokens); }
};

// `checkpoint` may be null, or hold names only. Matrices then count as a release of this config stores them. Of
// `limits` n_tokens is not looked at.
MemoryPlan plan_memory(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint* checkpoint,
                       const CacheLimits& limits);

// The workspace of a step on a device, where what it takes is reserved at the start: ops have scratch of their own there.
int64_t device_workspace_bytes(const MemoryPlan& plan);

// Tokens, whole pages of them, whose caches fit beside weights and workspace; 0 when those alone do not, and the largest
// number there is when nothing grows with the context.
int64_t longest_context(const MemoryPlan& plan, int64_t available_bytes);

struct ContextRequest {
  int64_t asked_tokens = 0;     // --max-model-len; 0: as many as model and memory allow
  int64_t max_position = 0;     // of the model
  int64_t available_bytes = 0;  // for everything
  std::string where;            // " on NVIDIA H100", behind it in errors; empty: the machine itself
};
// Memory for prefixes to come back to, where nothing is said of it: a quarter of what is left beside caches of what is
// asked, up to 4 GiB. 0 where sequences share the caches' pages. `plan` is one without.
int64_t choose_prefix_bytes(const MemoryPlan& plan, const ContextRequest& request);

// The context to set caches up for. Asking for more than the model has is kUsage; what does not fit is kOutOfMemory and
// names what is needed, what is there, and the longest context that would fit.
Result<int64_t> choose_context(const MemoryPlan& plan, const ContextRequest& request);

}  // namespace levin
