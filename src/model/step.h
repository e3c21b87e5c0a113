// One step: T packed tokens from any mix of sequences. Prefill, decode, verification and drafting differ only in the
// counts. engine/build_step.h makes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/context.h"
#include "tensor/view.h"

namespace levin {

// Where a token's cache row stands. The MTP layer keeps the row of the pair (hidden state of i, token i + 1) at slot i
// + 1, so that every page depends only on its own prefix; its slot 0 is never used.
enum class SlotRule : uint8_t { kAtPosition, kAfterPosition };

// The entries of one ratio: those that this step completes, and those that its tokens may read. Entry w stands for the
// rows at slots first_token + w * ratio + i, i < ratio, is made by the last of them, and is visible from that token on.
// Under kAfterPosition first_token is 1 - ratio: entry 1 stands for slots 1 .. ratio, the pairs 0 .. ratio - 1, and every
// page of entries depends only on its own prefix. There is then no entry 0.
struct StepEntries {
  int64_t ratio = 0;
  int32_t first_token = 0;
  int32_t first = 0;      // the first entry that there is
  View tables;            // [B, max pages] i32, pages of kPageTokens entries
  View visible;           // [T] i32: entries first <= w < visible[t]
  int32_t n_visible = 0;  // the largest of them, or more
  View seq;               // [N] i32: of the N entries completed here, in order of their tokens
  View slot;              // [N] i32: w, where its row is written
  View positions;         // [N] i32: RoPE position, that of the first token it stands for
};

// Of a step of drafted blocks: every token attends to the cached rows, then to all rows of its own block, which are in no
// cache. A token's slot is its position in the block.
struct StepBlocks {
  View tables;  // [B, 1] i32: pages of block rows, of which block b has page b
  View end;     // [T] i32: tokens in its block
};

struct Step {
  View tokens;     // [T] i32
  View positions;  // [T] i32, RoPE position
  View seq;        // [T] i32, row of tables
  View slot;       // [T] i32, where this token's rows are written
  View visible;    // [T] i32, slots first_slot <= s < visible[t] may be read
  View tables;     // [B, max pages] i32
  int32_t first_slot = 0;
  int32_t n_visible = 0;  // the largest of visible, or more
  // Neighbouring rows of one sequence that ops may take together, which changes speed alone: those that are verified or read
  // in, at most 8.
  int rows_together = 1;
  View faults;  // [T] i32, row status (ops/context.h): zeros; ops mark rows during the pass

  // Of models with a window: attention reads slots window[t] <= s < visible[t] uncompressed.
  View window;  // [T] i32

  // Of models whose layers compress; empty under kAfterPosition unless the MTP layer has entries too.
  std::vector<StepEntries> entries;  // by ratio, ascending
  View rings;                        // [B] i32, of compressor and recurrent state
  View first_row;                    // [B] i32, in the step, of each sequence
  View end_row;                      // [B] i32, one more than the last row of each sequence
  View first_position;               // [B] i32, of the first row of each sequence; under kAfterPosition its slot

  // Of an MTP step: the N tokens whose output is needed, [N] i32, ascending; nullopt: all. The others only write their rows
  // to the caches, which saves most of the work for them.
  std::optional<View> wanted;

  std::optional<StepBlocks> blocks;  // of a step of drafted blocks

  int64_t n_tokens() const { return tokens.dim(0); }
  const StepEntries& entries_of(int64_t ratio) const;
};

// The tokens `rows` [N] i32 of a step whose entries, if it has any, are written: what is left to compute when only their
// output is wanted.
Step step_of_rows(OpContext& ctx, const Step& step, View rows);

}  // namespace levin
