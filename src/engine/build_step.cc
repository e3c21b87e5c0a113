#include "engine/build_step.h"

#include <fmt/core.h>

#include <algorithm>

#include "tensor/formats.h"

namespace levin {
namespace {

int64_t n_tokens_of(std::span<const SequenceChunk> chunks) {
  int64_t n = 0;
  for (const SequenceChunk& chunk : chunks) n += std::ssize(chunk.tokens);
  return n;
}

int64_t longest_chunk(std::span<const SequenceChunk> chunks) {
  int64_t longest = 0;
  for (const SequenceChunk& chunk : chunks) longest = std::max(longest, std::ssize(chunk.tokens));
  return longest;
}

View filled(Arena& arena, int64_t n, int32_t value) {
  const View out = arena.allocate(DType::kI32, {n});
  std::fill_n(out.data<int32_t>(), n, value);
  return out;
}

template <class PagesOf>
int64_t most_pages(std::span<const SequenceChunk> chunks, const PagesOf& pages_of) {
  int64_t n = 1;
  for (const SequenceChunk& chunk : chunks) n = std::max<int64_t>(n, std::ssize(pages_of(*chunk.pages)));
  return n;
}

const std::vector<int32_t>& row_pages(const SequencePages& pages) { return pages.rows(); }

// The page tables of all sequences under each other.
template <class PagesOf>
View page_tables(Arena& arena, std::span<const SequenceChunk> chunks, int64_t n_sequences, int64_t n_pages,
                 const PagesOf& pages_of) {
  const View tables = filled(arena, n_sequences * n_pages, 0).reshaped({n_sequences, n_pages});
  for (size_t b = 0; b < chunks.size(); ++b) {
    const std::vector<int32_t>& pages = pages_of(*chunks[b].pages);
    std::copy(pages.begin(), pages.end(), tables.row<int32_t>(static_cast<int64_t>(b)));
  }
  return tables;
}

// The first slot of a row, and the token with which entry 0 of a ratio begins.
int32_t first_slot_of(SlotRule rule) { return rule == SlotRule::kAfterPosition ? 1 : 0; }
int32_t first_entry_token(SlotRule rule, int64_t ratio) {
  return rule == SlotRule::kAfterPosition ? static_cast<int32_t>(1 - ratio) : 0;
}

bool has_entries(SlotRule rule, const PageKinds& kinds) {
  return (rule == SlotRule::kAtPosition || kinds.mtp_entries) && !kinds.ratios.empty();
}

Error no_room(const SequenceChunk& chunk, const std::string& what) {
  return {ErrorKind::kRuntime,
          fmt::format("a step of {} tokens from position {} on {}", chunk.tokens.size(), chunk.first_position, what)};
}

void expect(const Status& room) {
  if (!room.ok()) throw StepFault(room.error());
}

void add_window(Arena& arena, int64_t n_window, Step& step) {
  step.window = arena.allocate(DType::kI32, {step.n_tokens()});
  for (int64_t t = 0; t < step.n_tokens(); ++t) {
    const int64_t begin = step.visible.data<int32_t>()[t] - n_window;
    step.window.data<int32_t>()[t] = static_cast<int32_t>(std::max<int64_t>(step.first_slot, begin));
  }
}

StepEntries entries_of_ratio(Arena& arena, std::span<const SequenceChunk> chunks, const Step& step, size_t kind,
                             int64_t ratio, const std::optional<StepShape>& shape) {
  const auto pages_of = [&](const SequencePages& p) -> auto& { return p.entries(kind); };
  const int64_t n_tokens = n_tokens_of(chunks);
  const int64_t n_pages = shape ? (shape->n_pages + ratio - 1) / ratio : most_pages(chunks, pages_of);
  const bool after = step.first_slot > 0;  // SlotRule::kAfterPosition
  const int32_t first = after ? 1 : 0;     // what a row sees that sees nothing, as step.visible has first_slot then
  StepEntries e{.ratio = ratio,
                .first_token = first_entry_token(after ? SlotRule::kAfterPosition : SlotRule::kAtPosition, ratio),
                .first = first,
                .tables = page_tables(arena, chunks, step.tables.dim(0), n_pages, pages_of),
                .visible = filled(arena, step.n_tokens(), first)};
  // Slots up to and with that of token t, counted from where entry 0 begins.
  const auto n_slots = [&](int64_t t) { return step.slot.data<int32_t>()[t] + 1 - e.first_token; };
  const auto completes = [&](int64_t t) { return n_slots(t) % ratio == 0; };
  int64_t n_completed = 0;
  for (int64_t t = 0; t < n_tokens; ++t) n_completed += completes(t);
  const int64_t n_entries = shape ? step.n_tokens() : n_completed;
  e.seq = filled(arena, n_entries, -1), e.slot = filled(arena, n_entries, -1),
  e.positions = filled(arena, n_entries, 0);
  int64_t n = 0;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const auto visible = static_cast<int32_t>(n_slots(t) / ratio);
    e.visible.data<int32_t>()[t] = visible;
    e.n_visible = std::max(e.n_visible, visible);
    if (!completes(t)) continue;
    e.seq.data<int32_t>()[n] = step.seq.data<int32_t>()[t];
    e.slot.data<int32_t>()[n] = visible - 1;
    e.positions.data<int32_t>()[n] = static_cast<int32_t>((visible - 1) * ratio) + e.first_token;
    ++n;
  }
  if (shape) e.n_visible = static_cast<int32_t>(n_pages * kPageTokens);
  return e;
}

void add_entries(Arena& arena, std::span<const SequenceChunk> chunks, const PageKinds& kinds,
                 const std::optional<StepShape>& shape, Step& step) {
  for (View* view : {&step.rings, &step.first_row, &step.end_row, &step.first_position})
    *view = filled(arena, step.tables.dim(0), 0);
  int32_t row = 0;
  for (size_t b = 0; b < chunks.size(); ++b) {
    step.rings.data<int32_t>()[b] = chunks[b].pages->ring();
    step.first_row.data<int32_t>()[b] = row;
    step.first_position.data<int32_t>()[b] = chunks[b].first_position + step.first_slot;
    row += static_cast<int32_t>(chunks[b].tokens.size());
    step.end_row.data<int32_t>()[b] = row;
  }
  for (size_t kind = 0; kind < kinds.ratios.size(); ++kind) {
    step.entries.push_back(entries_of_ratio(arena, chunks, step, kind, kinds.ratios[kind], shape));
  }
}

}  // namespace

