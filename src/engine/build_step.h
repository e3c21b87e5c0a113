// Makes the steps that a Runner runs: the one place where positions, lengths, write slots and page tables of a step are
// written. All of it is written on the host; for a device its views are moved there (for_each_view).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "kv/sequence_pages.h"
#include "model/step.h"
#include "tensor/buffer.h"

namespace levin {

// Consecutive tokens of one sequence.
struct SequenceChunk {
  std::span<const int32_t> tokens;
  int32_t first_position = 0;            // of tokens[0]; the cache holds every earlier position
  const SequencePages* pages = nullptr;  // with room for every slot that is written or read
};

// In host memory of `arena`. `wanted`: Step::wanted. A chunk without room in its pages stops the process.
Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule, const PageKinds& kinds,
                std::optional<std::span<const int32_t>> wanted = std::nullopt);

// A step of drafted blocks. The tokens of a chunk are one: they see each other and the rows of the window that are in the
// caches before its first position, whatever their own places in it.
Step build_block_step(Arena& arena, std::span<const SequenceChunk> blocks, const PageKinds& kinds);

// Calls f for every tensor of a step.
void for_each_view(Step& step, const std::function<void(View&)>& f);

}  // namespace levin
