#include "model/step.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/formats.h"

namespace levin {

Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule) {
  int64_t n_tokens = 0, max_pages = 1;
  for (const SequenceChunk& chunk : chunks) {
    n_tokens += static_cast<int64_t>(chunk.tokens.size());
    max_pages = std::max<int64_t>(max_pages, static_cast<int64_t>(chunk.pages.size()));
  }
  const int32_t offset = rule == SlotRule::kAfterPosition ? 1 : 0;
  Step step{.tokens = arena.allocate(DType::kI32, {n_tokens}),
            .positions = arena.allocate(DType::kI32, {n_tokens}),
            .seq = arena.allocate(DType::kI32, {n_tokens}),
            .slot = arena.allocate(DType::kI32, {n_tokens}),
            .visible = arena.allocate(DType::kI32, {n_tokens}),
            .tables = arena.allocate(DType::kI32, {static_cast<int64_t>(chunks.size()), max_pages}),
            .first_slot = offset};
  int64_t t = 0;
  for (size_t b = 0; b < chunks.size(); ++b) {
    const SequenceChunk& chunk = chunks[b];
    const int64_t n_slots = chunk.first_position + static_cast<int64_t>(chunk.tokens.size()) + offset;
    LEVIN_CHECK(n_slots <= static_cast<int64_t>(chunk.pages.size()) * kPageTokens,
                "step: sequence {} needs {} slots, its block table has {} pages", b, n_slots, chunk.pages.size());
    std::copy(chunk.pages.begin(), chunk.pages.end(), step.tables.row<int32_t>(static_cast<int64_t>(b)));
    int32_t position = chunk.first_position;
    for (const int32_t token : chunk.tokens) {
      step.tokens.data<int32_t>()[t] = token;
      step.positions.data<int32_t>()[t] = position;
      step.seq.data<int32_t>()[t] = static_cast<int32_t>(b);
      step.slot.data<int32_t>()[t] = position + offset;
      step.visible.data<int32_t>()[t] = position + offset + 1;
      ++position;
      ++t;
    }
  }
  return step;
}

}  // namespace levin
