// Running given token ids and keeping the tensors along the way, for comparison with an independent implementation
// (`levin trace`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"

namespace levin {

struct TraceOptions {
  std::vector<int32_t> ids;  // the prompt, not empty
  int n_greedy = 0;          // G: greedy tokens of the trunk after the prompt
  // N: greedy drafts after the prompt and the first greedy token. Of a block drafter the first N of every block, in rounds
  // of drafting and verification until G tokens are known
  int n_drafts = 0;
  int64_t n_chunk_tokens = 0;  // C: prefill tokens per step; 0 = the whole prompt
};

// Rounds of a block drafter, [R, N, ...]: what was drafted and how much of it are the trunk's own tokens.
struct TracedRounds {
  std::vector<int64_t> tokens;    // [R, N]
  std::vector<float> logits;      // [R, N, V]
  std::vector<float> confidence;  // [R, N]
  std::vector<int64_t> accepted;  // [R]
};

// S prompt tokens, V vocabulary, D width, L layers, K top-k indices. Tensors of what was not asked for are empty.
struct TraceResult {
  int64_t n_tail = 0;         // min(8, S)
  std::vector<float> logits;  // [S, V]
  // [L, n_tail, D], or [L, n_tail, M, D] of M residual streams: residual stream after each layer, last prompt positions
  std::vector<float> hidden_tail;
  // per layer [S, K], unused -1: what it attended to, by the indexer; V4: entries
  std::vector<std::vector<int32_t>> topk;
  std::vector<int64_t> greedy_ids;   // [G]
  std::vector<float> draft1_logits;  // [S, V]
  std::vector<int32_t>
      draft1_topk;  // [S, K], numbered by pair: the MTP's slot s holds pair s - 1; empty without an indexer
  std::vector<int64_t> draft_tokens;  // [N]
  std::vector<float> draft_logits;    // [N, V]
  // Of a block drafter: what it takes of the trunk at the prompt's positions, [S, Nt * D], what it makes of that, [S, D],
  // the row that each stage keeps, [S, Dh]; its first block's confidence, [N], and its rounds
  std::vector<float> main_hidden;
  std::vector<float> main_x;
  std::vector<std::vector<float>> context;
  std::vector<float> draft_confidence;
  TracedRounds rounds;
};

// Cache tokens that trace() needs.
int64_t trace_cache_tokens(const TraceOptions& options);

// The runner's cache must be unused and hold trace_cache_tokens().
Result<TraceResult> trace(Runner& runner, const TraceOptions& options);

// Writes the result as safetensors with the keys of docs/cli.md.
Status write_trace(const std::string& path, const ModelConfig& config, const TraceOptions& options,
                   const TraceResult& result);

}  // namespace levin
