#include "ops/index_topk.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/products.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// What only the host can look at.
void check_slots(std::string_view op, const ops::IndexQuery& a) {
  for (int64_t t = 0; t < a.q.dim(0); ++t) {
    const int64_t seq = a.seq.data<int32_t>()[t], visible = a.visible.data<int32_t>()[t];
    if (seq < 0 && visible <= a.first) continue;  // padding
    LEVIN_CHECK(seq >= 0 && seq < a.cache.tables.dim(0) && visible <= a.cache.tables.dim(1) * kPageTokens,
                "{}: row {} sees {} slots of seq {}, cache.tables is {}", op, t, visible, seq,
                a.cache.tables.describe());
  }
}

// Neighbouring rows of one sequence that score pages together.
struct Group {
  int64_t row = 0;
  int64_t n_rows = 0;
  int64_t page = 0;  // the first
  int64_t n_pages = 0;
  int64_t n_pages_before = 0;  // in earlier groups
};

// Cuts rows [begin, end) into groups; returns how many.
int64_t cut_groups(const ops::IndexQuery& a, Share rows, Group* groups) {
  const int32_t* seq = a.seq.data<int32_t>();
  const int32_t* visible = a.visible.data<int32_t>();
  int64_t n_groups = 0, n_pages_before = 0;
  for (int64_t t = rows.begin; t < rows.end;) {
    Group g{.row = t, .page = a.first / kPageTokens, .n_pages_before = n_pages_before};
    int64_t last = 0;
    for (; t < rows.end && seq[t] == seq[g.row] && g.n_rows < kernels::kIndexRows; ++t, ++g.n_rows) {
      if (visible[t] > a.first) last = std::max(last, int64_t{visible[t]});
    }
    g.n_pages = std::max<int64_t>(0, (last + kPageTokens - 1) / kPageTokens - g.page);
    n_pages_before += g.n_pages;
    groups[n_groups++] = g;
  }
  return n_groups;
}