int64_t padded_rows(int64_t n_rows) {
  int64_t n = 1;
  while (n < n_rows) n = n < 3 ? n + 1 : n % 3 == 0 ? n / 3 * 4 : n / 2 * 3;
  return n;
}

int64_t padded_pages(int64_t n_pages) {
  int64_t n = 4;
  while (n < n_pages) n *= 4;
  return n;
}

std::array<int64_t, 3> wanted_counts(int64_t n_rows) {
  return {padded_rows((n_rows + 3) / 4), padded_rows((n_rows + 1) / 2), n_rows};
}

int rows_together(int64_t n_chunk_rows) {
  int n = 1;
  while (n < kMostRowsTogether && n < n_chunk_rows) n *= 2;
  return n;
}

StepShape padded_shape(std::span<const SequenceChunk> chunks, const PageKinds& kinds,
                       std::optional<std::span<const int32_t>> wanted, int64_t n_sequences) {
  const int64_t n_tokens = n_tokens_of(chunks);
  int64_t n_rows = padded_rows(n_tokens);
  const int64_t n_asked = wanted ? std::ssize(*wanted) : 0;
  const auto n_wanted = [&] {
    const std::array<int64_t, 3> counts = wanted_counts(n_rows);
    return n_asked == 0 ? 0 : *std::find_if(counts.begin(), counts.end(), [&](int64_t n) { return n >= n_asked; });
  };
  if (n_asked < n_wanted() && n_rows == n_tokens) n_rows = padded_rows(n_tokens + 1);
  int64_t n_pages = most_pages(chunks, row_pages);
  for (size_t kind = 0; kind < kinds.ratios.size(); ++kind) {
    const auto pages_of = [&](const SequencePages& p) -> auto& { return p.entries(kind); };
    n_pages = std::max(n_pages, (most_pages(chunks, pages_of) - 1) * kinds.ratios[kind] + 1);
  }
  return {.n_rows = n_rows,
          .n_sequences = std::min(n_rows, n_sequences),
          .n_pages = padded_pages(n_pages),
          .n_wanted = n_wanted(),
          .rows_together = wanted ? 1 : rows_together(longest_chunk(chunks))};
}

