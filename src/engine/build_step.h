// Makes the steps that a Runner runs: the one place where positions, lengths, write slots and page tables of a step are
// written. All of it is written on the host; for a device its views are moved there (for_each_view).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>

#include "base/result.h"
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

class StepFault : public std::runtime_error {
 public:
  explicit StepFault(const Error& error) : std::runtime_error(error.message) {}
};

// How much of everything a step has room for. What its chunks leave is padding: rows without a sequence (seq and slot -1)
// that see nothing, and sequences without a page.
struct StepShape {
  int64_t n_rows = 0;       // also of the completed entries of each ratio
  int64_t n_sequences = 0;  // B
  int64_t n_pages = 0;      // of a page table; one of a ratio's entries has n_pages / ratio, rounded up
  int64_t n_wanted = 0;     // of the wanted rows; 0: all are, or none
  int rows_together = 1;    // Step::rows_together

  auto operator<=>(const StepShape&) const = default;
};

// The next 1, 2, 3, 4, 6, 8, 12, 16 ...: at most a third of such a step is padding, from three rows on.
int64_t padded_rows(int64_t n_rows);
int64_t padded_pages(int64_t n_pages);  // the next 4, 16, 64, 256 ...
// How many rows may be wanted of so many: a quarter, half, or all of them, as padded_rows() are.
std::array<int64_t, 3> wanted_counts(int64_t n_rows);

// Step::rows_together of a step whose longest chunk has so many rows: the next 1, 2, 4 or 8, then 8.
constexpr int kMostRowsTogether = 8;
int rows_together(int64_t n_chunk_rows);

// The padded shape that holds a step of `n_sequences` chunks at most. Where fewer rows are wanted than the shape has room for, its
// last row is padding.
StepShape padded_shape(std::span<const SequenceChunk> chunks, const PageKinds& kinds,
                       std::optional<std::span<const int32_t>> wanted, int64_t n_sequences);

// Whether the pages of a chunk have room for all that its rows read and write. The error says what is missing.
Status check_room(const SequenceChunk& chunk, SlotRule rule, const PageKinds& kinds);
Status check_block_room(const SequenceChunk& block);  // of build_block_step()

// In host memory of `arena`. `wanted`: Step::wanted; its padding stands for the last row, which is padding itself. `shape`
// holds the step; nullopt: it has no padding. A chunk without room throws a StepFault: its sequence should not have been in
// the step (check_room).
Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule, const PageKinds& kinds,
                std::optional<std::span<const int32_t>> wanted = std::nullopt,
                const std::optional<StepShape>& shape = std::nullopt);

// A step of drafted blocks. The tokens of a chunk are one: they see each other and the rows of the window that are in the
// caches before its first position, whatever their own places in it. A block without room throws a StepFault.
Step build_block_step(Arena& arena, std::span<const SequenceChunk> blocks, const PageKinds& kinds);

// Calls f for every tensor of a step.
void for_each_view(Step& step, const std::function<void(View&)>& f);

}  // namespace levin