// Scores of rows [begin, end); score's row 0 is row `begin`.
void score_rows(CpuBackend& cpu, const ops::IndexQuery& a, Share rows, const View& score) {
  const int64_t n_heads = a.q.dim(1), n_threads = cpu.pool().n_threads();
  const ArenaScope scope(cpu.arena());
  auto* groups = reinterpret_cast<Group*>(
      cpu.arena().allocate_bytes((rows.end - rows.begin) * static_cast<int64_t>(sizeof(Group))));
  const int64_t n_groups = cut_groups(a, rows, groups);
  if (n_groups == 0) return;
  const int64_t scratch_bytes =
      (cpu.kernels().index.score_scratch_bytes(n_heads, a.format.d_index) + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* scratch = cpu.arena().allocate_bytes(scratch_bytes * n_threads);

  const auto score_pages = [&](const Group& g, int64_t page_begin, int64_t page_end, int thread) {
    cpu.kernels().index.score({.q = a.q.bytes() + g.row * a.q.stride(0) * dtype_bytes(a.q.dtype()),
                               .q_dtype = a.q.dtype(),
                               .q_row_stride = a.q.stride(0),
                               .q_head_stride = a.q.stride(1),
                               .w = a.w.row<float>(g.row),
                               .w_stride = a.w.stride(0),
                               .n_rows = g.n_rows,
                               .n_heads = n_heads,
                               .format = a.format,
                               .pages = a.cache.pages,
                               .page_bytes = a.cache.page_bytes,
                               .table = a.cache.tables.row<int32_t>(a.seq.data<int32_t>()[g.row]),
                               .page_begin = page_begin,
                               .page_end = page_end,
                               .first = a.first,
                               .visible = a.visible.data<int32_t>() + g.row,
                               .score = score.row<float>(g.row - rows.begin),
                               .score_stride = score.stride(0),
                               .scratch = scratch + scratch_bytes * thread});
  };
  // The pages of all groups in a line, cut evenly: few rows share keys over threads, many rows share themselves.
  const Group& last = groups[n_groups - 1];
  cpu.pool().parallel_for(last.n_pages_before + last.n_pages, 1, [&](int64_t begin, int64_t end, int thread) {
    for (const Group* g = groups; g != groups + n_groups; ++g) {
      const int64_t from = std::max(begin, g->n_pages_before), to = std::min(end, g->n_pages_before + g->n_pages);
      if (from >= to) continue;
      const int64_t shift = g->page - g->n_pages_before;
      score_pages(*g, from + shift, to + shift, thread);
    }
  });
}

// Of scores of rows [begin, end): each key once for the rows of a sequence that follow one another.
OpWork scores_work(const CpuBackend& cpu, const ops::IndexQuery& a, Share rows) {
  const int32_t* seq = a.seq.data<int32_t>();
  double n_scores = 0, n_keys = 0;
  for (int64_t t = rows.begin, n_of_sequence = 0; t < rows.end; ++t) {
    const int64_t n = std::max(0, a.visible.data<int32_t>()[t] - a.first);
    n_scores += static_cast<double>(n);
    n_of_sequence = t > rows.begin && seq[t] == seq[t - 1] ? std::max(n_of_sequence, n) : n;
    if (t + 1 == rows.end || seq[t + 1] != seq[t]) n_keys += static_cast<double>(n_of_sequence);
  }
  OpWork work{.bytes = n_keys * static_cast<double>(a.format.page_bytes()) / kPageTokens};
  const bool bf16 = a.format.dtype == CacheDType::kBF16 && multiplies_bf16(cpu);
  (bf16 ? work.bf16_flop : work.f32_flop) = 2 * n_scores * static_cast<double>(a.q.dim(1) * a.format.d_index);
  return work;
}

// A run of rows whose selects are chosen; score's row 0 is row `row`.
struct Selection {
  View score;
  const int32_t* begin = nullptr;  // [n_rows], null: `first` for all
  int32_t first = 0;
  const int32_t* end = nullptr;  // [n_rows]
  View topk;                     // [n_rows, K]
  View faults;                   // [n_rows], may be empty
};

// Top-k indices of a row whose candidates are all taken, or whose first are.
void take_row(int64_t first, int64_t end, const View& topk, int64_t t) {
  for (int64_t i = 0; i < topk.dim(1); ++i) {
    const int64_t slot = first + i;
    topk.row<int32_t>(t)[i] = slot < end ? static_cast<int32_t>(slot) : -1;
  }
}

void select_rows(CpuBackend& cpu, const Selection& a) {
  const int64_t n_rows = a.topk.dim(0), n_threads = cpu.pool().n_threads();
  const int64_t n_elements = kernels::select_scratch_elements(a.score.dim(1));
  const ArenaScope scope(cpu.arena());
  const View scratch = cpu.arena().allocate(DType::kI32, {n_threads, n_elements});
  cpu.pool().parallel_for(n_rows, 1, [&](int64_t row_begin, int64_t row_end, int thread) {
    for (int64_t t = row_begin; t < row_end; ++t) {
      const int64_t begin = a.begin != nullptr ? a.begin[t] : a.first;
      const int64_t bad = cpu.kernels().index.select({.score = a.score.row<float>(t),
                                                      .begin = begin,
                                                      .end = a.end[t],
                                                      .n_topk = a.topk.dim(1),
                                                      .topk = a.topk.row<int32_t>(t),
                                                      .scratch = scratch.row<int32_t>(thread)});
      if (bad == kernels::kNoNan) continue;
      take_row(begin, a.end[t], a.topk, t);
      mark_fault(a.faults, t);
    }
  });
}

// Rows from `begin` on that must be scored and whose scores fit the buffer together; at least one.
struct Run {
  Share rows;
  int64_t n_slots = 0;  // of a score row
};
Run next_run(const ops::IndexTopk& a, int64_t begin) {
  const int32_t* visible = a.query.visible.data<int32_t>();
  Run run{.rows = {begin, begin}};
  for (; run.rows.end < a.topk.dim(0); ++run.rows.end) {
    const int64_t t = run.rows.end, n_rows = t + 1 - begin, n_slots = std::max(run.n_slots, int64_t{visible[t]});
    if (visible[t] - a.query.first <= a.topk.dim(1)) break;
    if (n_rows > 1 && n_rows * n_slots * 4 > ops::kIndexScoreBytes) break;
    run.n_slots = n_slots;
  }
  return run;
}

// The largest score of each block of a row; the last block, which has the newest slot, counts as larger than any.
void score_blocks(const float* score, int64_t end, int64_t block, float* out) {
  const int64_t n_blocks = (end + block - 1) / block;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const float* const first = score + b * block;
    out[b] = *std::max_element(first, score + std::min(end, (b + 1) * block));
  }
  if (n_blocks > 0) out[n_blocks - 1] = std::numeric_limits<float>::infinity();
}

// -inf outside the blocks, which ascend.
void keep_row(const int32_t* blocks, int64_t n_blocks, int64_t block, int64_t end, float* score) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  int64_t kept_end = 0;
  for (int64_t i = 0; i < n_blocks && blocks[i] >= 0; ++i) {
    const int64_t begin = blocks[i] * block;
    std::fill(score + kept_end, score + begin, kNever);
    kept_end = std::min(end, begin + block);
  }
  std::fill(score + kept_end, score + end, kNever);
}

}  // namespace

