// The entries of DeepSeek-V4's compressors, and their state. Contract and tree: ops/pool_windows.h.
//
// Padding   an entry with slot < 0 and a token with seq < 0 write nothing
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// One layer's rings of compressor state; the layout is that of StateRings (tensor/formats.h).
struct Rings {
  std::byte* rings = nullptr;
  int64_t n_rows = 0;
  int64_t n_ends = 0;
  int64_t n_block_tokens = 1;
  StateFormat format;
  const int32_t* ids = nullptr;  // [B]: ring of each sequence
};

struct WindowTokens {
  const float* values = nullptr;  // [T, C], rows values_ld apart
  int64_t values_ld = 0;
  const float* gates = nullptr;  // [T, C], rows gates_ld apart
  int64_t gates_ld = 0;
  const int32_t* first_row = nullptr;       // [B], of each sequence in this step; its rows are consecutive
  const int32_t* end_row = nullptr;         // [B], the row after its last one
  const int32_t* first_position = nullptr;  // [B], of its first row
  Rings state;
};

struct PoolWindows {
  WindowTokens tokens;
  const float* bias = nullptr;  // [ratio, C], dense
  int64_t ratio = 1;
  bool overlap = false;
  int32_t first_token = 0;        // of entry 0
  const int32_t* seq = nullptr;   // [N]
  const int32_t* slot = nullptr;  // [N]
  float* out = nullptr;           // [N, d], rows out_ld apart; d = C, with overlap C / 2
  int64_t out_ld = 0;
  int64_t n_entries = 0;  // capacity
};
void pool_windows(const PoolWindows& a, StreamHandle stream);

struct KeepState {
  WindowTokens tokens;
  const int32_t* seq = nullptr;  // [T]
  int64_t n_rows = 0;            // T
};
void keep_state(const KeepState& a, StreamHandle stream);

}  // namespace levin::cuda::plain
