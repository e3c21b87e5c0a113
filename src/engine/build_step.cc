#include "engine/build_step.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/formats.h"

namespace levin {
namespace {

// The page tables of all sequences under each other, as long as the longest.
template <class PagesOf>
View page_tables(Arena& arena, std::span<const SequenceChunk> chunks, const PagesOf& pages_of) {
  int64_t max_pages = 1;
  for (const SequenceChunk& chunk : chunks)
    max_pages = std::max<int64_t>(max_pages, std::ssize(pages_of(*chunk.pages)));
  const View tables = arena.allocate(DType::kI32, {std::ssize(chunks), max_pages});
  for (size_t b = 0; b < chunks.size(); ++b) {
    const std::vector<int32_t>& pages = pages_of(*chunks[b].pages);
    std::copy(pages.begin(), pages.end(), tables.row<int32_t>(static_cast<int64_t>(b)));
  }
  return tables;
}

void check_room(const SequenceChunk& chunk, size_t b, int32_t offset) {
  const int64_t n_tokens = std::ssize(chunk.tokens), n_slots = chunk.first_position + n_tokens + offset;
  LEVIN_CHECK(n_slots <= std::ssize(chunk.pages->rows()) * kPageTokens,
              "step: sequence {} needs {} slots, its block table has {} pages", b, n_slots, chunk.pages->rows().size());
  LEVIN_CHECK(n_tokens <= chunk.pages->max_step_tokens(), "step: {} tokens of sequence {}, there is room for {}",
              n_tokens, b, chunk.pages->max_step_tokens());
}

void add_window(Arena& arena, int64_t n_window, Step& step) {
  step.window = arena.allocate(DType::kI32, {step.n_tokens()});
  for (int64_t t = 0; t < step.n_tokens(); ++t) {
    const int64_t begin = step.visible.data<int32_t>()[t] - n_window;
    step.window.data<int32_t>()[t] = static_cast<int32_t>(std::max<int64_t>(step.first_slot, begin));
  }
}

StepEntries entries_of_ratio(Arena& arena, std::span<const SequenceChunk> chunks, const Step& step, size_t kind,
                             int64_t ratio) {
  const bool after = step.first_slot > 0;  // SlotRule::kAfterPosition
  StepEntries e{.ratio = ratio,
                .first_token = after ? static_cast<int32_t>(1 - ratio) : 0,
                .first = after ? 1 : 0,
                .tables = page_tables(arena, chunks, [&](const SequencePages& p) -> auto& { return p.entries(kind); }),
                .visible = arena.allocate(DType::kI32, {step.n_tokens()})};
  // Slots up to and with that of token t, counted from where entry 0 begins.
  const auto n_slots = [&](int64_t t) { return step.slot.data<int32_t>()[t] + 1 - e.first_token; };
  const auto completes = [&](int64_t t) { return n_slots(t) % ratio == 0; };
  int64_t n_completed = 0;
  for (int64_t t = 0; t < step.n_tokens(); ++t) n_completed += completes(t);
  for (View* view : {&e.seq, &e.slot, &e.positions}) *view = arena.allocate(DType::kI32, {n_completed});
  int64_t n = 0;
  for (int64_t t = 0; t < step.n_tokens(); ++t) {
    const auto visible = static_cast<int32_t>(n_slots(t) / ratio);
    e.visible.data<int32_t>()[t] = visible;
    e.n_visible = std::max(e.n_visible, visible);
    if (!completes(t)) continue;
    e.seq.data<int32_t>()[n] = step.seq.data<int32_t>()[t];
    e.slot.data<int32_t>()[n] = visible - 1;
    e.positions.data<int32_t>()[n] = static_cast<int32_t>((visible - 1) * ratio) + e.first_token;
    ++n;
  }
  for (size_t b = 0; b < chunks.size(); ++b) {
    const int64_t n_tokens = chunks[b].first_position + std::ssize(chunks[b].tokens) + step.first_slot;
    const int64_t n_entries = (n_tokens - e.first_token) / ratio;
    LEVIN_CHECK(n_entries <= std::ssize(chunks[b].pages->entries(kind)) * kPageTokens,
                "step: sequence {} needs {} entries of ratio {}, its block table has {} pages", b, n_entries, ratio,
                chunks[b].pages->entries(kind).size());
  }
  return e;
}

void add_entries(Arena& arena, std::span<const SequenceChunk> chunks, const PageKinds& kinds, Step& step) {
  const int64_t n_seqs = std::ssize(chunks);
  for (View* view : {&step.rings, &step.first_row, &step.end_row, &step.first_position})
    *view = arena.allocate(DType::kI32, {n_seqs});
  int32_t row = 0;
  for (size_t b = 0; b < chunks.size(); ++b) {
    step.rings.data<int32_t>()[b] = chunks[b].pages->ring();
    step.first_row.data<int32_t>()[b] = row;
    step.first_position.data<int32_t>()[b] = chunks[b].first_position + step.first_slot;
    row += static_cast<int32_t>(chunks[b].tokens.size());
    step.end_row.data<int32_t>()[b] = row;
  }
  for (size_t kind = 0; kind < kinds.ratios.size(); ++kind) {
    step.entries.push_back(entries_of_ratio(arena, chunks, step, kind, kinds.ratios[kind]));
  }
}

}  // namespace

Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule, const PageKinds& kinds,
                std::optional<std::span<const int32_t>> wanted) {
  int64_t n_tokens = 0;
  for (const SequenceChunk& chunk : chunks) n_tokens += std::ssize(chunk.tokens);
  const int32_t offset = rule == SlotRule::kAfterPosition ? 1 : 0;
  Step step{.tokens = arena.allocate(DType::kI32, {n_tokens}),
            .positions = arena.allocate(DType::kI32, {n_tokens}),
            .seq = arena.allocate(DType::kI32, {n_tokens}),
            .slot = arena.allocate(DType::kI32, {n_tokens}),
            .visible = arena.allocate(DType::kI32, {n_tokens}),
            .tables = page_tables(arena, chunks, [](const SequencePages& p) -> auto& { return p.rows(); }),
            .first_slot = offset,
            .faults = arena.allocate(DType::kI32, {n_tokens})};
  std::fill_n(step.faults.data<int32_t>(), n_tokens, 0);
  int64_t t = 0;
  for (size_t b = 0; b < chunks.size(); ++b) {
    check_room(chunks[b], b, offset);
    int32_t position = chunks[b].first_position;
    for (const int32_t token : chunks[b].tokens) {
      step.tokens.data<int32_t>()[t] = token;
      step.positions.data<int32_t>()[t] = position;
      step.seq.data<int32_t>()[t] = static_cast<int32_t>(b);
      step.slot.data<int32_t>()[t] = position + offset;
      step.visible.data<int32_t>()[t] = position + offset + 1;
      step.n_visible = std::max(step.n_visible, position + offset + 1);
      ++position;
      ++t;
    }
  }
  if (kinds.n_window > 0) add_window(arena, kinds.n_window, step);
  const bool has_entries = rule == SlotRule::kAtPosition || kinds.mtp_entries;
  if (has_entries && !kinds.ratios.empty()) add_entries(arena, chunks, kinds, step);
  if (wanted) {
    step.wanted = arena.allocate(DType::kI32, {std::ssize(*wanted)});
    std::copy(wanted->begin(), wanted->end(), step.wanted->data<int32_t>());
  }
  return step;
}