Status check_room(const SequenceChunk& chunk, SlotRule rule, const PageKinds& kinds) {
  const SequencePages& pages = *chunk.pages;
  const int64_t n_tokens = std::ssize(chunk.tokens);
  const int64_t n_slots = chunk.first_position + n_tokens + first_slot_of(rule);
  if (n_slots > std::ssize(pages.rows()) * kPageTokens)
    return no_room(chunk, fmt::format("needs {} slots, its block table has {} pages", n_slots, pages.rows().size()));
  if (n_tokens > pages.max_step_tokens())
    return no_room(chunk, fmt::format("has room for {}", pages.max_step_tokens()));
  if (!has_entries(rule, kinds)) return {};
  for (size_t kind = 0; kind < kinds.ratios.size(); ++kind) {
    const int64_t ratio = kinds.ratios[kind], n_whole = (n_slots - first_entry_token(rule, ratio)) / ratio;
    if (n_whole <= std::ssize(pages.entries(kind)) * kPageTokens) continue;
    return no_room(chunk, fmt::format("needs {} entries of ratio {}, its block table has {} pages", n_whole, ratio,
                                      pages.entries(kind).size()));
  }
  return {};
}

Status check_block_room(const SequenceChunk& block) {
  if (std::ssize(block.tokens) > kPageTokens)
    return no_room(block, fmt::format("is a block of drafts, a page has {} rows", kPageTokens));
  if (block.first_position > std::ssize(block.pages->rows()) * kPageTokens)
    return no_room(block,
                   fmt::format("is a block of drafts, its block table has {} pages", block.pages->rows().size()));
  return {};
}

Step build_step(Arena& arena, std::span<const SequenceChunk> chunks, SlotRule rule, const PageKinds& kinds,
                std::optional<std::span<const int32_t>> wanted, const std::optional<StepShape>& shape) {
  const int64_t n_rows = shape ? shape->n_rows : n_tokens_of(chunks);
  const int64_t n_sequences = shape ? shape->n_sequences : std::ssize(chunks);
  const int64_t n_pages = shape ? shape->n_pages : most_pages(chunks, row_pages);
  const int32_t offset = first_slot_of(rule);
  for (const SequenceChunk& chunk : chunks) expect(check_room(chunk, rule, kinds));
  Step step{.tokens = filled(arena, n_rows, 0),
            .positions = filled(arena, n_rows, 0),
            .seq = filled(arena, n_rows, -1),
            .slot = filled(arena, n_rows, -1),
            .visible = filled(arena, n_rows, offset),
            .tables = page_tables(arena, chunks, n_sequences, n_pages, row_pages),
            .first_slot = offset,
            .rows_together = shape    ? shape->rows_together
                             : wanted ? 1
                                      : rows_together(longest_chunk(chunks)),
            .faults = filled(arena, n_rows, 0)};
  int64_t t = 0;
  for (size_t b = 0; b < chunks.size(); ++b) {
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
  if (shape) step.n_visible = static_cast<int32_t>(n_pages * kPageTokens);
  if (kinds.n_window > 0) add_window(arena, kinds.n_window, step);
  if (has_entries(rule, kinds)) add_entries(arena, chunks, kinds, shape, step);
  if (wanted) {
    const int64_t n_wanted = shape && !wanted->empty() ? shape->n_wanted : std::ssize(*wanted);
    step.wanted = filled(arena, n_wanted, static_cast<int32_t>(n_rows - 1));
    std::copy(wanted->begin(), wanted->end(), step.wanted->data<int32_t>());
  }
  return step;
}

Step build_block_step(Arena& arena, std::span<const SequenceChunk> blocks, const PageKinds& kinds) {
  for (const SequenceChunk& block : blocks) expect(check_block_room(block));
  const int64_t n_tokens = n_tokens_of(blocks);
  const auto of_tokens = [&] { return arena.allocate(DType::kI32, {n_tokens}); };
  Step step{.tokens = of_tokens(),
            .positions = of_tokens(),
            .seq = of_tokens(),
            .slot = of_tokens(),
            .visible = of_tokens(),
            .tables = page_tables(arena, blocks, std::ssize(blocks), most_pages(blocks, row_pages), row_pages),
            .faults = of_tokens()};
  std::fill_n(step.faults.data<int32_t>(), n_tokens, 0);
  step.blocks = {.tables = arena.allocate(DType::kI32, {std::ssize(blocks), 1}), .end = of_tokens()};
  int64_t t = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const SequenceChunk& block = blocks[b];
    const auto n_block = static_cast<int32_t>(block.tokens.size());
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
