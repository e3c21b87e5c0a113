// One step: T packed tokens from any mix of sequences. Prefill, decode, verification and drafting differ only in the
// counts.
//
// build_step() is the one place where positions, lengths, write slots and page tables of a step are made.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/buffer.h"
#include "tensor/view.h"

namespace levin {

// Consecutive tokens of one sequence.
struct SequenceChunk {
  std::span<const int32_t> tokens;
  int32_t first_position = 0;      // of tokens[0]; the cache holds every earlier position
  std::span<const int32_t> pages;  // block table: covers every slot that is written or read
};

// Where a token's cache row stands. The MTP layer keeps the row of the pair (hidden state of i, token i + 1) at slot i
// + 1, so that every page depends on its own prefix alone; its slot 0 is never used.
enum class SlotRule : uint8_t { kAtPosition, kAfterPosition };

struct Step {
  View tokens;     // [T] i32
  View positions;  // [T] i32, RoPE position
  View seq;        // [T] i32, row of tables
  View slot;       // [T] i32, where this token's rows are written
  View visible;    // [T] i32, slots first_slot <= s < visible[t] may be read
  View tables;     // [B, max pages] i32
  int32_t first_slot = 0;

  int64_t n_tokens() const { return tokens.dim(0); }
};

Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule);

}  // namespace levin