void CpuBackend::index_topk(const ops::IndexTopk& a) {
  const int64_t n_rows = a.query.q.dim(0);
  check_slots("index_topk", a.query);
  for (int64_t t = 0; t < n_rows;) {
    const Run run = next_run(a, t);
    if (run.rows.begin == run.rows.end) {
      take_row(a.query.first, a.query.visible.data<int32_t>()[t], a.topk, t);
      ++t;
      continue;
    }
    const int64_t n = run.rows.end - run.rows.begin;
    const ArenaScope scope(arena_);
    const View score = arena_.allocate(DType::kF32, {n, run.n_slots});
    score_rows(*this, a.query, run.rows, score);
    select_rows(*this, {.score = score,
                        .first = a.query.first,
                        .end = a.query.visible.data<int32_t>() + t,
                        .topk = a.topk.slice_first(t, n),
                        .faults = a.faults.empty() ? View() : a.faults.slice_first(t, n)});
    t = run.rows.end;
  }
}

OpWork CpuBackend::work(const ops::IndexTopk& a) const {
  OpWork work;
  for (int64_t t = 0; t < a.topk.dim(0);) {
    const Run run = next_run(a, t);
    work += scores_work(*this, a.query, run.rows);
    t = std::max(run.rows.end, t + 1);
  }
  return work;
}

void CpuBackend::take_all(const ops::TakeAll& a) {
  for (int64_t t = 0; t < a.topk.dim(0); ++t) {
    const int32_t visible = a.visible.data<int32_t>()[t];
    LEVIN_CHECK(visible - a.first <= a.topk.dim(1), "take_all: row {} sees more than {} slots", t, a.topk.dim(1));
    take_row(a.first, visible, a.topk, t);
  }
}

void CpuBackend::take_most_recent(const ops::TakeAll& a) {
  for (int64_t t = 0; t < a.topk.dim(0); ++t) {
    const int32_t visible = a.visible.data<int32_t>()[t];
    take_row(std::max<int64_t>(a.first, visible - a.topk.dim(1)), visible, a.topk, t);
  }
}

void CpuBackend::index_scores(const ops::IndexScores& a) {
  const int64_t n_rows = a.query.q.dim(0), n_slots = a.score.dim(1);
  check_slots("index_scores", a.query);
  for (int64_t t = 0; t < n_rows; ++t) {
    LEVIN_CHECK(a.query.visible.data<int32_t>()[t] <= n_slots, "index_scores: row {} sees {} slots, score is {}", t,
                a.query.visible.data<int32_t>()[t], a.score.describe());
  }
  score_rows(*this, a.query, {0, n_rows}, a.score);
}

OpWork CpuBackend::work(const ops::IndexScores& a) const { return scores_work(*this, a.query, {0, a.score.dim(0)}); }

void CpuBackend::select_topk(const ops::SelectTopk& a) {
  const int64_t n_rows = a.score.dim(0), n_slots = a.score.dim(1);
  for (int64_t t = 0; t < n_rows; ++t) {
    const int64_t begin = a.begin.empty() ? 0 : a.begin.data<int32_t>()[t], end = a.end.data<int32_t>()[t];
    LEVIN_CHECK(begin >= 0 && end <= n_slots, "select_topk: row {} chooses from {}..{} of {} slots", t, begin, end,
                n_slots);
  }
  select_rows(*this, {.score = a.score,
                      .begin = a.begin.empty() ? nullptr : a.begin.data<int32_t>(),
                      .end = a.end.data<int32_t>(),
                      .topk = a.topk,
                      .faults = a.faults});
}

void CpuBackend::select_blocks(const ops::SelectBlocks& a) {
  const int64_t n_rows = a.score.dim(0), most_blocks = (a.score.dim(1) + a.block - 1) / a.block;
  const ArenaScope scope(arena_);
  const View scores = arena_.allocate(DType::kF32, {n_rows, most_blocks});
  const View ends = arena_.allocate(DType::kI32, {n_rows});
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t n_slots = a.end.data<int32_t>()[t];
      LEVIN_CHECK(n_slots <= a.score.dim(1), "select_blocks: row {} has {} of {} slots", t, n_slots, a.score.dim(1));
      score_blocks(a.score.row<float>(t), n_slots, a.block, scores.row<float>(t));
      ends.data<int32_t>()[t] = static_cast<int32_t>((n_slots + a.block - 1) / a.block);
    }
  });
  select_rows(*this, {.score = scores, .end = ends.data<int32_t>(), .topk = a.blocks, .faults = {}});
}

void CpuBackend::keep_blocks(const ops::KeepBlocks& a) {
  const int64_t n_rows = a.score.dim(0);
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      keep_row(a.blocks.row<int32_t>(t), a.blocks.dim(1), a.block, a.end.data<int32_t>()[t], a.score.row<float>(t));
    }
  });
}

}  // namespace levin