Step build_block_step(Arena& arena, std::span<const SequenceChunk> blocks, const PageKinds& kinds) {
  LEVIN_CHECK(kinds.n_window > 0, "step: blocks of drafts, of a model without windows");
  int64_t n_tokens = 0;
  for (const SequenceChunk& block : blocks) n_tokens += std::ssize(block.tokens);
  const auto of_tokens = [&] { return arena.allocate(DType::kI32, {n_tokens}); };
  Step step{.tokens = of_tokens(),
            .positions = of_tokens(),
            .seq = of_tokens(),
            .slot = of_tokens(),
            .visible = of_tokens(),
            .tables = page_tables(arena, blocks, [](const SequencePages& p) -> auto& { return p.rows(); }),
            .faults = of_tokens()};
  std::fill_n(step.faults.data<int32_t>(), n_tokens, 0);
  step.blocks = {.tables = arena.allocate(DType::kI32, {std::ssize(blocks), 1}), .end = of_tokens()};
  int64_t t = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const SequenceChunk& block = blocks[b];
    const auto n_block = static_cast<int32_t>(block.tokens.size());
    LEVIN_CHECK(n_block <= kPageTokens, "step: a block of {} drafts, a page has {} rows", n_block, kPageTokens);
    LEVIN_CHECK(block.first_position <= std::ssize(block.pages->rows()) * kPageTokens,
                "step: block {} begins at position {}, its block table has {} pages", b, block.first_position,
                block.pages->rows().size());
    step.blocks->tables.data<int32_t>()[b] = static_cast<int32_t>(b);
    step.n_visible = std::max(step.n_visible, block.first_position);
    for (int32_t i = 0; i < n_block; ++i, ++t) {
      step.tokens.data<int32_t>()[t] = block.tokens[static_cast<size_t>(i)];
      step.positions.data<int32_t>()[t] = block.first_position + i;
      step.seq.data<int32_t>()[t] = static_cast<int32_t>(b);
      step.slot.data<int32_t>()[t] = i;
      step.visible.data<int32_t>()[t] = block.first_position;
      step.blocks->end.data<int32_t>()[t] = n_block;
    }
  }
  add_window(arena, kinds.n_window, step);
  return step;
}

void for_each_view(Step& step, const std::function<void(View&)>& f) {
  const auto visit = [&](std::initializer_list<View*> views) {
    for (View* view : views) {
      if (!view->empty()) f(*view);
    }
  };
  visit({&step.tokens, &step.positions, &step.seq, &step.slot, &step.visible, &step.tables, &step.faults, &step.window,
         &step.rings, &step.first_row, &step.end_row, &step.first_position});
  for (StepEntries& e : step.entries) visit({&e.tables, &e.visible, &e.seq, &e.slot, &e.positions});
  if (step.wanted) visit({&*step.wanted});
  if (step.blocks) visit({&step.blocks->tables, &step.blocks->end});
}

}  // namespace levin
